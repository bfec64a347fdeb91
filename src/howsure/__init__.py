"""howsure tells how sure an already trained neural network is."""

from howsure import calibrate as calibrate
from howsure import distributed as distributed
from howsure import metrics as metrics
from howsure import noise as noise
from howsure import plots as plots
from howsure import report as report
from howsure.auditing import audit as audit
from howsure.check import check as check
from howsure.dropout import Placement as Placement
from howsure.ensemble import Ensemble as Ensemble
from howsure.errors import NoRuleError as NoRuleError
from howsure.exporting import export as export
from howsure.gate import Gate as Gate
from howsure.gate import blend as blend
from howsure.heteroscedastic import add_variance_head as add_variance_head
from howsure.moments import Moments as Moments
from howsure.prediction import Prediction as Prediction
from howsure.propagate import propagate as propagate
from howsure.registry import Fidelity as Fidelity
from howsure.registry import rule as rule
from howsure.scoring import score as score
from howsure.survey import missing_rules as missing_rules
from howsure.trace import trace as trace
from howsure.training import train_adf as train_adf
from howsure.training import train_heteroscedastic as train_heteroscedastic
from howsure.uncertain import Uncertain as Uncertain
