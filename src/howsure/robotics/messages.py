"""Fills ROS messages with measurements: those of rclpy, and those of rosbags.

Nothing of ROS is imported. A message is filled by the names of its fields, which both have, with
what both accept: floats, and float64 arrays for covariances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from howsure.robotics.axes import (
    ANGLES,
    ANGULAR_VELOCITY,
    LINEAR_ACCELERATION,
    LINEAR_VELOCITY,
    POSITION,
    ROS_POSE,
    ROS_TWIST,
    UNKNOWN_VAR,
    Measurement,
    quaternion,
    ros_covariance,
)

Message = TypeVar("Message")
IMU = ANGLES + ANGULAR_VELOCITY + LINEAR_ACCELERATION
BOX = ("x", "y", "width", "height")
# Fields of messages and the axes that they hold; an orientation is a quaternion.
_FIELDS = {
    "position": POSITION,
    "orientation": ANGLES,
    "linear": LINEAR_VELOCITY,
    "angular": ANGULAR_VELOCITY,
    "angular_velocity": ANGULAR_VELOCITY,
    "linear_acceleration": LINEAR_ACCELERATION,
}
# Parts of messages with a 6 x 6 covariance: their fields, and the axes of the covariance.
_WITH_COVARIANCE = {
    "pose": (("position", "orientation"), ROS_POSE),
    "twist": (("linear", "angular"), ROS_TWIST),
}


def fill_pose(
    message: Message,
    measurement: Measurement,
    *,
    header: object = None,
    unknown_var: float = UNKNOWN_VAR,
) -> Message:
    """The given `PoseWithCovariance` or `PoseWithCovarianceStamped`, filled.

    Of what was not measured, the position keeps its value and the covariance is `unknown_var`. The
    orientation is set if an angle was measured; its other angles are then 0.

    Args:
        message: What to fill; it is changed and returned.
        measurement: Some of x, y, z, roll, pitch, yaw, in meters and radians.
        header: That of the image or reading, for its time and frame.
        unknown_var: The variance of axes that were not measured.

    Examples:
        >>> from rosbags.typesys import Stores, get_typestore
        >>> store = get_typestore(Stores.ROS2_HUMBLE)
        >>> pose = hs.robotics.blank(store, "geometry_msgs/msg/PoseWithCovariance")
        >>> seen = hs.robotics.Measurement([1.0], [[0.25]], ("x",))
        >>> hs.robotics.fill_pose(pose, seen).pose.position.x
        1.0
    """
    return _fill_with_covariance(message, "pose", measurement, header, unknown_var)


def fill_twist(
    message: Message,
    measurement: Measurement,
    *,
    header: object = None,
    unknown_var: float = UNKNOWN_VAR,
) -> Message:
    """The given `TwistWithCovariance` or `TwistWithCovarianceStamped`, filled.

    Args:
        message: What to fill; it is changed and returned.
        measurement: Some of vx, vy, vz, wx, wy, wz, in m/s and rad/s.
        header: That of the image or reading, for its time and frame.
        unknown_var: The variance of axes that were not measured.

    Examples:
        >>> from rosbags.typesys import Stores, get_typestore
        >>> store = get_typestore(Stores.ROS2_HUMBLE)
        >>> twist = hs.robotics.blank(store, "geometry_msgs/msg/TwistWithCovariance")
        >>> seen = hs.robotics.Measurement([1.0], [[0.25]], ("vx",))
        >>> hs.robotics.fill_twist(twist, seen).twist.linear.x
        1.0
    """
    return _fill_with_covariance(message, "twist", measurement, header, unknown_var)


def _fill_with_covariance(
    message: Message, kind: str, measurement: Measurement, header: object, unknown_var: float
) -> Message:
    inner: Any = message if hasattr(message, "covariance") else _part(message, kind)
    fields, axes = _WITH_COVARIANCE[kind]
    measurement.only(axes, f"A {kind}")
    for name in fields:
        _fill_field(_part(inner, kind), name, measurement)
    inner.covariance = np.array(ros_covariance(measurement, unknown_var=unknown_var))
    return _fill_header(message, header)


def fill_odometry(
    message: Message,
    measurement: Measurement,
    *,
    header: object = None,
    unknown_var: float = UNKNOWN_VAR,
) -> Message:
    """The given `Odometry`, filled: its pose in the parent's frame, its twist in the child's.

    The message has no place for covariances between pose and twist. What was not measured is
    unknown. Set `child_frame_id` yourself.

    Examples:
        >>> from rosbags.typesys import Stores, get_typestore
        >>> store = get_typestore(Stores.ROS2_HUMBLE)
        >>> odometry = hs.robotics.blank(store, "nav_msgs/msg/Odometry")
        >>> cov = [[0.25, 0], [0, 0.04]]
        >>> seen = hs.robotics.Measurement([1.0, 2.0], cov, ("x", "vx"))
        >>> filled = hs.robotics.fill_odometry(odometry, seen)
        >>> filled.pose.pose.position.x, filled.twist.twist.linear.x
        (1.0, 2.0)
    """
    measurement.only(ROS_POSE + ROS_TWIST, "An odometry")
    for kind, (_, axes) in _WITH_COVARIANCE.items():
        part = _part(message, kind)
        if measured := [axis for axis in measurement.axes if axis in axes]:
            _fill_with_covariance(part, kind, measurement.ordered(measured), None, unknown_var)
        else:
            part.covariance = (unknown_var * np.eye(6)).ravel()
    return _fill_header(message, header)


def fill_imu(
    message: Message,
    measurement: Measurement,
    *,
    header: object = None,
    unknown_var: float = UNKNOWN_VAR,
) -> Message:
    """The given `Imu`, filled; a part of which no axis was measured says so by a covariance of -1.

    Args:
        message: What to fill; it is changed and returned.
        measurement: Some of roll, pitch, yaw, wx, wy, wz, ax, ay, az, in rad, rad/s, m/s**2.
        header: That of the reading, for its time and frame.
        unknown_var: The variance of axes that were not measured in a part of which others were.

    Examples:
        >>> from rosbags.typesys import Stores, get_typestore
        >>> store = get_typestore(Stores.ROS2_HUMBLE)
        >>> imu = hs.robotics.blank(store, "sensor_msgs/msg/Imu")
        >>> seen = hs.robotics.Measurement([0.5], [[0.25]], ("yaw",))
        >>> float(hs.robotics.fill_imu(imu, seen).orientation_covariance[8])
        0.25
    """
    measurement.only(IMU, "An inertial reading")
    for name in ("orientation", "angular_velocity", "linear_acceleration"):
        # -1 first, as the message's definition says, where no axis was measured.
        covariance = np.array([-1.0] + [0.0] * 8)
        if set(_FIELDS[name]) & set(measurement.axes):
            _fill_field(message, name, measurement)
            part = measurement.ordered(_FIELDS[name], unknown_var=unknown_var)
            covariance = part.covariance.ravel()
        setattr(message, f"{name}_covariance", covariance)
    return _fill_header(message, header)


def fill_detection(
    message: Message,
    measurement: Measurement,
    scores: Mapping[str, float],
    *,
    hypothesis: Callable[[], Any],
    header: object = None,
) -> Message:
    """The given `vision_msgs/Detection2D`, filled: box, class scores, the center's covariance.

    The box of the message has no covariance. That of the center, in pixels**2, goes to x and y of
    every hypothesis' pose; that of the size has no place.

    Args:
        message: What to fill; it is changed and returned.
        measurement: x and y of the center, width and height, in pixels.
        scores: The probability of each class, by its id.
        hypothesis: Makes an empty `ObjectHypothesisWithPose`: rclpy's class itself, or
            `partial(blank, store, "vision_msgs/msg/ObjectHypothesisWithPose")`.
        header: That of the image, for its time and frame.

    Examples:
        >>> from types import SimpleNamespace as Message  # rclpy's classes in use
        >>> center = Message(position=Message(x=0.0, y=0.0))
        >>> box = Message(center=center, size_x=0.0, size_y=0.0)
        >>> detection = Message(bbox=box, results=[])
        >>> axes, mean = ("x", "y", "width", "height"), [60.0, 40.0, 20.0, 10.0]
        >>> seen = hs.robotics.Measurement(mean, torch.eye(4).numpy(), axes)
        >>> filled = hs.robotics.fill_detection(detection, seen, {}, hypothesis=Message)
        >>> filled.bbox.center.position.x, filled.bbox.size_x
        (60.0, 20.0)
    """
    x, y, width, height = (float(v) for v in measurement.only(BOX, "A box").ordered(BOX).mean)
    box = _part(message, "bbox")
    center = _part(box.center, "position")
    center.x, center.y, box.size_x, box.size_y = x, y, width, height
    results = []
    for name, score in scores.items():
        result = hypothesis()
        result.hypothesis.class_id, result.hypothesis.score = str(name), float(score)
        fill_pose(result.pose, measurement.ordered(("x", "y")))
        results.append(result)
    message.results = results  # type: ignore[attr-defined]
    return _fill_header(message, header)


def fill_detections(
    message: Message, detections: Iterable[object], *, header: object = None
) -> Message:
    """The given `vision_msgs/Detection2DArray` with these detections.

    Examples:
        >>> from types import SimpleNamespace as Message  # rclpy's class in use
        >>> array = Message(detections=[])
        >>> hs.robotics.fill_detections(array, ["first", "second"]).detections
        ['first', 'second']
    """
    message.detections = list(detections)  # type: ignore[attr-defined]
    return _fill_header(message, header)


def _part(message: object, name: str) -> Any:
    if not hasattr(message, name):
        raise TypeError(
            f"A `{type(message).__name__}` has no field `{name}`; give a message of the type that "
            "the function's name says, in its ROS 2 form."
        )
    return getattr(message, name)


def _fill_field(message: object, name: str, measurement: Measurement) -> None:
    """Sets the measured numbers of a vector, or the quaternion if an angle was measured."""
    axes = zip("xyz", _FIELDS[name], strict=True)
    values = {letter: measurement[axis] for letter, axis in axes if axis in measurement.axes}
    if values and name == "orientation":
        numbers = quaternion(*(values.get(letter, 0.0) for letter in "xyz"))
        values = dict(zip("xyzw", numbers.tolist(), strict=True))
    for letter, value in values.items():
        setattr(_part(message, name), letter, value)


def _fill_header(message: Message, header: object) -> Message:
    if header is not None:
        _part(message, "header")
        message.header = header  # type: ignore[attr-defined]
    return message


def blank(store: Any, name: str) -> Any:
    """An empty message of a rosbags typestore, as rclpy's classes make without arguments.

    Args:
        store: What `rosbags.typesys.get_typestore` returned.
        name: The type, such as `"geometry_msgs/msg/PoseWithCovarianceStamped"`.

    Examples:
        >>> from rosbags.typesys import Stores, get_typestore
        >>> store = get_typestore(Stores.ROS2_HUMBLE)
        >>> imu = hs.robotics.blank(store, "sensor_msgs/msg/Imu")
        >>> imu.angular_velocity.x
        0.0
    """
    if name not in store.fielddefs:
        raise ValueError(
            f"The typestore has no `{name}`; register its definition with "
            "`store.register(rosbags.typesys.get_types_from_msg(text, name))`."
        )
    fields = {field: _empty(store, *kind) for field, kind in store.fielddefs[name][1]}
    if name == "geometry_msgs/msg/Quaternion":
        fields["w"] = 1.0  # no rotation; four zeros are none
    return store.types[name](**fields)


def _empty(store: Any, node: Enum, content: Any) -> object:
    """An empty field; `node` is rosbags' kind of it."""
    if node.name == "NAME":
        return blank(store, content)
    is_array = node.name != "BASE"
    (inner, item), count = content if is_array else ((node, content), 0)
    length = count if node.name == "ARRAY" else 0  # else a sequence, whose count is its limit
    if inner.name == "NAME" or "string" in item[0]:
        return [_empty(store, inner, item) for _ in range(length)] if is_array else ""
    # numpy does not know the names of bytes.
    dtype = "uint8" if item[0] in ("char", "octet") else item[0]
    return np.zeros(length, dtype) if is_array else np.zeros((), dtype).item()
