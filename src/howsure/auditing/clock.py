"""The time that an audit may take."""

from __future__ import annotations

import math
import time


class Clock:
    """Seconds since the audit began, against its time limit; `None` for no limit."""

    def __init__(self, limit: float | None) -> None:
        self.limit = math.inf if limit is None else limit
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time spent so far."""
        return time.perf_counter() - self.start

    def past(self, share: float) -> bool:
        """Whether this share of the time is spent."""
        return self.seconds >= share * self.limit
