"""The paper's experiments, each rebuilt by one command: `howsure reproduce steering`."""
