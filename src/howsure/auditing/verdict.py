"""What an audit means: which method to use, whether diagonal ADF will do, how far the mean is off.

Sampling is the yardstick. A method is worth its cost if sampling until it has the same error would
cost more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from howsure.auditing.measures import Estimate
from howsure.auditing.result import AuditRow, LayerRow, Recommendation, departure
from howsure.methods.method import METHODS, Uses
from howsure.methods.propagation import ADF, SAMPLED_ADF
from howsure.methods.sampling import MC_DROPOUT, NOISE_SAMPLING

# A std within 15 % on average is good enough to recommend; among those closer than 2 % to the best
# the cheapest wins.
CLOSE, SAME = 0.15, 0.02
# The error up to which sampling is advised where nothing cheaper is close.
ADVISED = 0.08


@dataclass(frozen=True)
class Yardstick:
    """What sampling would take, from Monte Carlo on these very outputs.

    Attributes:
        samples: Passes that were made.
        error: Relative standard error of a std that they left; it falls with the root of passes.
        cost: Time of one pass of `noise_sampling` relative to a plain forward pass.
    """

    samples: int
    error: float
    cost: float = 1.0

    def passes(self, log_error: float) -> float:
        """Passes with this mean absolute log error, which is sqrt(2 / pi) standard errors."""
        # No two methods can be distinguished below a tenth of the truth's own error.
        error = max(log_error, self.error / 10) * math.sqrt(math.pi / 2)
        return self.samples * (self.error / error) ** 2

    def advised(self) -> int:
        """A round number of passes for a std within 8 % on average."""
        return max(20, 10 * math.ceil(self.passes(ADVISED) / 10))


def recommend(rows: Sequence[AuditRow], yardstick: Yardstick) -> Recommendation:
    """The closest method among those cheaper than sampling with the same error."""

    def error(row: AuditRow) -> float:
        return row.total.log_error.value

    rivals = [row for row in rows if row.kind not in (NOISE_SAMPLING, MC_DROPOUT)]
    candidates = [
        row
        for row in rivals
        if error(row) <= CLOSE and row.cost.value < yardstick.cost * yardstick.passes(error(row))
    ]
    if candidates:
        least = min(map(error, candidates))
        best = min(
            (row for row in candidates if error(row) <= least + SAME),
            key=lambda row: row.cost.value,
        )
        reason = (
            f"its std is off by {_percent(error(best))} on average (at most "
            f"{_percent(best.total.log_error.high)}), for the time of {best.cost.value:.0f} "
            f"forward passes; sampling needs {yardstick.passes(max(error(best), 0.01)):.0f} "
            "samples to be as accurate"
        )
        return Recommendation(best.method, best.options, reason)
    samples = yardstick.advised()
    reason = f"{samples} samples give a std to within {_percent(ADVISED)} on average, and "
    if rivals:
        best = min(rivals, key=error)
        reason += (
            f"nothing else is worth its cost here; the closest, `{best.label}`, is off by "
            f"{_percent(error(best))} for the time of {best.cost.value:.0f} forward passes"
        )
        if best.std_error:
            reason += f" (its own standard error is {_percent(best.std_error)})"
    else:
        reason += "no other method was compared"
    return Recommendation(NOISE_SAMPLING.name, {"samples": samples}, reason)


def sentences(
    rows: Sequence[AuditRow],
    recommended: Recommendation,
    plain_shift: Estimate,
    layers: Sequence[LayerRow],
) -> tuple[str, ...]:
    """The verdict, one sentence or two on each question."""
    # With dropout, if there are both: the paper's method is the one that samples.
    diagonal = [row for kind in (SAMPLED_ADF, ADF) for row in rows if row.kind is kind]
    return (
        *(_on_diagonal(diagonal[0], departure(layers)) if diagonal else ()),
        f"Use `{recommended}`: {recommended.reason}.",
        _on_mean(rows, recommended, plain_shift),
    )


def _on_diagonal(row: AuditRow, departs: LayerRow | None) -> list[str]:
    """Is the paper's propagation usable here?"""
    ratio, error = row.total.ratio.value, row.total.log_error.value
    name, is_close = f"Diagonal propagation (`{row.label}`)", 0.8 <= ratio <= 1.25
    if is_close and error <= 0.25:
        start = f"its std is {ratio:.2f} times the true one"
        # A right total can hide a wrong data part.
        if row.data is None or 0.8 <= row.data.ratio.value <= 1.25:
            return [f"{name} is usable here: {start}."]
        part = f"the std of its data part is {row.data.ratio.value:.2g} times the true one"
        return [f"{name} is usable here for the total alone: {start}, but {part}."]
    size = f"{1 / ratio:.2g} times too small" if ratio < 1 else f"{ratio:.2g} times too large"
    off = f"off by {_percent(error)} on average" if is_close else size
    where = f"; it departs from the truth at `{departs.name}`" if departs else ""
    text = [f"{name} is not usable as an error bar: its std is {off}{where}."]
    if row.total.rank is not None and row.total.rank.value >= 0.9:
        text.append(
            f"Its ranking is right (rank {row.total.rank.value:.2f}): rank or reject by it, or "
            "rescale it on held-out data."
        )
    return text


def _on_mean(rows: Sequence[AuditRow], recommended: Recommendation, plain: Estimate) -> str:
    """Should the propagated mean replace the plain output?"""
    start = f"The plain network's output is {plain.value:.2g} std from the mean under this noise"
    if plain.value < 0.25:
        return f"{start}: either mean will do."
    wanted = (recommended.method, recommended.options)
    row = next((row for row in rows if (row.method, row.options) == wanted), None)
    # Sampling may be recommended where it was not among the methods.
    method = row.kind if row else METHODS[recommended.method]
    if method is NOISE_SAMPLING:
        return f"{start}: take the mean of the samples."
    if row is not None and row.mean_shift.value < plain.value / 2:
        return (
            f"{start}, this method's mean {row.mean_shift.value:.2g}: keep its mean "
            '(`prediction="mean"`).'
        )
    if Uses.POINTS in method.uses:
        return f'{start}: where the mean matters, set `prediction="mean"`.'
    best = min(rows, key=lambda row: row.mean_shift.value)
    return (
        f"{start}, and this method's mean is no better; where the mean matters, use that of "
        f"`{best.label}` ({best.mean_shift.value:.2g} std)."
    )


def _percent(log_error: float) -> str:
    """A log error in words; below 1 % Monte Carlo cannot tell."""
    if log_error < 0.01:
        return "1 %"
    return f"{100 * log_error:.2g} %" if log_error < 1 else f"a factor of {math.exp(log_error):.2g}"
