"""A ROS 2 node that publishes poses with the covariance of a network."""
