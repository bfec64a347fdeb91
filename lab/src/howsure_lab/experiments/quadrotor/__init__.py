"""Table IV of the paper: a quadrotor follows its network only as far as the network is sure."""
