"""The formulas of the authors' released code, only to compare with; see docs/migrating.md."""

from howsure_lab.released.formulas import released_rules as released_rules
from howsure_lab.released.scores import released_nll as released_nll
from howsure_lab.released.scores import released_options as released_options
