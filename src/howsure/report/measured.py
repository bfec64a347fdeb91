"""A metric's value, or why it has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from howsure.report.axes import short
from howsure.report.values import Metric

UNDEFINED = "–"


@dataclass(frozen=True)
class Measured:
    """A number, or `None` and the reason."""

    value: float | None
    reason: str = ""

    def metric(
        self, name: str, reading: Callable[[float], str], form: Callable[[float], str] = short
    ) -> Metric:
        """The number with its reading."""
        if self.value is None:
            return Metric(name, None, UNDEFINED, f"Not defined here: {self.reason}")
        return Metric(name, self.value, form(self.value), reading(self.value))


def measured(function: Callable[..., Any], *args: Any, **options: Any) -> Measured:
    """What a metric returns; its refusal becomes the reason, since a page has room to say why."""
    try:
        return Measured(float(function(*args, **options)))
    except ValueError as error:
        return Measured(None, str(error))
