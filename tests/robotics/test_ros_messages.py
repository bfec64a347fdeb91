"""Measurements in ROS messages: filled, written to a bag, and read back from it."""

import functools

import numpy as np
import pytest

pytest.importorskip("rosbags")

from rosbags.rosbag2 import Reader, StoragePlugin, Writer

from howsure import robotics
from howsure.robotics import Measurement, blank
from howsure.robotics.axes import ROS_POSE, ROS_TWIST, rotation_matrix
from howsure.robotics.messages import BOX, IMU
from robotics.ros import strict, typestore

STORE = typestore()
KINDS = pytest.mark.parametrize("make", [blank, strict], ids=["rosbags", "rclpy"])
POSE = "geometry_msgs/msg/PoseWithCovarianceStamped"


def drawn(axes, seed=0):
    random = np.random.default_rng(seed)
    root = random.normal(size=(len(axes), len(axes)))
    covariance = root @ root.T + 0.1 * np.eye(len(axes))
    return Measurement(random.uniform(-1, 1, len(axes)), covariance, tuple(axes))


def header(make, seconds=12, frame="map"):
    made = make(STORE, "std_msgs/msg/Header")
    made.stamp.sec, made.frame_id = seconds, frame
    return made


def six(message):
    return np.reshape(message.covariance, (6, 6))


def xyz(vector):
    return [vector.x, vector.y, vector.z]


