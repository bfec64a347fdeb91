# The public names and where they live, for type checkers and, at run time, for `__init__.py`.
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
from howsure.gaussian_output import Gaussian as Gaussian
from howsure.graphs import Graphs as Graphs
from howsure.methods.variance_head import add_variance_head as add_variance_head
from howsure.moments.interpreter import propagate as propagate
from howsure.moments.rule import Fidelity as Fidelity
from howsure.moments.rules import rule as rule  # with the package's own, so that doubles show
from howsure.moments.value import Moments as Moments
from howsure.multipliers import Placement as Placement
from howsure.prediction import Prediction as Prediction
from howsure.report import report as report
from howsure.uncertain import Ensemble as Ensemble
from howsure.uncertain import Uncertain as Uncertain

__version__: str
__all__: list[str]
