"""The example node's conversion, from a bag of images to poses, without ROS; and its package."""

import configparser
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

pytest.importorskip("rosbags")

from howsure import robotics
from robotics.ros import strict, typestore

PACKAGE = Path(__file__).parents[2] / "examples" / "howsure_pose"
NODE = runpy.run_path(str(PACKAGE / "howsure_pose" / "node.py"))
STORE = typestore()


def image(step=64):
    """A mono8 image whose rows are padded to `step` bytes, sent and received."""
    sent = robotics.blank(STORE, "sensor_msgs/msg/Image")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    sent.data = np.pad(pixels, ((0, 0), (0, step - 64)), constant_values=77).ravel()
    sent.height, sent.width, sent.step, sent.encoding = 64, 64, step, "mono8"
    sent.header.stamp.sec, sent.header.frame_id = 7, "camera"
    name = "sensor_msgs/msg/Image"
    return pixels, STORE.deserialize_cdr(STORE.serialize_cdr(sent, name), name)


@pytest.mark.parametrize("step", [64, 80])
def test_an_image_becomes_a_pose_with_the_networks_covariance(step):
    torch.manual_seed(0)
    sure, (pixels, received) = NODE["wrapped"](), image(step)
    name = "geometry_msgs/msg/PoseWithCovarianceStamped"
    filled = NODE["to_pose"](sure, received, robotics.blank(STORE, name))
    message = STORE.deserialize_cdr(STORE.serialize_cdr(filled, name), name)
    p = sure(torch.tensor(pixels / np.float32(255))[None, None])
    assert message.header.stamp.sec == 7 and message.header.frame_id == "camera"
    assert message.pose.pose.position.y == pytest.approx(float(p.mean[0, 1]), rel=1e-6)
    found = np.reshape(message.pose.covariance, (6, 6))
    here = np.ix_([0, 1, 5], [0, 1, 5])
    np.testing.assert_allclose(found[here], p.covariance[0].numpy(), rtol=1e-4)
    assert np.diag(found)[2:5].tolist() == [1e6] * 3
    np.linalg.cholesky(found)


def test_the_pose_is_one_that_rclpy_takes():
    """But for the header, which there is of rclpy's own class."""
    sure, (_, received) = NODE["wrapped"](), image()
    received.header = strict(STORE, "std_msgs/msg/Header")
    NODE["to_pose"](sure, received, strict(STORE, "geometry_msgs/msg/PoseWithCovarianceStamped"))


def test_an_image_of_another_encoding_is_refused():
    """Its bytes would pass for gray ones."""
    received = image(step=192)[1]
    received.encoding = "rgb8"
    with pytest.raises(ValueError, match="The image is rgb8"):
        NODE["to_pose"](NODE["wrapped"](), received, None)


def test_the_package_has_what_ament_python_needs(tmp_path):
    """One name everywhere, the marker of the index, and an executable that exists."""
    root = ElementTree.parse(PACKAGE / "package.xml").getroot()
    name = root.findtext("name")
    assert root.findtext("export/build_type") == "ament_python"
    assert (PACKAGE / "resource" / name).is_file() and (PACKAGE / name / "__init__.py").is_file()
    scripts = configparser.ConfigParser(interpolation=None)
    scripts.read(PACKAGE / "setup.cfg")
    assert scripts["install"]["install_scripts"] == f"$base/lib/{name}"
    command = [sys.executable, str(PACKAGE / "setup.py"), "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=PACKAGE, check=True, capture_output=True)
    entry = configparser.ConfigParser()
    entry.read(tmp_path / f"{name}.egg-info" / "entry_points.txt")
    module, function = entry["console_scripts"]["pose_node"].split(":")
    assert module == f"{name}.node" and callable(NODE[function])
