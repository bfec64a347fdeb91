"""Fills ROS messages with measurements: those of rclpy, and those of rosbags.

Nothing of ROS is imported. A message is filled by the names of its fields, which both have, with
what both accept: floats, and float64 arrays for covariances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from howsure.robotics.axes import (
    ANGLES,
    ANGULAR_VELOCITY,
    LINEAR_ACCELERATION,
    LINEAR_VELOCITY,
    POSITION,
    UNKNOWN_VAR,
    Measurement,
)
from howsure.robotics.orders import ROS_POSE, ROS_TWIST, quaternion, ros_covariance

Message = TypeVar("Message")
IMU = ANGLES + ANGULAR_VELOCITY + LINEAR_ACCELERATION
BOX = ("x", "y", "width", "height")


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
        measurement: Some of x, y, z, roll, pitch, yaw, in metres and radians.
        header: That of the image or reading, for its time and frame.
        unknown_var: The variance of axes that were not measured.
    """
    pose: Any = message if hasattr(message, "covariance") else _part(message, "pose")
    measurement.only(ROS_POSE, "A pose")
    _set(_part(pose, "pose").position, "xyz", measurement, POSITION)
    _orient(pose.pose, measurement)
    pose.covariance = np.array(ros_covariance(measurement, unknown_var=unknown_var))
    return _headed(message, header)


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
    """
    twist: Any = message if hasattr(message, "covariance") else _part(message, "twist")
    measurement.only(ROS_TWIST, "A twist")
    _set(_part(twist, "twist").linear, "xyz", measurement, LINEAR_VELOCITY)
    _set(twist.twist.angular, "xyz", measurement, ANGULAR_VELOCITY)
    twist.covariance = np.array(ros_covariance(measurement, unknown_var=unknown_var))
    return _headed(message, header)


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
    """
    measurement.only(ROS_POSE + ROS_TWIST, "An odometry")
    for part, axes, fill in (("pose", ROS_POSE, fill_pose), ("twist", ROS_TWIST, fill_twist)):
        if here := [axis for axis in measurement.axes if axis in axes]:
            fill(_part(message, part), measurement.ordered(here), unknown_var=unknown_var)
        else:
            _part(message, part).covariance = (unknown_var * np.eye(6)).ravel()
    return _headed(message, header)


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
    """
    measurement.only(IMU, "An inertial reading")
    _orient(message, measurement)
    _set(_part(message, "angular_velocity"), "xyz", measurement, ANGULAR_VELOCITY)
    _set(_part(message, "linear_acceleration"), "xyz", measurement, LINEAR_ACCELERATION)
    for part, axes in (
        ("orientation", ANGLES),
        ("angular_velocity", ANGULAR_VELOCITY),
        ("linear_acceleration", LINEAR_ACCELERATION),
    ):
        setattr(message, f"{part}_covariance", _nine(measurement, axes, unknown_var))
    return _headed(message, header)


def fill_detection(
    message: Message,
    measurement: Measurement,
    scores: Mapping[str, float],
    *,
    hypothesis: Callable[[], Any],
    header: object = None,
) -> Message:
    """The given `vision_msgs/Detection2D`, filled: box, class scores, the centre's covariance.

    The box of the message has no covariance. That of the centre, in pixels**2, goes to x and y of
    every hypothesis' pose; that of the size has no place.

    Args:
        message: What to fill; it is changed and returned.
        measurement: x and y of the centre, width and height, in pixels.
        scores: The probability of each class, by its id.
        hypothesis: Makes an empty `ObjectHypothesisWithPose`: rclpy's class itself, or
            `partial(blank, store, "vision_msgs/msg/ObjectHypothesisWithPose")`.
        header: That of the image, for its time and frame.
    """
    x, y, width, height = (float(v) for v in measurement.only(BOX, "A box").ordered(BOX).mean)
    box = _part(message, "bbox")
    centre = _part(box.center, "position")
    centre.x, centre.y, box.size_x, box.size_y = x, y, width, height
    results = []
    for name, score in scores.items():
        each = hypothesis()
        each.hypothesis.class_id, each.hypothesis.score = str(name), float(score)
        fill_pose(each.pose, measurement.ordered(("x", "y")))
        results.append(each)
    message.results = results  # type: ignore[attr-defined]
    return _headed(message, header)


def fill_detections(
    message: Message, detections: Iterable[object], *, header: object = None
) -> Message:
    """The given `vision_msgs/Detection2DArray` with these detections."""
    message.detections = list(detections)  # type: ignore[attr-defined]
    return _headed(message, header)


def _part(message: object, name: str) -> Any:
    if not hasattr(message, name):
        raise TypeError(
            f"A `{type(message).__name__}` has no field `{name}`; give a message of the type that "
            "the function's name says, in its ROS 2 form."
        )
    return getattr(message, name)


def _set(
    target: object, fields: Sequence[str], measurement: Measurement, axes: Sequence[str]
) -> None:
    for field, axis in zip(fields, axes, strict=True):
        if axis in measurement.axes:
            setattr(target, field, measurement[axis])


def _orient(message: object, measurement: Measurement) -> None:
    """Sets the quaternion if an angle was measured."""
    if not set(ANGLES) & set(measurement.axes):
        return
    angles = [measurement[axis] if axis in measurement.axes else 0.0 for axis in ANGLES]
    target = _part(message, "orientation")
    for field, value in zip("xyzw", quaternion(*angles).tolist(), strict=True):
        setattr(target, field, value)


def _nine(measurement: Measurement, axes: Sequence[str], unknown_var: float) -> np.ndarray:
    """The covariance of three axes; -1 first, as the message's definition says, where none is."""
    if not set(axes) & set(measurement.axes):
        return np.array([-1.0] + [0.0] * 8)
    return measurement.ordered(axes, unknown_var=unknown_var).covariance.ravel()


def _headed(message: Message, header: object) -> Message:
    if header is not None:
        _part(message, "header")
        message.header = header  # type: ignore[attr-defined]
    return message


def blank(store: Any, name: str) -> Any:
    """An empty message of a rosbags typestore, as rclpy's classes make without arguments.

    Args:
        store: What `rosbags.typesys.get_typestore` returned.
        name: The type, such as `"geometry_msgs/msg/PoseWithCovarianceStamped"`.
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


_NUMPY_NAMES = {"char": "uint8", "octet": "uint8"}  # of types that numpy does not know


def _empty(store: Any, node: Enum, content: Any) -> object:
    """An empty field; `node` is rosbags' kind of it."""
    if node.name == "NAME":
        return blank(store, content)
    if node.name == "BASE":
        return "" if "string" in content[0] else np.zeros((), _dtype(content)).item()
    (inner, of), count = content
    length = count if node.name == "ARRAY" else 0  # else a sequence, whose count is its limit
    if inner.name == "BASE" and "string" not in of[0]:
        return np.zeros(length, _dtype(of))
    return [_empty(store, inner, of) for _ in range(length)]


def _dtype(base: tuple[str, int]) -> str:
    return _NUMPY_NAMES.get(base[0], base[0])
