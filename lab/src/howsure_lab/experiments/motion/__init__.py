"""Table II of the paper: where an object moves next, and how sure a network is of it."""
