"""What an audit returns: rows, layers, verdict; as text, and as plain data for JSON.

The verdict says which method to use, whether diagonal ADF will do, and how far the mean is off.
Sampling is its yardstick: a method is worth its cost if sampling until it has the same error would
cost more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any

from howsure.auditing.check import align_columns
from howsure.auditing.measures import Estimate, Measures
from howsure.methods.method import METHODS, Method, Uses
from howsure.methods.propagation import ADF, SAMPLED_ADF
from howsure.methods.sampling import MC_DROPOUT, NOISE_SAMPLING

_WIDTH = 100
_MOST_LAYERS = 20
# A std within 15 % on average is good enough to recommend; among those closer than 2 % to the best
# the cheapest wins.
CLOSE, SAME = 0.15, 0.02
# The error up to which sampling is advised where nothing cheaper is close.
ADVISED = 0.08


@dataclass(frozen=True)
class LayerRow:
    """Diagonal ADF at the output of one layer.

    Attributes:
        name: Path of the module; `#2` for its second call.
        kind: Its class.
        shape: Shape of its output.
        ratio: Median over its elements of predicted std / true std. Elements with less than 1 %
            of the layer's mean variance are left out: units that are as good as switched off.
        mean_error: Root mean square of predicted minus true mean, in units of the true std.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    ratio: float
    mean_error: float

    @property
    def departs(self) -> bool:
        """Whether the std is off by more than a quarter."""
        return not 0.8 <= self.ratio <= 1.25


def departure(layers: Iterable[LayerRow]) -> LayerRow | None:
    """The first layer that departs."""
    return next((row for row in layers if row.departs), None)


@dataclass(frozen=True)
class AuditRow:
    """One method against the truth.

    Attributes:
        label: The method with its options.
        method: Its name, as `Uncertain(method=...)` takes it.
        options: Further arguments of `Uncertain`.
        total: Its std against the true one.
        data: The same for the data part, where there is noise and dropout and it has one.
        model: The same for the model part.
        mean_shift: Mean of |mean - true mean|, in units of the true std.
        cost: Time relative to one plain forward pass of the same inputs.
        std_error: Relative standard error that the method states for its own std, the median over
            all outputs; `None` where it states none.
        kind: The method itself.
    """

    label: str
    method: str
    options: dict[str, Any]
    total: Measures
    data: Measures | None
    model: Measures | None
    mean_shift: Estimate
    cost: Estimate
    std_error: float | None
    kind: Method = field(repr=False)


@dataclass(frozen=True)
class Recommendation:
    """A method with its options, and why."""

    method: str
    options: dict[str, Any]
    reason: str

    def __str__(self) -> str:
        """The method as arguments of `Uncertain`."""
        arguments = [f'method="{self.method}"', *(f"{k}={v!r}" for k, v in self.options.items())]
        return ", ".join(arguments)


