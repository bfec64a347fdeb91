"""Laws that every moment rule satisfies, for howsure's own rules and for yours."""

from howsure.testing.laws import LAWS as LAWS
from howsure.testing.laws import applies as applies
from howsure.testing.laws import check_rule as check_rule
