"""A wrapped model on its way to the robot: compiled, exported, behind a gate."""
