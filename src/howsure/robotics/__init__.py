"""Predictions on robots: named covariances, ROS messages, GTSAM, streams; see docs/robots.md."""

from howsure.robotics.axes import CORRELATION_FLOOR as CORRELATION_FLOOR
from howsure.robotics.axes import GTSAM_POSE2 as GTSAM_POSE2
from howsure.robotics.axes import GTSAM_POSE3 as GTSAM_POSE3
from howsure.robotics.axes import ROS_POSE as ROS_POSE
from howsure.robotics.axes import ROS_TWIST as ROS_TWIST
from howsure.robotics.axes import UNKNOWN_VAR as UNKNOWN_VAR
from howsure.robotics.axes import VAR_FLOOR as VAR_FLOOR
from howsure.robotics.axes import Measurement as Measurement
from howsure.robotics.axes import gtsam_covariance as gtsam_covariance
from howsure.robotics.axes import gtsam_noise as gtsam_noise
from howsure.robotics.axes import gtsam_pose2_covariance as gtsam_pose2_covariance
from howsure.robotics.axes import measurement as measurement
from howsure.robotics.axes import ros_covariance as ros_covariance
from howsure.robotics.messages import blank as blank
from howsure.robotics.messages import fill_detection as fill_detection
from howsure.robotics.messages import fill_detections as fill_detections
from howsure.robotics.messages import fill_imu as fill_imu
from howsure.robotics.messages import fill_odometry as fill_odometry
from howsure.robotics.messages import fill_pose as fill_pose
from howsure.robotics.messages import fill_twist as fill_twist
from howsure.robotics.streams import AdaptiveConformal as AdaptiveConformal
