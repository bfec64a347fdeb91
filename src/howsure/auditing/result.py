"""What an audit returns: rows, layers, verdict; as text, and as plain data for JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any

from howsure.auditing.check import align_columns
from howsure.auditing.measures import Estimate, Measures
from howsure.methods.method import Method

_WIDTH = 100
_MOST_LAYERS = 20


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
