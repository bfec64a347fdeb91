"""The table of moment rules: which function computes the moments of which torch operation."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from howsure.moments.samples import Draw, Sample, Samples
from howsure.moments.spellings import Target, operation_name, spellings


class Fidelity(Enum):
    """How true a rule is for independent Gaussian inputs."""

    EXACT = "exact"
    """The formula is the moment, up to rounding or quadrature error."""
    APPROXIMATE = "approximate"
    """The standard deviation is within the rule's stated `error`."""
    LINEARISED = "linearised"
    """First order in the input's variance: right for small noise."""
    STRUCTURAL = "structural"
    """Elements are moved, not computed with."""
    REFUSED = "refused"
    """There is no Gaussian answer; the rule raises with the reason and the remedy."""


class Kind(Enum):
    """What a rule makes of its arguments; the value heads its section of the rule table."""

    ASSIGNMENT = "assignment"
    """Writes some elements over others."""
    COMPOSITE = "composite"
    """A definition by operations that have rules; it is handed the Gaussians themselves."""
    CONSTRUCTION = "construction"
    """Makes a new constant tensor in the image of a Gaussian."""
    ELEMENTWISE = "elementwise"
    """A scalar function, by quadrature."""
    FORMULA = "formula"
    """Moments in closed form."""
    GATHER = "gather"
    """Copies elements at constant indices."""
    LINEAR_MAP = "linear map"
    """Linear in its one random argument: the variance goes through squared weights."""
    REFUSED = "refused"
    """Raises, with the reason and the remedy."""
    STRUCTURAL = "structural"
    """Moves elements; most such operations return views."""
    VALUE_ONLY = "value only"
    """A query that the mean alone answers."""


EXACT = Fidelity.EXACT
APPROXIMATE = Fidelity.APPROXIMATE
LINEARISED = Fidelity.LINEARISED
STRUCTURAL = Fidelity.STRUCTURAL
REFUSED = Fidelity.REFUSED


