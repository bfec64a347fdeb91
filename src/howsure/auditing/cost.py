"""What each method costs: its time relative to a plain forward pass, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from howsure.auditing.measures import Estimate

Result = TypeVar("Result")


class Stopwatch:
    """Times methods, each with a plain pass before it, so that a busy machine slows both."""

    def __init__(self, plain: Callable[[], object]) -> None:
        self.plain = plain
        self.base: list[float] = []
        self.times: dict[str, list[float]] = {}
        plain()  # Not counted: the first pass of a process is slow.

    def timed(self, label: str, run: Callable[[], Result]) -> Result:
        """The result of `run`, with its time noted."""
        start = time.perf_counter()
        self.plain()
        between = time.perf_counter()
        result = run()
        self.base.append(between - start)
        self.times.setdefault(label, []).append(time.perf_counter() - between)
        return result

    def cost(self, label: str) -> Estimate:
        """Median time over median plain time; the interval is the range of all measurements.

        The first of several measurements is left out, since it may fill caches. The range of six
        holds the true median with 97 %, of three with 75 %.
        """
        times, unit = self.times[label], median(self.base)
        kept = times[1:] or times
        return Estimate(median(kept) / unit, min(kept) / unit, max(kept) / unit)
