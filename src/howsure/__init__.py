"""howsure tells how sure an already trained neural network is."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from howsure import calibrate as calibrate
    from howsure import distributed as distributed
    from howsure import metrics as metrics
    from howsure import noise as noise
    from howsure import plots as plots
    from howsure import report as report
    from howsure.auditing import audit as audit
    from howsure.checking import check as check
    from howsure.dropout import Placement as Placement
    from howsure.ensemble import Ensemble as Ensemble
    from howsure.errors import NoRuleError as NoRuleError
    from howsure.exporting import export as export
    from howsure.gate import Gate as Gate
    from howsure.gate import blend as blend
    from howsure.heteroscedastic import add_variance_head as add_variance_head
    from howsure.moments import Moments as Moments
    from howsure.prediction import Prediction as Prediction
    from howsure.propagation import propagate as propagate
    from howsure.registry import Fidelity as Fidelity
    from howsure.registry import rule as rule
    from howsure.scoring import score as score
    from howsure.survey import missing_rules as missing_rules
    from howsure.tracing import trace as trace
    from howsure.training import train_adf as train_adf
    from howsure.training import train_heteroscedastic as train_heteroscedastic
    from howsure.uncertain import Uncertain as Uncertain

# Where each name lives. It is imported when it is first asked for, so that the command line can
# print its help without torch.
_HOMES = {
    "audit": "howsure.auditing",
    "check": "howsure.checking",
    "Placement": "howsure.dropout",
    "Ensemble": "howsure.ensemble",
    "NoRuleError": "howsure.errors",
    "export": "howsure.exporting",
    "Gate": "howsure.gate",
    "blend": "howsure.gate",
    "add_variance_head": "howsure.heteroscedastic",
    "Moments": "howsure.moments",
    "Prediction": "howsure.prediction",
    "propagate": "howsure.propagation",
    "Fidelity": "howsure.registry",
    "rule": "howsure.rules",  # with howsure's own, so that a second rule for an operation is seen
    "score": "howsure.scoring",
    "missing_rules": "howsure.survey",
    "trace": "howsure.tracing",
    "train_adf": "howsure.training",
    "train_heteroscedastic": "howsure.training",
    "Uncertain": "howsure.uncertain",
}


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package."""
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"howsure.{name}") is not None:
        return import_module(f"howsure.{name}")
    raise AttributeError(f"module 'howsure' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names too, before they are imported."""
    return sorted({*globals(), *_HOMES})
