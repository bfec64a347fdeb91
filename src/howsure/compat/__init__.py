"""The formulas of the authors' released code, only to compare with; see docs/migrating.md."""

from howsure.compat.checkpoints import load_checkpoint as load_checkpoint
from howsure.compat.formulas import released_rules as released_rules
from howsure.compat.scores import released_nll as released_nll
from howsure.compat.scores import released_options as released_options
