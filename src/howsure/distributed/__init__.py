"""Several processes at work on one data set, as started by `torchrun`."""

from howsure.distributed.evaluation import evaluate as evaluate
from howsure.distributed.fitting import fit as fit
