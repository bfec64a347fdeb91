"""A prediction as filters and factor graphs take it: a mean and a covariance with named axes.

Axes are named, not numbered, because every consumer has an order of its own: ROS puts positions
first, GTSAM rotations and both in the body's frame, a filter whatever its state is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsure.errors import import_extra
from howsure.prediction import Prediction, only_tensor

Array = NDArray[np.float64]

POSITION = ("x", "y", "z")
ANGLES = ("roll", "pitch", "yaw")
LINEAR_VELOCITY = ("vx", "vy", "vz")
ANGULAR_VELOCITY = ("wx", "wy", "wz")
LINEAR_ACCELERATION = ("ax", "ay", "az")
ROS_POSE = POSITION + ANGLES
ROS_TWIST = LINEAR_VELOCITY + ANGULAR_VELOCITY
GTSAM_POSE3 = ANGLES + POSITION
GTSAM_POSE2 = ("x", "y", "yaw")

VAR_FLOOR = 1e-9  # (0.03 mm)**2 or (0.03 mrad)**2: below what a network's float32 output resolves
# The least eigenvalue of the correlations. float32 leaves errors of about 1e-7 in each, and without
# a floor a consumer that inverts the matrix would take such an error for certainty.
CORRELATION_FLOOR = 1e-6
UNKNOWN_VAR = 1e6  # (1 km)**2 or (1000 rad)**2: a filter learns nothing from it


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """A Gaussian over named axes: symmetric, positive definite, float64.

    Attributes:
        mean: A number for each axis.
        covariance: Between the axes, in their units.
        axes: Their names, such as `("x", "y", "yaw")`.

    Examples:
        >>> cov = [[0.01, 0], [0, 0.04]]
        >>> seen = hs.robotics.Measurement([1.0, 2.0], cov, ("x", "y"))
        >>> seen["y"], seen.ordered(("y", "x")).mean.tolist()
        (2.0, [2.0, 1.0])
    """

    mean: Array  # (d,)
    covariance: Array  # (d, d)
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        mean, covariance = np.asarray(self.mean, float), np.asarray(self.covariance, float)
        object.__setattr__(self, "axes", tuple(self.axes))
        d = len(self.axes)
        if mean.shape != (d,) or covariance.shape != (d, d):
            raise ValueError(
                f"{d} axes need a mean of shape ({d},) and a covariance of shape ({d}, {d}), not "
                f"{mean.shape} and {covariance.shape}."
            )
        if d == 0 or len(set(self.axes)) < d:
            raise ValueError(f"`axes` is {self.axes}; name each axis once, and at least one.")
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise ValueError("The mean or the covariance is NaN or infinite.")
        scale = np.sqrt(np.abs(np.outer(np.diag(covariance), np.diag(covariance))))
        if not (np.abs(covariance - covariance.T) <= CORRELATION_FLOOR * scale).all():
            raise ValueError("The covariance is not symmetric.")
        covariance = (covariance + covariance.T) / 2
        try:
            np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            raise ValueError(
                "The covariance is not positive definite, so no filter can use it; its variances "
                f"are {np.diag(covariance)}. `measurement(prediction, axes)` makes a valid one."
            ) from None
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    def __repr__(self) -> str:
        """Each axis with its std: `Measurement(x 1.2 ± 0.03, yaw 0.1 ± 0.02)`."""
        axes = zip(self.axes, self.mean, np.sqrt(np.diag(self.covariance)), strict=True)
        return f"Measurement({', '.join(f'{a} {m:.3g} ± {s:.2g}' for a, m, s in axes)})"

    def __getitem__(self, axis: str) -> float:
        """The mean along an axis."""
        return float(self.mean[self.axes.index(axis)])

    def ordered(self, axes: Sequence[str], *, unknown_var: float | None = None) -> Measurement:
        """The measurement in another order; axes that are not named are left out.

        Args:
            axes: The order, for example that of a filter's measurement.
            unknown_var: The variance of axes that were not measured, whose mean is 0. Without it
                such an axis is an error.
        """
        missing = [axis for axis in axes if axis not in self.axes]
        if missing and unknown_var is None:
            raise ValueError(
                f"{missing} is not among the axes {self.axes}; give the variance of what was not "
                f"measured, for example `unknown_var={UNKNOWN_VAR:g}`."
            )
        covariance, mean = np.eye(len(axes)) * (unknown_var or 0.0), np.zeros(len(axes))
        new = [i for i, axis in enumerate(axes) if axis in self.axes]
        old = [self.axes.index(axes[i]) for i in new]
        covariance[np.ix_(new, new)] = self.covariance[np.ix_(old, old)]
        mean[new] = self.mean[old]
        return Measurement(mean, covariance, tuple(axes))

    def through(
        self,
        matrix: ArrayLike,  # (len(axes), d)
        axes: Sequence[str],
        *,
        mean: ArrayLike | None = None,  # (len(axes),)
    ) -> Measurement:
        """The measurement after a linear map: matrix @ mean, matrix @ covariance @ matrix.T.

        Takes pixels to meters, or a camera's frame to the robot's. For a map that is not linear
        give its Jacobian as `matrix` and the mapped mean as `mean`.
        """
        m = np.asarray(matrix, float)
        if m.shape != (len(axes), len(self.axes)):
            raise ValueError(
                f"`matrix` has shape {m.shape}; from {self.axes} to {tuple(axes)} it needs "
                f"({len(axes)}, {len(self.axes)})."
            )
        mapped = m @ self.mean if mean is None else np.asarray(mean, float)
        return Measurement(mapped, m @ self.covariance @ m.T, tuple(axes))

    def only(self, axes: Sequence[str], what: str) -> Measurement:
        """The measurement itself; an error if it has an axis that is not among `axes`.

        A misspelt axis would otherwise be published as unknown.
        """
        if unknown := [axis for axis in self.axes if axis not in axes]:
            raise ValueError(
                f"{what} has the axes {tuple(axes)}, not {unknown}; rename them, or leave them "
                "out with `measurement.ordered([...])`."
            )
        return self


def measurement(
    prediction: Prediction,
    axes: Sequence[str | None],  # one for each output
    *,
    row: int | None = None,
    floor: float = VAR_FLOOR,
) -> Measurement:
    """The measurement that a network made of one input.

    The variances are `total_var`; correlations are those of `prediction.covariance`, and 0 where
    the method does not know them. Variances below `floor` are raised to it, and correlations are
    shrunk, by as little as needed, until their least eigenvalue is 1e-6; variances stay.

    Args:
        prediction: What `Uncertain` returned.
        axes: The axis of each output, in the order of the outputs; `None` for one to leave out.
        row: Which input, where the prediction has several.
        floor: The least variance of an axis, in its squared unit.

    Examples:
        >>> var = torch.tensor([[0.01, 0.04]])
        >>> p = hs.Prediction(torch.tensor([[1.0, 2.0]]), var, torch.zeros(1, 2))
        >>> hs.robotics.measurement(p, ("x", "y"))
        Measurement(x 1 ± 0.1, y 2 ± 0.2)
    """
    if not floor > 0:
        raise ValueError(f"`floor` is {floor}; give a positive variance.")
    mean, var, correlation = _moments_of_row(prediction, len(axes), row)
    kept = [i for i, axis in enumerate(axes) if axis is not None]
    std = np.sqrt(np.maximum(var, floor))[kept]
    correlation = correlation[np.ix_(kept, kept)]
    # (1 - s) C + s I with the smallest s that lifts the least eigenvalue to the floor.
    least = float(np.linalg.eigvalsh(correlation)[0])
    s = max(0.0, (CORRELATION_FLOOR - least) / (1 - least)) if least < 1 else 0.0
    correlation = (1 - s) * correlation + s * np.eye(len(correlation))
    covariance = correlation * np.outer(std, std)
    names = tuple(axis for axis in axes if axis is not None)
    return Measurement(mean[kept], covariance, names)


def _moments_of_row(
    prediction: Prediction, count: int, row: int | None
) -> tuple[Array, Array, Array]:
    """Mean, variances and correlations of the outputs of one input."""
    index = ... if row is None else row

    def numbers(tensor: Tensor) -> Array:
        return tensor.detach().cpu().double().numpy()[index]

    mean = numbers(only_tensor(prediction.mean, "mean")).ravel()
    var = numbers(only_tensor(prediction.total_var, "total_var")).ravel()
    if len(mean) != count:
        raise ValueError(
            f"The prediction has {len(mean)} numbers and `axes` {count} names; name every output "
            "of one input, and choose the input with `row=` where there are several."
        )
    if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
        raise ValueError(f"The prediction is NaN, infinite or of negative variance: {mean}, {var}.")
    if prediction.covariance is None:
        return mean, var, np.eye(count)
    # A prediction without a batch axis still has one in its covariance.
    covariance = numbers(prediction.covariance).reshape(count, count)
    std = np.sqrt(np.clip(np.diag(covariance), 0, None))
    # An output without variance is correlated with nothing.
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    correlation = covariance * np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    return mean, var, (correlation + correlation.T) / 2


# For ROS and GTSAM: in their orders, and their frames.


def ros_covariance(measurement: Measurement, *, unknown_var: float = UNKNOWN_VAR) -> list[float]:
    """The 36 numbers of `PoseWithCovariance` or `TwistWithCovariance`, row by row.

    The order is x y z roll pitch yaw, and for velocities vx vy vz wx wy wz; which one the axes'
    names tell. The covariance of the angles is that of roll, pitch and yaw as numbers; about the
    frame's axes, as the message's definition has it, it is the same while roll and pitch are small.

    Args:
        measurement: Of a pose or of velocities.
        unknown_var: The variance of axes that were not measured.

    Examples:
        >>> seen = hs.robotics.Measurement([1.0], [[0.25]], ("x",))
        >>> numbers = hs.robotics.ros_covariance(seen)
        >>> len(numbers), numbers[0], numbers[7]  # y was not measured
        (36, 0.25, 1000000.0)
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

    Examples:
        >>> cov = [[0.25, 0], [0, 0.04]]
        >>> seen = hs.robotics.Measurement([1.0, 0.0], cov, ("x", "yaw"))
        >>> covariance = hs.robotics.gtsam_covariance(seen)
        >>> float(covariance[2, 2]), float(covariance[3, 3])  # yaw, then x
        (0.04, 0.25)
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
    turn = rotation_matrix(roll, pitch, yaw) if rotation is None else _check_rotation(rotation)
    jacobian = np.zeros((6, 6))
    jacobian[:3, :3] = _angles_to_body(roll, pitch)
    jacobian[3:, 3:] = turn.T
    return pose.through(jacobian, GTSAM_POSE3).covariance


