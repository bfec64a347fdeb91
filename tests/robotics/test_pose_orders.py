"""Poses for ROS and GTSAM, against GTSAM itself."""

import sys

import numpy as np
import pytest

from howsure import robotics
from howsure.robotics import Measurement
from howsure.robotics.axes import quaternion, rotation_matrix

POSE = ("x", "y", "z", "roll", "pitch", "yaw")
with_gtsam = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="gtsam has no wheel for Python 3.10"
)


def pose(seed=0, spread=1.0):
    random = np.random.default_rng(seed)
    root = spread * random.normal(size=(6, 6))
    mean = np.concatenate([random.normal(size=3), random.uniform(-1.2, 1.2, 3)])
    return Measurement(mean, root @ root.T + 0.01 * spread**2 * np.eye(6), POSE)


def test_ros_has_positions_first_row_by_row():
    m = pose()
    flat = robotics.ros_covariance(m.ordered(("yaw", "z", "pitch", "x", "roll", "y")))
    assert len(flat) == 36 and all(type(value) is float for value in flat)
    np.testing.assert_array_equal(np.reshape(flat, (6, 6)), m.covariance)


def test_what_was_not_measured_has_the_stated_variance():
    m = Measurement(np.array([1.0, 2.0]), np.array([[4.0, 1.0], [1.0, 9.0]]), ("y", "yaw"))
    found = np.reshape(robotics.ros_covariance(m), (6, 6))
    assert np.diag(found).tolist() == [1e6, 4, 1e6, 1e6, 1e6, 9]
    assert found[1, 5] == found[5, 1] == 1 and np.count_nonzero(found) == 8
    narrow = np.reshape(robotics.ros_covariance(m, unknown_var=7.0), (6, 6))
    assert np.diag(narrow).tolist() == [7, 4, 7, 7, 7, 9]


def test_velocities_are_known_by_their_names():
    m = Measurement(np.zeros(2), np.diag([1.0, 2.0]), ("wz", "vx"))
    found = np.reshape(robotics.ros_covariance(m), (6, 6))
    assert np.diag(found).tolist() == [2, 1e6, 1e6, 1e6, 1e6, 1]


@pytest.mark.parametrize("axes", [("x", "Yaw"), ("x", "vx")])
def test_an_axis_that_a_pose_does_not_have_is_refused(axes):
    m = Measurement(np.zeros(2), np.eye(2), axes)
    for convert in (robotics.ros_covariance, robotics.gtsam_covariance):
        with pytest.raises(ValueError, match=rf"A pose has the axes .* not \['{axes[1]}'\]"):
            convert(m)


def test_gtsam_has_rotations_first():
    """Without a rotation, the order is all that differs."""
    m = pose()
    flat = Measurement(np.zeros(6), m.covariance, POSE)
    order = [3, 4, 5, 0, 1, 2]
    np.testing.assert_allclose(
        robotics.gtsam_covariance(flat), m.covariance[np.ix_(order, order)], rtol=1e-12
    )


def as_gtsam(values):
    import gtsam

    x, y, z, roll, pitch, yaw = values
    return gtsam.Pose3(gtsam.Rot3.RzRyRx(roll, pitch, yaw), np.array([x, y, z]))


@with_gtsam
@pytest.mark.parametrize("seed", range(5))
def test_a_pose_in_gtsam_moves_as_its_covariance_says(seed):
    """The covariance of localCoordinates, by GTSAM's own derivative of them."""
    pytest.importorskip("gtsam")
    m, step = pose(seed), 1e-6
    here = as_gtsam(m.mean)
    columns = [
        (
            here.localCoordinates(as_gtsam(m.mean + step * e))
            - here.localCoordinates(as_gtsam(m.mean - step * e))
        )
        / (2 * step)
        for e in np.eye(6)
    ]
    jacobian = np.stack(columns, 1)
    expected = jacobian @ m.covariance @ jacobian.T
    np.testing.assert_allclose(robotics.gtsam_covariance(m), expected, rtol=1e-6, atol=1e-8)
    # What a mere change of order gives is far from it.
    order = [3, 4, 5, 0, 1, 2]
    assert np.abs(m.covariance[np.ix_(order, order)] - expected).max() > 0.1


