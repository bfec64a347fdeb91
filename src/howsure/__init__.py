"""howsure tells how sure an already trained neural network is."""

from howsure.check import check as check
from howsure.errors import NoRuleError as NoRuleError
from howsure.moments import Moments as Moments
from howsure.propagate import propagate as propagate
from howsure.registry import Fidelity as Fidelity
from howsure.registry import rule as rule
from howsure.survey import missing_rules as missing_rules
from howsure.trace import trace as trace