def gtsam_pose2_covariance(
    measurement: Measurement, *, unknown_var: float = UNKNOWN_VAR
) -> Array:  # (3, 3)
    """The covariance of a `gtsam.Pose2`: x and y along the body's axes, then the angle.

    Examples:
        >>> cov = [[0.25, 0], [0, 0.04]]
        >>> seen = hs.robotics.Measurement([1.0, 0.0], cov, ("x", "yaw"))
        >>> hs.robotics.gtsam_pose2_covariance(seen).diagonal().tolist()  # x, y, yaw
        [0.25, 1000000.0, 0.04]
    """
    pose = measurement.only(GTSAM_POSE2, "A planar pose")
    if "yaw" not in pose.axes:
        raise ValueError("Without a measured yaw, the body's axes are not known; measure it.")
    pose = pose.ordered(GTSAM_POSE2, unknown_var=unknown_var)
    jacobian = rotation_matrix(0.0, 0.0, pose["yaw"]).T
    return pose.through(jacobian, GTSAM_POSE2).covariance


def gtsam_noise(measurement: Measurement, **options: Any) -> Any:
    """The noise model of a factor on a `gtsam.Pose3`; options as in `gtsam_covariance`.

    Examples:
        >>> import gtsam  # of `pip install "howsure[robotics]"`
        >>> cov = [[0.25, 0], [0, 0.04]]
        >>> seen = hs.robotics.Measurement([1.0, 0.0], cov, ("x", "yaw"))
        >>> hs.robotics.gtsam_noise(seen).dim()
        6
    """
    gtsam = import_extra(
        "gtsam", "A noise model, unlike `gtsam_covariance`, needs GTSAM", "robotics"
    )
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
    """The rotation by roll, pitch and yaw as x, y, z, w."""
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


def _check_rotation(matrix: ArrayLike) -> Array:
    r = np.asarray(matrix, float)
    # Rotations out of float32 code are orthogonal to about 1e-6.
    is_orthogonal = r.shape == (3, 3) and np.abs(r @ r.T - np.eye(3)).max() < 1e-5
    if not (is_orthogonal and np.linalg.det(r) > 0):
        raise ValueError(f"`rotation` must be a 3 x 3 rotation matrix, not {r.tolist()}.")
    return r
