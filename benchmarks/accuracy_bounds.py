"""What must hold for the default's accuracy, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        least = -float("inf") if self.least is None else self.least
        most = float("inf") if self.most is None else self.most
        return least <= self.found <= most

    @property
    def bound(self) -> str:
        """As text."""
        if self.least is not None and self.most is not None:
            return f"{self.least:.2f} to {self.most:.2f}"
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


def rows(cases: Mapping[str, Any]) -> list[Row]:
    """Every bound with what was found."""
    named = {
        **{f"{net}, {n}": b for net, own in _BOUNDS.items() for n, b in own.items()},
        **_TOP_CLASS,
    }
    found = [row for name, bounds in named.items() for row in _three(cases, name, DEFAULT, bounds)]
    for name in (f"{net}, {std}" for net in ("LSTM", "MLP") for std in (0.05, 0.2, 0.5)):
        found += _three(cases, name, WITH_TOLERANCE, _WITH_TOLERANCE)
        achieved = _of(cases, name, WITH_TOLERANCE, "actual_error")
        found.append(Row(name, "achieved error", achieved, most=_ACHIEVED * TOLERANCE))
    return [*found, *_masks(cases), *_stated(cases)]


def _of(cases: Mapping[str, Any], name: str, label: str, key: str) -> float | None:
    return cases.get(name, {}).get(label, {}).get(key)


def _three(cases: Mapping[str, Any], name: str, label: str, bounds: Bounds) -> list[Row]:
    log_error, rank, mean = bounds
    own, highest = (_of(cases, name, PLAIN, key) for key in ("own_error", "rank_limit"))
    found = [
        Row(name, "log error", _of(cases, name, label, "log_error"), None, log_error, own),
        Row(name, "rank", _of(cases, name, label, "rank"), rank, None, highest),
        Row(name, "mean error", _of(cases, name, label, "mean_error"), most=mean),
    ]
    return [row for row in found if (row.least, row.most) != (None, None)]


def _masks(cases: Mapping[str, Any]) -> list[Row]:
    """Model variance."""
    found = []
    for units, ranks in _MASK_RANKS.items():
        for rate, rank in ranks.items():
            name = f"ResNet-20, {units}-wise dropout {rate}"
            ratio = _of(cases, name, DEFAULT, "ratio")
            highest = _of(cases, name, PLAIN, "rank_limit")
            measured = _of(cases, name, DEFAULT, "rank")
            found.append(Row(name, "rank", measured, least=rank, limit=highest))
            found.append(Row(name, "std ratio", ratio, 1 - _MASK_RATIO, 1 + _MASK_RATIO))
    return found


def _stated(cases: Mapping[str, Any]) -> list[Row]:
    """The stated standard error against the actual one, in every case.

    An actual error below that of Monte Carlo is not known; only that it is no larger.
    """
    found = []
    for name, own in cases.items():
        row = own.get(WITH_TOLERANCE) or own[DEFAULT]
        least = _of(cases, name, PLAIN, "own_error") or 0.0
        stated, actual = row["stated_error"], row["actual_error"]
        if actual > least:
            ratio, measure = stated / actual, "stated / actual error"
            found.append(Row(name, measure, ratio, 1 / _STATED, _STATED, least or None))
        else:
            ratio = stated / least if least else None
            measure = "stated error / Monte Carlo error"
            found.append(Row(name, measure, ratio, most=_STATED, limit=least))
    return found


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
    lines = ["| case | measure | found | bound | Monte Carlo | holds |", "|---" * 6 + "|"]
    for row in found:
        limit = "" if row.limit is None else f"{row.limit:.3f}"
        cells = (row.case, row.measure, _number(row.found), row.bound, limit, marks[row.holds])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
