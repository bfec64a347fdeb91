"""Several processes at work on one data set, as started by `torchrun`."""

from howsure.data.distributed.evaluation import evaluate as evaluate
from howsure.data.distributed.sharing import fit as fit
