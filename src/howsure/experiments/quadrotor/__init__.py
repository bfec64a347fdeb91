"""Table IV of the paper: a quadrotor that follows its network only as far as the network is sure."""
