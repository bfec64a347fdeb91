"""A small trained network that reads digits: what the documentation measures on."""