def turn(q):
    """The rotation matrix of a quaternion, written out (Shuster 1993)."""
    v, w = np.array([q.x, q.y, q.z]), q.w
    cross = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
    return (w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross


@KINDS
def test_a_pose(make):
    m, message = drawn(ROS_POSE), make(STORE, POSE)
    assert robotics.fill_pose(message, m, header=header(make)) is message
    assert message.header.frame_id == "map" and message.header.stamp.sec == 12
    assert xyz(message.pose.pose.position) == m.mean[:3].tolist()
    np.testing.assert_allclose(
        turn(message.pose.pose.orientation), rotation_matrix(*m.mean[3:]), atol=1e-12
    )
    np.testing.assert_array_equal(six(message.pose), m.covariance)


@KINDS
def test_a_pose_of_which_part_was_measured(make):
    m = drawn(("yaw", "x"))
    message = make(STORE, "geometry_msgs/msg/PoseWithCovariance")
    message.pose.position.z = 3.0
    robotics.fill_pose(message, m, unknown_var=99.0)
    assert xyz(message.pose.position) == [m["x"], 0, 3]
    np.testing.assert_allclose(
        turn(message.pose.orientation), rotation_matrix(0, 0, m["yaw"]), atol=1e-12
    )
    assert np.diag(six(message)).tolist() == [
        m.covariance[1, 1],
        *[99.0] * 4,
        m.covariance[0, 0],
    ]
    assert six(message)[0, 5] == m.covariance[0, 1] != 0


def test_an_orientation_that_was_not_measured_stays():
    message = blank(STORE, "geometry_msgs/msg/PoseWithCovariance")
    message.pose.orientation.x, message.pose.orientation.w = 1.0, 0.0
    robotics.fill_pose(message, drawn(("x", "y")))
    assert (message.pose.orientation.x, message.pose.orientation.w) == (1, 0)


@KINDS
@pytest.mark.parametrize("name", ["TwistWithCovariance", "TwistWithCovarianceStamped"])
def test_a_twist(make, name):
    m, message = drawn(ROS_TWIST), make(STORE, f"geometry_msgs/msg/{name}")
    robotics.fill_twist(message, m)
    inner = message if name == "TwistWithCovariance" else message.twist
    assert xyz(inner.twist.linear) + xyz(inner.twist.angular) == m.mean.tolist()
    np.testing.assert_array_equal(six(inner), m.covariance)


@KINDS
def test_an_odometry(make):
    m, message = drawn(("vx", "x", "yaw", "wz")), make(STORE, "nav_msgs/msg/Odometry")
    robotics.fill_odometry(message, m, header=header(make))
    assert message.pose.pose.position.x == m["x"] and message.twist.twist.angular.z == m["wz"]
    assert np.diag(six(message.pose)).tolist()[::5] == [m.covariance[1, 1], m.covariance[2, 2]]
    assert six(message.twist)[0, 5] == m.covariance[0, 3]
    only_speed = robotics.fill_odometry(make(STORE, "nav_msgs/msg/Odometry"), drawn(("vx",)))
    np.testing.assert_array_equal(six(only_speed.pose), 1e6 * np.eye(6))


@KINDS
def test_an_inertial_reading(make):
    m, message = drawn(("wx", "wy", "wz", "ax")), make(STORE, "sensor_msgs/msg/Imu")
    robotics.fill_imu(message, m)
    assert xyz(message.angular_velocity) == m.mean[:3].tolist()
    np.testing.assert_array_equal(
        np.reshape(message.angular_velocity_covariance, (3, 3)), m.covariance[:3, :3]
    )
    assert list(message.linear_acceleration_covariance)[::4] == [m.covariance[3, 3], 1e6, 1e6]
    assert message.orientation_covariance[0] == -1  # "no estimate", says Imu.msg
    whole = robotics.fill_imu(make(STORE, "sensor_msgs/msg/Imu"), drawn(IMU, 1))
    np.testing.assert_allclose(
        turn(whole.orientation), rotation_matrix(*drawn(IMU, 1).mean[:3]), atol=1e-12
    )


def detections(make):
    hypothesis = functools.partial(make, STORE, "vision_msgs/msg/ObjectHypothesisWithPose")
    filled = [
        robotics.fill_detection(
            make(STORE, "vision_msgs/msg/Detection2D"),
            drawn(BOX, seed),
            {"cone": 0.75, "barrel": np.float32(0.25)},
            hypothesis=hypothesis,
        )
        for seed in (0, 1)
    ]
    message = make(STORE, "vision_msgs/msg/Detection2DArray")
    return robotics.fill_detections(message, filled, header=header(make, frame="camera"))


@KINDS
def test_detections(make):
    message = detections(make)
    second, m = message.detections[1], drawn(BOX, 1)
    box = second.bbox
    assert [box.center.position.x, box.center.position.y] == m.mean[:2].tolist()
    assert [box.size_x, box.size_y] == m.mean[2:].tolist()
    found = [(r.hypothesis.class_id, r.hypothesis.score) for r in second.results]
    assert found == [("cone", 0.75), ("barrel", 0.25)]
    for result in second.results:
        np.testing.assert_array_equal(six(result.pose)[:2, :2], m.covariance[:2, :2])
        assert np.diag(six(result.pose)).tolist()[2:] == [1e6] * 4


@pytest.mark.parametrize("plugin", StoragePlugin)
def test_a_bag_is_written_and_read_back(tmp_path, plugin):
    sent = {
        "/pose": robotics.fill_pose(blank(STORE, POSE), drawn(ROS_POSE), header=header(blank)),
        "/odom": robotics.fill_odometry(
            blank(STORE, "nav_msgs/msg/Odometry"), drawn(ROS_POSE + ROS_TWIST)
        ),
        "/imu": robotics.fill_imu(blank(STORE, "sensor_msgs/msg/Imu"), drawn(IMU)),
        "/cones": detections(blank),
    }
    with Writer(tmp_path / "bag", version=9, storage_plugin=plugin) as writer:
        for topic, message in sent.items():
            name = message.__msgtype__
            connection = writer.add_connection(topic, name, typestore=STORE)
            writer.write(connection, 12_000_000_000, STORE.serialize_cdr(message, name))
    with Reader(tmp_path / "bag") as reader:
        read = {c.topic: STORE.deserialize_cdr(raw, c.msgtype) for c, _, raw in reader.messages()}
    assert read.keys() == sent.keys()
    np.testing.assert_array_equal(six(read["/pose"].pose), drawn(ROS_POSE).covariance)
    whole = drawn(ROS_POSE + ROS_TWIST).covariance
    np.testing.assert_array_equal(six(read["/odom"].twist), whole[6:, 6:])
    np.testing.assert_array_equal(
        np.reshape(read["/imu"].linear_acceleration_covariance, (3, 3)),
        drawn(IMU).covariance[6:, 6:],
    )
    result = read["/cones"].detections[1].results[1]
    assert result.hypothesis.score == 0.25 and read["/cones"].header.frame_id == "camera"
    np.testing.assert_array_equal(six(result.pose)[:2, :2], drawn(BOX, 1).covariance[:2, :2])


def test_every_type_of_the_store_has_a_blank_that_can_be_sent():
    """Serialized and read back, it is the same."""
    assert len(STORE.types) > 100
    for name in STORE.types:
        message = blank(STORE, name)
        again = STORE.deserialize_cdr(STORE.serialize_cdr(message, name), name)
        assert str(again) == str(message)


def test_a_blank_quaternion_is_no_rotation():
    assert blank(STORE, "geometry_msgs/msg/Quaternion").w == 1


MISTAKES = {
    "wrong message": (robotics.fill_pose, "sensor_msgs/msg/Imu", ("x",), "has no field `pose`"),
    "pose as twist": (robotics.fill_twist, POSE, ("vx",), "has no field `twist`"),
    "odometry": (robotics.fill_odometry, POSE, ("vx",), "has no field `twist`"),
    "imu": (robotics.fill_imu, POSE, ("wx",), "has no field `angular_velocity`"),
    "misspelt": (robotics.fill_pose, POSE, ("X",), "A pose has the axes"),
    "twist axis": (robotics.fill_twist, "geometry_msgs/msg/TwistWithCovariance", ("x",), "A twist"),
    "odometry axis": (robotics.fill_odometry, "nav_msgs/msg/Odometry", ("ax",), "An odometry"),
    "imu axis": (robotics.fill_imu, "sensor_msgs/msg/Imu", ("x",), "An inertial reading"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    fill, name, axes, message = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError), match=message):
        fill(blank(STORE, name), drawn(axes))


def test_a_header_needs_a_place():
    with pytest.raises(TypeError, match="has no field `header`"):
        message = blank(STORE, "geometry_msgs/msg/PoseWithCovariance")
        robotics.fill_pose(message, drawn(("x",)), header=header(blank))


def test_an_unknown_type_is_named():
    with pytest.raises(ValueError, match="The typestore has no `my_msgs/msg/Mine`; register"):
        blank(STORE, "my_msgs/msg/Mine")


def test_a_box_needs_all_its_numbers():
    with pytest.raises(ValueError, match=r"\['height'\] is not among the axes"):
        robotics.fill_detection(
            blank(STORE, "vision_msgs/msg/Detection2D"),
            drawn(BOX[:3]),
            {},
            hypothesis=lambda: None,
        )