@with_gtsam
def test_a_factor_graph_returns_the_covariance_that_it_was_given():
    gtsam = pytest.importorskip("gtsam")
    m, key = pose(3, spread=0.1), 1
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    graph.add(gtsam.PriorFactorPose3(key, as_gtsam(m.mean), robotics.gtsam_noise(m)))
    values.insert(key, as_gtsam(m.mean))
    found = gtsam.Marginals(graph, values).marginalCovariance(key)
    np.testing.assert_allclose(found, robotics.gtsam_covariance(m), rtol=1e-6, atol=1e-10)


@with_gtsam
def test_a_factor_graph_weighs_two_networks_by_their_covariances():
    """One knows x well and the other y; the estimate takes each from the one that knows it."""
    gtsam = pytest.importorskip("gtsam")
    axes, graph, values = ("x", "y", "yaw"), gtsam.NonlinearFactorGraph(), gtsam.Values()
    means = [np.array([1.0, 5.0, 0.7]), np.array([3.0, 2.0, 0.7])]
    stds = [np.array([0.01, 1.0, 0.01]), np.array([1.0, 0.01, 0.01])]
    for mean, std in zip(means, stds, strict=True):
        m = Measurement(mean, np.diag(std**2), axes)
        noise = gtsam.noiseModel.Gaussian.Covariance(robotics.gtsam_pose2_covariance(m))
        graph.add(gtsam.PriorFactorPose2(1, gtsam.Pose2(*mean), noise))
    values.insert(1, gtsam.Pose2(2.0, 3.0, 0.7))
    found = gtsam.LevenbergMarquardtOptimizer(graph, values).optimize().atPose2(1)
    # (1 / 1e-4 + 3 / 1) / (1 / 1e-4 + 1): the precision-weighted mean, in the parent's frame.
    assert found.x() == pytest.approx((1e4 * 1 + 3) / (1e4 + 1), abs=1e-6)
    assert found.y() == pytest.approx((5 + 1e4 * 2) / (1e4 + 1), abs=1e-6)


@with_gtsam
def test_rotations_are_those_of_gtsam():
    gtsam = pytest.importorskip("gtsam")
    for roll, pitch, yaw in np.random.default_rng(0).uniform(-1.5, 1.5, (20, 3)):
        turn = gtsam.Rot3.RzRyRx(roll, pitch, yaw)
        np.testing.assert_allclose(rotation_matrix(roll, pitch, yaw), turn.matrix(), atol=1e-12)
        theirs = turn.toQuaternion()
        theirs = np.array([theirs.x(), theirs.y(), theirs.z(), theirs.w()])
        ours = quaternion(roll, pitch, yaw)
        np.testing.assert_allclose(ours, theirs * np.sign(ours @ theirs), atol=1e-12)


def test_positions_alone_need_to_know_how_the_body_is_turned():
    m = Measurement(np.zeros(3), np.diag([1.0, 4.0, 9.0]), ("x", "y", "z"))
    with pytest.raises(ValueError, match="`rotation` is missing"):
        robotics.gtsam_covariance(m)
    quarter = rotation_matrix(0, 0, np.pi / 2)
    found = robotics.gtsam_covariance(m, rotation=quarter)
    # The body's x axis is the parent's y axis.
    np.testing.assert_allclose(np.diag(found), [1e6, 1e6, 1e6, 4, 1, 9], rtol=1e-12)
    with pytest.raises(ValueError, match="`rotation` is given"):
        robotics.gtsam_covariance(pose(), rotation=np.eye(3))
    for wrong in (2 * np.eye(3), np.diag([1, 1, -1]), np.eye(2)):
        with pytest.raises(ValueError, match="3 x 3 rotation matrix"):
            robotics.gtsam_covariance(m, rotation=wrong)


def test_a_planar_pose_needs_its_angle():
    with pytest.raises(ValueError, match="Without a measured yaw"):
        robotics.gtsam_pose2_covariance(Measurement(np.zeros(2), np.eye(2), ("x", "y")))


def test_upright_poses_where_angles_lose_their_meaning_are_refused():
    mean = np.array([0, 0, 0, 0, np.pi / 2, 0])
    with pytest.raises(ValueError, match="roll and yaw turn about the same axis"):
        robotics.gtsam_covariance(Measurement(mean, np.eye(6), POSE))


def test_without_gtsam_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gtsam", None)
    with pytest.raises(ImportError, match=r"pip install 'howsure\[robotics\]'"):
        robotics.gtsam_noise(pose())
