"""What an audit returns: rows, layers, verdict; as text, and as plain data for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from howsure.auditing.layers import LayerRow
from howsure.auditing.measures import Estimate, Measures
from howsure.auditing.table import audit_text
from howsure.methods import METHODS, Method


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
        kind: The method itself; `None` for the one of its name.
    """

    label: str
    method: str
    options: dict[str, Any]
    total: Measures
    data: Measures | None
    model: Measures | None
    mean_shift: Estimate
    cost: Estimate
    std_error: float | None = None
    kind: Method | None = field(default=None, repr=False)

    @property
    def by(self) -> Method:
        """The method itself, to be asked what it is."""
        return self.kind or METHODS[self.method]


@dataclass(frozen=True)
class Recommendation:
    """A method with its options, and why."""

    method: str
    options: dict[str, Any]
    reason: str

    def __str__(self) -> str:
        """The method as arguments of `Uncertain`."""
        given = [f'method="{self.method}"', *(f"{k}={v!r}" for k, v in self.options.items())]
        return ", ".join(given)


@dataclass(frozen=True, repr=False)
class Audit:
    """Every method against Monte Carlo, on one network, its inputs and its noise.

    Attributes:
        rows: The methods that were compared.
        skipped: Those that were not, each with the reason.
        layers: Diagonal ADF at every layer; empty without sensor noise.
        plain_shift: How far the plain network's output is from the true mean, in true std.
        recommended: The method to use, with its options.
        verdict: What it all means, in sentences.
        samples: Monte Carlo samples.
        inputs: How many inputs were used.
        outputs: How many outputs of each were compared.
        truth_error: Median relative standard error of the true std.
        seconds: How long it took.
        notes: What else a reader should know.
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
        return next((row for row in self.layers if row.departs), None)

    def row(self, label: str) -> AuditRow:
        """The row of a label, or of the first one with this method."""
        for row in (*(r for r in self.rows if r.label == label), *self.rows):
            if label in (row.label, row.method):
                return row
        raise ValueError(f"The audit has no row {label!r}; it has {[r.label for r in self.rows]}.")

    def to_dict(self) -> dict[str, Any]:
        """All of it as numbers, strings, lists and dicts."""
        departure = None if self.departure is None else self.departure.name
        plain = {**asdict(self), "departure": departure}
        for row in plain["rows"]:
            del row["kind"]  # which has functions
        return _plain_data(plain)

    def __repr__(self) -> str:
        """The recommendation and what it rests on, in one line."""
        return (
            f"Audit(use {self.recommended}; {len(self.rows)} methods on {self.inputs} inputs, "
            f"{self.samples} passes)"
        )

    def __str__(self) -> str:
        """The tables, then the verdict."""
        return audit_text(self)


def _plain_data(value: object) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain_data(item) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
