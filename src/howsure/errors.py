"""The error for an operation whose variance howsure does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NoRuleError(NotImplementedError):
    """An operation met a Gaussian and has no moment rule, or none that makes sense.

    Attributes:
        operation: The torch operation, once the error has left the rule.
        reason: Why there is no rule and what to do, without the place.
    """

    operation: Callable[..., Any]
    reason: str
