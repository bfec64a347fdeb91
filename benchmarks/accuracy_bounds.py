"""What must hold for the default's accuracy, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import markdown

DEFAULT, PLAIN = "gradients, 8 points", "plain network"
TOLERANCE, WITH_TOLERANCE = 0.05, "gradients, tolerance=0.05"
# Log error at most, rank correlation at least, error of the mean at most.
Bounds = tuple[float | None, float | None, float | None]
_RESNET: dict[str, Bounds] = {
    "2 gray levels": (0.03, 0.985, 0.20),
    "8 gray levels": (0.055, 0.975, 0.33),
    "0.1": (0.075, 0.93, 0.36),
}
_BOUNDS: dict[str, dict[str, Bounds]] = {
    "ResNet-20": _RESNET,
    "ResNet-32": _RESNET,
    "DroNet": {
        "2 gray levels": (0.045, 0.985, None),
        "8 gray levels": (0.07, 0.975, None),
        "0.1": (0.06, 0.94, None),
    },
    "ViT": {"2 gray levels": (0.015, 0.99, None), "8 gray levels": (0.035, 0.99, None)},
}
_TOP_CLASS: dict[str, Bounds] = {
    "ResNet-20, 2 gray levels, top class": (0.22, 0.98, None),
    "ResNet-20, 8 gray levels, top class": (0.33, 0.85, None),
}
_WITH_TOLERANCE: Bounds = (0.05, 0.98, None)
_MASK_RANKS = {
    "element": {"0.5%": 0.95, "2.0%": 0.95, "5.0%": 0.95},
    "channel": {"0.5%": 0.88, "2.0%": 0.88},
}
_MASK_RATIO = 0.1
_STATED = 1.3
_ACHIEVED = 1.2


@dataclass(frozen=True)
class Row:
    """A bound on a measure of a case; `holds` is `None` where it was not measured.

    Attributes:
        limit: What Monte Carlo itself allows: the rank of the exact std, or its own error.
    """

    case: str
    measure: str
    found: float | None
    least: float | None = None
    most: float | None = None
    limit: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether it does."""
        if self.found is None:
            return None
        is_above = self.least is None or self.found >= self.least
        return is_above and (self.most is None or self.found <= self.most)

    @property
    def bound(self) -> str:
        """As text."""
        if self.least is not None and self.most is not None:
            return f"{self.least:.2f} to {self.most:.2f}"
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


def rows(cases: Mapping[str, Any]) -> list[Row]:
    """Every bound with what was found."""

    def of(name: str, label: str, measure: str) -> float | None:
        return cases.get(name, {}).get(label, {}).get(measure)

    def three(name: str, label: str, bounds: Bounds) -> list[Row]:
        log_error, rank, mean = bounds
        own, highest = of(name, PLAIN, "own_error"), of(name, PLAIN, "rank_limit")
        found = [
            Row(name, "log error", of(name, label, "log_error"), None, log_error, own),
            Row(name, "rank", of(name, label, "rank"), rank, None, highest),
            Row(name, "mean error", of(name, label, "mean_error"), most=mean),
        ]
        return [row for row in found if (row.least, row.most) != (None, None)]

    named = {f"{net}, {n}": b for net, own in _BOUNDS.items() for n, b in own.items()}
    found = []
    for name, bounds in {**named, **_TOP_CLASS}.items():
        found += three(name, DEFAULT, bounds)
    for name in (f"{net}, {std}" for net in ("LSTM", "MLP") for std in (0.05, 0.2, 0.5)):
        found += three(name, WITH_TOLERANCE, _WITH_TOLERANCE)
        achieved = of(name, WITH_TOLERANCE, "actual_error")
        found.append(Row(name, "achieved error", achieved, most=_ACHIEVED * TOLERANCE))
    for units, ranks in _MASK_RANKS.items():
        for rate, rank in ranks.items():
            name = f"ResNet-20, {units}-wise dropout {rate}"
            highest = of(name, PLAIN, "rank_limit")
            found.append(Row(name, "rank", of(name, DEFAULT, "rank"), rank, limit=highest))
            ratio = of(name, DEFAULT, "ratio")
            found.append(Row(name, "std ratio", ratio, 1 - _MASK_RATIO, 1 + _MASK_RATIO))
    return found + [_stated(name, case) for name, case in cases.items()]


def _stated(name: str, case: Mapping[str, Any]) -> Row:
    """The stated standard error against the actual one.

    An actual error below that of Monte Carlo is not known; only that it is no larger.
    """
    row = case.get(WITH_TOLERANCE) or case[DEFAULT]
    least = case.get(PLAIN, {}).get("own_error") or 0.0
    stated, actual = row["stated_error"], row["actual_error"]
    if actual > least:
        ratio = stated / actual
        return Row(name, "stated / actual error", ratio, 1 / _STATED, _STATED, least or None)
    ratio = stated / least if least else None
    return Row(name, "stated error / Monte Carlo error", ratio, most=_STATED, limit=least)


def report(found: list[Row]) -> str:
    """One line for each bound."""
    marks = {True: "ok  ", False: "MISS", None: "    "}
    lines = [
        f"{marks[row.holds]} {row.case}: {row.measure} {_number(row.found)} ({row.bound})"
        for row in found
    ]
    missed = sum(row.holds is False for row in found)
    return "\n".join([*lines, f"{missed} of {len(found)} bounds are missed."])


def table(found: list[Row]) -> str:
    """As a Markdown table."""
    marks = {True: "yes", False: "**no**", None: ""}
    rows = []
    for row in found:
        limit = "" if row.limit is None else f"{row.limit:.3f}"
        measured = (row.case, row.measure, _number(row.found))
        rows.append((*measured, row.bound, limit, marks[row.holds]))
    return markdown(("case", "measure", "found", "bound", "Monte Carlo", "holds"), rows)


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
