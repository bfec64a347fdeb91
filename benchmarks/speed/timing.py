"""Times of calls that take turns: what disturbs the machine disturbs all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

Call = Callable[[], Any]
# A single measurement is at least this long; short calls are repeated within it.
_LEAST_SECONDS = 0.004


def seconds(call: Call, repeats: int = 1) -> float:
    """Processor time of one call: other processes that run in between do not count."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def fastest(calls: Mapping[str, Call], *, budget: float, rounds: int = 15) -> dict[str, float]:
    """The shortest time of every call, which other work on the machine changes least."""
    return {name: min(times) for name, times in all_times(calls, budget, rounds).items()}


def medians(calls: Mapping[str, Call], *, budget: float, rounds: int = 15) -> dict[str, float]:
    """The median time of every call."""
    return {name: median(times) for name, times in all_times(calls, budget, rounds).items()}


def all_times(calls: Mapping[str, Call], budget: float, rounds: int) -> dict[str, list[float]]:
    """The times of every call.

    Each round runs every call once, in the same order. The first round warms up and does not count;
    then there are at least 2 and at most `rounds` of them, as many as `budget` seconds allow.
    """
    repeats = {name: _repeats(seconds(call)) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= 2 and time.perf_counter() - start > budget:
            break
        for name, call in calls.items():
            found[name].append(seconds(call, repeats[name]))
    return found


def _repeats(first: float) -> int:
    """How often a call is repeated within a measurement, by what its first one took.

    The first one is slow, so this is too few rather than too many.
    """
    return max(1, math.ceil(_LEAST_SECONDS / max(first, 1e-7)))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size by least squares: 1 is linear."""
    x, y = [math.log(s) for s in sizes], [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)