@dataclass(frozen=True, repr=False)
class Audit:
    """Every method against Monte Carlo, on one network, its inputs and its noise.

    Attributes:
        rows: The methods that were compared.
        skipped: Those that were not, each with the reason.
        layers: Diagonal ADF at every layer; empty without sensor noise.
        plain_shift: How far the plain network's output is from the true mean, in true std.
        recommended: The method to use, with its options.
        verdict: The conclusions, in sentences.
        samples: Monte Carlo samples.
        inputs: How many inputs were used.
        outputs: How many outputs of each were compared.
        truth_error: Median relative standard error of the true std.
        seconds: How long it took.
        notes: Further remarks for the reader.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
        >>> options = {"methods": ["linear"], "samples": 500, "show_progress": False}
        >>> found = hs.audit(model, torch.randn(8, 3), noise=0.01, **options)
        >>> found.inputs, found.outputs, found.rows[0].method
        (8, 1, 'linear')
    """

    rows: tuple[AuditRow, ...]
    skipped: tuple[tuple[str, str], ...]
    layers: tuple[LayerRow, ...]
    plain_shift: Estimate
    recommended: Recommendation
    verdict: tuple[str, ...]
    samples: int
    inputs: int
    outputs: int
    truth_error: float
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def departure(self) -> LayerRow | None:
        """The first layer at which diagonal ADF's std is off by more than a quarter."""
        return departure(self.layers)

    def row(self, label: str) -> AuditRow:
        """The row of a label, or of the first one with this method."""
        for row in (*(r for r in self.rows if r.label == label), *self.rows):
            if label in (row.label, row.method):
                return row
        raise ValueError(f"The audit has no row {label!r}; it has {[r.label for r in self.rows]}.")

    def to_dict(self) -> dict[str, Any]:
        """All of it as numbers, strings, lists and dicts."""
        departs = None if self.departure is None else self.departure.name
        data = {**asdict(self), "departure": departs}
        for row in data["rows"]:
            del row["kind"]  # which has functions
        return json.loads(json.dumps(data, default=str))

    def __repr__(self) -> str:
        """The recommendation and what it rests on, in one line."""
        return (
            f"Audit(use {self.recommended}; {len(self.rows)} methods on {self.inputs} inputs, "
            f"{self.samples} passes)"
        )

    def __str__(self) -> str:
        """The tables, then the verdict."""
        heading = (
            f"Std of {self.inputs} inputs x {self.outputs} outputs against Monte Carlo with "
            f"{self.samples} samples, whose standard error of a std is "
            f"{100 * self.truth_error:.1f} %. Numbers in brackets are 95 % intervals; for the "
            "cost, the range of repeated measurements. Stated: the relative standard error that a "
            "method reports for its own std."
        )
        parts = [fill(heading, _WIDTH), _methods_table(self.rows, self.plain_shift)]
        if self.skipped:
            parts.append(_wrap(f"Left out: {label}: {reason}." for label, reason in self.skipped))
        if self.layers:
            parts.append(_layers_table(self.layers))
        return "\n\n".join([*parts, _wrap((*self.verdict, *self.notes))])


def _wrap(lines: Iterable[str]) -> str:
    return "\n".join(fill(line, _WIDTH) for line in lines)


def _methods_table(rows: Sequence[AuditRow], plain_shift: Estimate) -> str:
    """One line per method, and one for each part of the variance."""

    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "-"
        low, value, high = map(_digits, (estimate.low, estimate.value, estimate.high))
        return f"{value} [{low}, {high}]"

    def cells(measures: Measures) -> list[str]:
        return [cell(measures.ratio), cell(measures.log_error), cell(measures.rank)]

    lines = [["method", "std ratio", "log error", "rank", "stated", "mean shift", "cost"]]
    lines.append(["plain network", "", "", "", "", cell(plain_shift), "1"])
    for row in rows:
        stated = "-" if row.std_error is None else _digits(row.std_error)
        lines.append([row.label, *cells(row.total), stated, cell(row.mean_shift), cell(row.cost)])
        for name, part in (("data part", row.data), ("model part", row.model)):
            if part is not None:
                lines.append([f"  {name}", *cells(part), "", "", ""])
    return align_columns(lines)


def _layers_table(layers: Sequence[LayerRow]) -> str:
    """One line per layer, the first that departs marked.

    Of long networks some twenty: evenly spread, and those around the first that departs.
    """
    first, last = departure(layers), len(layers) - 1
    indices = set(range(len(layers)))
    if last >= _MOST_LAYERS:
        indices = {round(i * last / (_MOST_LAYERS - 1)) for i in range(_MOST_LAYERS)}
        if first is not None:
            indices |= {max(layers.index(first) - 1, 0), layers.index(first)}
    scope = (
        "" if last < _MOST_LAYERS else f" ({len(indices)} of {len(layers)}; all are in `.layers`)"
    )
    lines = [("layer", "kind", "std ratio", "mean error", "")]
    for row in (layers[index] for index in sorted(indices)):
        mark = "<- departs" if row is first else ""
        lines.append((row.name, row.kind, _digits(row.ratio), _digits(row.mean_error), mark))
    return f"Diagonal ADF, layer by layer{scope}\n{align_columns(lines)}"


def _digits(value: float) -> str:
    """Three digits, without exponents."""
    size = abs(value)
    if size >= 10:
        return f"{value:.0f}" if size >= 100 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size < 0.0005 else f"{value:.3f}"


# The verdict.


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
