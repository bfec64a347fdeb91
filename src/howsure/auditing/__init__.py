"""Checks every method against Monte Carlo, on the user's own network and inputs."""

from howsure.auditing.measures import Estimate as Estimate
from howsure.auditing.measures import Measures as Measures
from howsure.auditing.result import Audit as Audit
from howsure.auditing.result import AuditRow as AuditRow
from howsure.auditing.result import LayerRow as LayerRow
from howsure.auditing.result import Recommendation as Recommendation
from howsure.auditing.run import audit as audit
