"""A ROS 2 node: camera images in, poses with the network's own covariance out.

`to_pose` is all that howsure adds to a node, and runs without ROS; `main` needs rclpy. The network
reads x, y (meters) and yaw (radians) from a gray image of 64 x 64 pixels; its weights are random:
put your own in its place, with the noise of your camera. What it does not measure (z, roll, pitch)
is published with a variance of 1e6.

In a workspace where ROS 2 is sourced: `pip install howsure`, copy the folder `howsure_pose` to
`src/`, `colcon build`, `source install/setup.bash`, `ros2 run howsure_pose pose_node`.
"""

import numpy as np
import torch
from torch import nn

import howsure as hs

AXES = ("x", "y", "yaw")  # what the network's outputs are


def wrapped() -> hs.Uncertain:
    """The network with its camera's noise: 2 gray levels of 255."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, 32), nn.ReLU(), nn.Linear(32, 3))
    return hs.Uncertain(model.eval(), hs.noise.gray_levels(2))


def to_pose(sure, image, message):
    """The given `PoseWithCovarianceStamped`, filled from an `Image` (mono8), at its time."""
    if image.encoding != "mono8":
        raise ValueError(f"The image is {image.encoding}; this node reads mono8.")
    rows = np.frombuffer(image.data, np.uint8).reshape(image.height, image.step)
    gray = torch.from_numpy(rows[:, : image.width] / np.float32(255))[None, None]
    seen = hs.robotics.measurement(sure(gray), AXES)
    return hs.robotics.fill_pose(message, seen, header=image.header)


def main() -> None:
    import rclpy
    from geometry_msgs.msg import PoseWithCovarianceStamped
    from sensor_msgs.msg import Image

    rclpy.init()
    node, sure = rclpy.create_node("howsure"), wrapped()
    poses = node.create_publisher(PoseWithCovarianceStamped, "pose", 10)
    node.create_subscription(
        Image, "image", lambda i: poses.publish(to_pose(sure, i, PoseWithCovarianceStamped())), 1
    )
    rclpy.spin(node)


if __name__ == "__main__":
    main()
