"""howsure tells how sure an already trained neural network is."""

from howsure import metrics as metrics
from howsure import noise as noise
from howsure.check import check as check
from howsure.dropout import Placement as Placement
from howsure.errors import NoRuleError as NoRuleError
from howsure.moments import Moments as Moments
from howsure.prediction import Prediction as Prediction
from howsure.propagate import propagate as propagate
from howsure.registry import Fidelity as Fidelity
from howsure.registry import rule as rule
from howsure.survey import missing_rules as missing_rules
from howsure.trace import trace as trace
from howsure.uncertain import Uncertain as Uncertain