@dataclass(frozen=True, eq=False)
class Rule:
    """The moments of one operation under independent Gaussian inputs.

    Attributes:
        name: What the rule is called in tables and errors.
        function: Takes the operation's arguments with `Moments` in place of random tensors.
        targets: Every spelling of the operation that the rule serves.
        fidelity: How true it is.
        samples: Calls with which the laws test it.
        kind: What it makes of its arguments.
        error: Bound on the relative error of the standard deviation over the samples.
        pointwise: Each output element depends on one element of one random input.
        normalises: It is a normalisation layer.
        pools: It pools windows of a channel, and a positive factor on the channel passes through.
        adds_up: It sums or averages elements, as if they were independent.
        takes_target: The function's first argument is the spelling that was called.
        views: Whether the result is a view of the first Gaussian, or a function that tells it
            from the arguments; by default whether the rule is structural.
        views_each: Each of its results is a view of the argument in the same place.
    """

    name: str
    function: Callable[..., Any]
    targets: tuple[Target, ...]
    fidelity: Fidelity
    samples: Samples
    kind: Kind = Kind.FORMULA
    error: float = 0.0
    pointwise: bool = False
    normalises: bool = False
    pools: bool = False
    adds_up: bool = False
    takes_target: bool = False
    views: bool | Callable[..., bool] | None = None
    views_each: bool = False

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """The moments of the operation's output."""
        return self.called_as(self.targets[0])(*args, **kwargs)

    def called_as(self, target: Target) -> Callable[..., Any]:
        """The rule for one spelling of its operation."""
        return functools.partial(self.function, target) if self.takes_target else self.function

    @property
    def is_linear_map(self) -> bool:
        """Whether the variance of its output is linear in that of its input."""
        return self.kind is Kind.LINEAR_MAP

    @property
    def is_query(self) -> bool:
        """Whether it answers from the mean alone, with something that is not random."""
        return self.kind is Kind.VALUE_ONLY

    @property
    def is_construction(self) -> bool:
        """Whether it makes a new constant, which the model may write to."""
        return self.kind is Kind.CONSTRUCTION

    @property
    def is_refusal(self) -> bool:
        """Whether it has no answer but a reason."""
        return self.fidelity is Fidelity.REFUSED

    @property
    def has_moments(self) -> bool:
        """Whether it returns moments: it neither refuses nor answers a query."""
        return not (self.is_refusal or self.is_query)

    @property
    def takes_carriers(self) -> bool:
        """Whether it is handed the Gaussians, not their moments."""
        return self.kind is Kind.COMPOSITE

    def returns_view(self, *args: object) -> bool:
        """Whether a call with these arguments returns a view of its first Gaussian."""
        if self.views is None:
            return self.kind is Kind.STRUCTURAL
        return self.views(*args) if callable(self.views) else self.views

    @property
    def summary(self) -> str:
        """The first line of the docstring: what the rule computes."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @property
    def like(self) -> str | None:
        """The rule whose assumptions and source are its own: "As `clamp(x, 0, 6)`." names it."""
        found = re.match(r"As `\W*(\w+)", self.summary)
        return found.group(1) if found else None

    def paragraph(self, label: str) -> str:
        """What the docstring says behind `label:`, on one line."""
        text = inspect.getdoc(self.function) or ""
        found = re.search(rf"^{label}: (.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        return " ".join(found.group(1).split()) if found else ""

    @functools.cached_property
    def inplace_position(self) -> int | None:
        """Where the operation takes its `inplace` flag, if it has one."""
        names = list(inspect.signature(self.function).parameters)
        return names.index("inplace") if "inplace" in names else None

    def draw_samples(self) -> list[Sample]:
        """The sample calls, the same ones every time."""
        return list(self.samples(Draw()))


_table: dict[Target, Rule] = {}


def register(new: Rule) -> Rule:
    """Enters a rule under all its targets; a target can have one rule only."""
    if not new.targets:
        raise ValueError(f"The rule `{new.name}` names no torch operation.")
    for target in new.targets:
        if not callable(target):
            raise TypeError(f"The rule `{new.name}` has a target that is not callable: {target!r}.")
        if target in _table:
            raise ValueError(
                f"`{operation_name(target)}` already has the rule `{_table[target].name}`; "
                "pass yours as `propagate(..., rules={op: rule})` to override it."
            )
    _table.update(dict.fromkeys(new.targets, new))
    return new


def rule(
    *targets: Target, name: str, fidelity: Fidelity, samples: Samples, **options: Any
) -> Callable[[Callable[..., object]], Rule]:
    """Registers the decorated function as the moment rule of `targets`.

    Parameter names are those of the torch operation, since torch passes keywords.
    """

    def enter(function: Callable[..., object]) -> Rule:
        return register(Rule(name, function, tuple(targets), fidelity, samples, **options))

    return enter


def rule_of(
    *names: str,
    also: tuple[Target, ...] = (),
    inplace: bool = True,
    first: Target | None = None,
    fidelity: Fidelity = EXACT,
    **options: Any,
) -> Callable[[Callable[..., object]], Rule]:
    """Registers the decorated function for all `spellings` of torch's operations `names`.

    The rule has the first of these names; `also` are further operations that it serves.
    """
    targets = spellings(*names, inplace=inplace, first=first) + also
    return rule(*targets, name=names[0], fidelity=fidelity, **options)


def find(target: Target, overrides: Mapping[Target, Rule] | None = None) -> Rule | None:
    """The rule of an operation, or `None`; `overrides` win."""
    if overrides and target in overrides:
        return overrides[target]
    return _table.get(target)


def unregister(old: Rule) -> None:
    """Takes a rule out of the table again."""
    for target in old.targets:
        del _table[target]


def registered() -> list[Rule]:
    """All rules, each once, by name."""
    return sorted(dict.fromkeys(_table.values()), key=lambda entry: entry.name)
