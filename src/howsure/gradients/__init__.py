"""The variance of a network from its own gradients at a few noisy points; see docs/gradients.md."""
