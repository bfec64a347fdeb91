"""The variance of a network from its own gradients at a few noisy points; see docs/gradients.md."""

from howsure.gradients.estimate import Estimate as Estimate
from howsure.gradients.estimate import estimate as estimate
