"""The time that an audit may take."""

from __future__ import annotations

import math
import time


class Clock:
    """Seconds since the audit began, against its budget; `None` for no limit."""

    def __init__(self, budget: float | None) -> None:
        self.budget = math.inf if budget is None else budget
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return time.perf_counter() - self.start

    def past(self, share: float) -> bool:
        """Whether this share of the budget is spent."""
        return self.seconds >= share * self.budget
