"""howsure tells how sure an already trained neural network is."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from howsure import calibrate as calibrate
    from howsure import metrics as metrics
    from howsure import noise as noise
    from howsure import plots as plots
    from howsure import robotics as robotics
    from howsure.arrays import batches as batches
    from howsure.auditing import audit as audit
    from howsure.auditing.check import check as check
    from howsure.auditing.check import missing_rules as missing_rules
    from howsure.auditing.check import trace as trace
    from howsure.data import distributed as distributed
    from howsure.data.scoring import predict_to_file as predict_to_file
    from howsure.deploy.export import export as export
    from howsure.deploy.gate import Gate as Gate
    from howsure.deploy.gate import blend as blend
    from howsure.detection import Detector as Detector
    from howsure.errors import HowsureWarning as HowsureWarning
    from howsure.errors import NoRuleError as NoRuleError
    from howsure.fit.training import train_adf as train_adf
    from howsure.fit.training import train_heteroscedastic as train_heteroscedastic
    from howsure.gaussian_output import Gaussian as Gaussian
    from howsure.graphs import Graphs as Graphs
    from howsure.methods.variance_head import add_variance_head as add_variance_head
    from howsure.moments.interpreter import propagate as propagate
    from howsure.moments.rule import Fidelity as Fidelity
    from howsure.moments.rule import rule as rule
    from howsure.moments.value import Moments as Moments
    from howsure.multipliers import Placement as Placement
    from howsure.prediction import Prediction as Prediction
    from howsure.report import this_module as report
    from howsure.uncertain import Ensemble as Ensemble
    from howsure.uncertain import Uncertain as Uncertain

# Where each public name lives. It is imported when it is first asked for, so that the command line
# can print its help without torch.
_HOMES = {
    "Detector": "howsure.detection",
    "Ensemble": "howsure.uncertain",
    "Fidelity": "howsure.moments.rule",
    "Gate": "howsure.deploy.gate",
    "Gaussian": "howsure.gaussian_output",
    "Graphs": "howsure.graphs",
    "HowsureWarning": "howsure.errors",
    "Moments": "howsure.moments.value",
    "NoRuleError": "howsure.errors",
    "Placement": "howsure.multipliers",
    "Prediction": "howsure.prediction",
    "Uncertain": "howsure.uncertain",
    "add_variance_head": "howsure.methods.variance_head",
    "audit": "howsure.auditing",
    "batches": "howsure.arrays",
    "blend": "howsure.deploy.gate",
    "check": "howsure.auditing.check",
    "export": "howsure.deploy.export",
    "missing_rules": "howsure.auditing.check",
    "predict_to_file": "howsure.data.scoring",
    "propagate": "howsure.moments.interpreter",
    # With howsure's own rules, so that a second one for an operation is noticed.
    "rule": "howsure.moments.rules",
    "trace": "howsure.auditing.check",
    "train_adf": "howsure.fit.training",
    "train_heteroscedastic": "howsure.fit.training",
}
_MODULES = {
    "calibrate": "howsure.calibrate",
    "distributed": "howsure.data.distributed",
    "metrics": "howsure.metrics",
    "noise": "howsure.noise",
    "plots": "howsure.plots",
    "report": "howsure.report",
    "robotics": "howsure.robotics",
}
# Names of version 0.1, and what takes their place.
_RENAMED = {
    "compat": "`howsure_lab.released`, in the package beside this one (`pip install ./lab`)",
    "dropout": "`howsure.multipliers`",
    "experiments": "`howsure_lab.experiments`, in the package beside this one",
    "reading": "`howsure.data.reading`",
    "registry": "`howsure.moments.rule`",
    "rules": "`howsure.moments.rules`",
    "score": "`howsure.predict_to_file`",
    "scoring": "`howsure.data.scoring`",
    "structure": "`howsure.trees`",
    "tune": "`howsure.fit`",
}

__all__ = [
    "Detector",
    "Ensemble",
    "Fidelity",
    "Gate",
    "Gaussian",
    "Graphs",
    "HowsureWarning",
    "Moments",
    "NoRuleError",
    "Placement",
    "Prediction",
    "Uncertain",
    "add_variance_head",
    "audit",
    "batches",
    "blend",
    "calibrate",
    "check",
    "distributed",
    "export",
    "metrics",
    "missing_rules",
    "noise",
    "plots",
    "predict_to_file",
    "propagate",
    "report",
    "robotics",
    "rule",
    "trace",
    "train_adf",
    "train_heteroscedastic",
]


def __getattr__(name: str) -> Any:
    """A public name, or a room; for one of an earlier version, an error that names the new one."""
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        found = import_module(_MODULES[name])
    elif name == "__version__":
        found = _version()
    elif name in _RENAMED:
        raise AttributeError(f"`howsure.{name}` is now {_RENAMED[name]}.")
    elif not name.startswith("_") and find_spec(f"howsure.{name}") is not None:
        found = import_module(f"howsure.{name}")
    else:
        raise AttributeError(f"module 'howsure' has no attribute {name!r}")
    globals()[name] = found
    return found


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("howsure")
    except PackageNotFoundError:  # run from its source
        return "unknown"


def __dir__() -> list[str]:
    """The public names, before and after they are imported."""
    return sorted(__all__)
