"""Covariances in the order, and in the frame, that ROS and GTSAM want."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from howsure.robotics.axes import (
    ANGLES,
    ANGULAR_VELOCITY,
    LINEAR_VELOCITY,
    POSITION,
    UNKNOWN_VAR,
    Array,
    Measurement,
)

ROS_POSE = POSITION + ANGLES
ROS_TWIST = LINEAR_VELOCITY + ANGULAR_VELOCITY
GTSAM_POSE3 = ANGLES + POSITION
GTSAM_POSE2 = ("x", "y", "yaw")


def ros_covariance(measurement: Measurement, *, unknown_var: float = UNKNOWN_VAR) -> list[float]:
    """The 36 numbers of `PoseWithCovariance` or `TwistWithCovariance`, row by row.

    The order is x y z roll pitch yaw, and for velocities vx vy vz wx wy wz; which one the axes'
    names tell. The covariance of the angles is that of roll, pitch and yaw as numbers; about the
    frame's axes, as the message's definition has it, it is the same while roll and pitch are small.

    Args:
        measurement: Of a pose or of velocities.
        unknown_var: The variance of axes that were not measured.
    """
    axes = ROS_TWIST if set(measurement.axes) <= set(ROS_TWIST) else ROS_POSE
    ordered = measurement.only(axes, "A pose").ordered(axes, unknown_var=unknown_var)
    return ordered.covariance.ravel().tolist()


def gtsam_covariance(
    measurement: Measurement,
    *,
    rotation: ArrayLike | None = None,  # (3, 3)
    unknown_var: float = UNKNOWN_VAR,
) -> Array:  # (6, 6)
    """The covariance of a `gtsam.Pose3`: rotation first, both parts in the body's frame.

    GTSAM perturbs a pose on its right, X Exp(d): d is a rotation about the axes of the body, and
    then a shift along them. ROS has both in the parent's frame. So to reorder is not enough:
    d = (B d(roll, pitch, yaw), R^T d(x, y, z)), to first order in d.

    Args:
        measurement: Of a pose, in the parent's frame.
        rotation: From the body's frame to the parent's, where no angle was measured; otherwise it
            follows from the angles, of which those not measured are 0.
        unknown_var: The variance of axes that were not measured.
    """
    pose = measurement.only(GTSAM_POSE3, "A pose").ordered(GTSAM_POSE3, unknown_var=unknown_var)
    measured = set(ANGLES) & set(measurement.axes)
    if bool(measured) == (rotation is not None):
        raise ValueError(
            f"`rotation` is {'given' if measured else 'missing'} and the angles {sorted(measured)} "
            "were measured; give it exactly where none was. Of a body along the parent's axes it "
            "is `np.eye(3)`."
        )
    roll, pitch, yaw = pose.mean[:3]
    turn = rotation_matrix(roll, pitch, yaw) if rotation is None else _rotation(rotation)
    jacobian = np.zeros((6, 6))
    jacobian[:3, :3] = _angles_to_body(roll, pitch)
    jacobian[3:, 3:] = turn.T
    return pose.through(jacobian, GTSAM_POSE3).covariance


def gtsam_pose2_covariance(
    measurement: Measurement, *, unknown_var: float = UNKNOWN_VAR
) -> Array:  # (3, 3)
    """The covariance of a `gtsam.Pose2`: x and y along the body's axes, then the angle."""
    pose = measurement.only(GTSAM_POSE2, "A planar pose")
    if "yaw" not in pose.axes:
        raise ValueError("Without a measured yaw, the body's axes are not known; measure it.")
    pose = pose.ordered(GTSAM_POSE2, unknown_var=unknown_var)
    jacobian = rotation_matrix(0.0, 0.0, pose["yaw"]).T
    return pose.through(jacobian, GTSAM_POSE2).covariance


def gtsam_noise(measurement: Measurement, **options: Any) -> Any:
    """The noise model of a factor on a `gtsam.Pose3`; options as in `gtsam_covariance`."""
    try:
        gtsam = import_module("gtsam")
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"A noise model needs GTSAM ({missing}); run `pip install gtsam`. "
            "`gtsam_covariance` gives the matrix without it."
        ) from missing
    return gtsam.noiseModel.Gaussian.Covariance(gtsam_covariance(measurement, **options))


def rotation_matrix(roll: float, pitch: float, yaw: float) -> Array:  # (3, 3)
    """Rz(yaw) Ry(pitch) Rx(roll), as ROS has it: about fixed axes, roll first."""
    (a, b, c), (u, v, w) = np.cos([roll, pitch, yaw]), np.sin([roll, pitch, yaw])
    return np.array(
        [
            [c * b, c * v * u - w * a, c * v * a + w * u],
            [w * b, w * v * u + c * a, w * v * a - c * u],
            [-v, b * u, b * a],
        ]
    )


def quaternion(roll: float, pitch: float, yaw: float) -> Array:  # (4,)
    """The same rotation as x, y, z, w."""
    (a, b, c), (u, v, w) = (f([roll / 2, pitch / 2, yaw / 2]) for f in (np.cos, np.sin))
    return np.array(
        [
            u * b * c - a * v * w,
            a * v * c + u * b * w,
            a * b * w - u * v * c,
            a * b * c + u * v * w,
        ]
    )


def _angles_to_body(roll: float, pitch: float) -> Array:  # (3, 3)
    """Small changes of roll, pitch and yaw as a rotation about the body's axes."""
    a, b, u, v = np.cos(roll), np.cos(pitch), np.sin(roll), np.sin(pitch)
    # Within a milliradian of upright, the map has no usable inverse.
    if abs(b) < 1e-3:
        raise ValueError(
            f"The pitch is {pitch:.4g}, where roll and yaw turn about the same axis and their "
            "covariance does not determine that of the body; measure rotations in another way."
        )
    return np.array([[1.0, 0.0, -v], [0.0, a, u * b], [0.0, -u, a * b]])


def _rotation(matrix: ArrayLike) -> Array:
    r = np.asarray(matrix, float)
    # Rotations out of float32 code are orthogonal to about 1e-6.
    is_orthogonal = r.shape == (3, 3) and np.abs(r @ r.T - np.eye(3)).max() < 1e-5
    if not (is_orthogonal and np.linalg.det(r) > 0):
        raise ValueError(f"`rotation` must be a 3 x 3 rotation matrix, not {r.tolist()}.")
    return r
