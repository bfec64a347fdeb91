"""ROS 2 messages without ROS: rosbags' classes, and classes as strict as rclpy's."""

import numpy as np
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

# Of vision_msgs 4, which rosbags does not carry.
VISION = {
    "Point2D": "float64 x\nfloat64 y",
    "Pose2D": "vision_msgs/Point2D position\nfloat64 theta",
    "BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "ObjectHypothesis": "string class_id\nfloat64 score",
    "ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose"
    ),
    "Detection2D": (
        "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nstring id"
    ),
    "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections",
}


def typestore():
    store = get_typestore(Stores.ROS2_HUMBLE)
    for name, text in VISION.items():
        store.register(get_types_from_msg(text, f"vision_msgs/msg/{name}"))
    return store


def strict(store, name):
    """An empty message whose setters refuse what rclpy's refuse; rclpy itself is not on PyPI.

    rosidl generates them: floats must be `float`, arrays of numbers float64 arrays of the right
    size, strings `str`, and parts messages of the right type.
    """
    message = _class(store, name)()
    for field, kind in store.fielddefs[name][1]:
        object.__setattr__(message, field, _default(store, *kind))
    return message


_CLASSES = {}


def _class(store, name):
    if name not in _CLASSES:
        kinds = dict(store.fielddefs[name][1])

        def set_field(self, field, value):
            assert field in kinds, f"{name} has no slot {field}"
            _check(store, *kinds[field], value)
            object.__setattr__(self, field, value)

        members = {"__setattr__": set_field, "__slots__": tuple(kinds)}
        _CLASSES[name] = type(name.rsplit("/", 1)[1], (), members)
    return _CLASSES[name]


def _default(store, node, content):
    if node.name == "NAME":
        return strict(store, content)
    if node.name == "BASE":
        return "" if content[0] == "string" else 0.0 if "float" in content[0] else 0
    return np.zeros(content[1]) if node.name == "ARRAY" else []


def _check(store, node, content, value):
    if node.name == "NAME":
        assert isinstance(value, _class(store, content)), f"must be a sub message of type {content}"
    elif node.name == "BASE":
        wanted = str if content[0] == "string" else float if "float" in content[0] else int
        assert isinstance(value, wanted), f"must be of type {wanted}"
    elif isinstance(value, np.ndarray):
        assert value.dtype == np.float64 and value.size == content[1]
    else:
        assert isinstance(value, list)
        for each in value:
            _check(store, *content[0], each)
