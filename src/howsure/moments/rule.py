"""The table of moment rules: which function computes the moments of which torch operation.

A rule names its operation, all spellings that torch has for it, how exact it is, and sample calls
with which the laws of `howsure.testing` check it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from howsure.moments.value import Moments, Target, substitute
from howsure.private_torch import nn_operators

# Samples: calls of an operation, to be written beside its rule.


class Draw:
    """Draws reproducible float64 arguments for samples."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def constant(self, *shape: int) -> Tensor:
        """A constant tensor of standard normal values."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def positive(self, *shape: int) -> Tensor:
        """A constant tensor of values between 0.5 and 1.5."""
        return 0.5 + torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def moments(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> Moments:
        """Gaussians around `mean` whose standard deviations spread around `std`."""
        return Moments(mean + self.constant(*shape), (std * self.positive(*shape)).square())


@dataclass(frozen=True, eq=False)
class Argument:
    """An argument that is drawn when its sample is; in two places it is the same object."""

    draw: Callable[[Draw], Any]


def normal(*shape: int, mean: float = 0.0, std: float = 1.0) -> Any:
    """Gaussians around `mean` whose standard deviations spread around `std`."""
    return Argument(lambda draw: draw.moments(*shape, mean=mean, std=std))


def narrow(center: float, spread: float, var: float) -> Any:
    """Gaussians with means above `center`: away from the edge of a domain, or from a pole."""
    return Argument(
        lambda draw: Moments(center + spread * draw.positive(3, 4), var * draw.positive(3, 4))
    )


def constant(*shape: int, scale: float = 1.0) -> Any:
    """A constant tensor of normal values."""
    return Argument(lambda draw: scale * draw.constant(*shape))


def positive(*shape: int, scale: float = 1.0) -> Any:
    """A constant tensor of values between 0.5 and 1.5."""
    return Argument(lambda draw: scale * draw.positive(*shape))


class Sample:
    """One call of an operation: positional and keyword arguments, some of them drawn."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args = args
        self.kwargs = kwargs


Samples = Sequence[Sample] | Callable[[Draw], Iterable[Sample]]

one_of_each_shape = [
    Sample(normal(7)),
    Sample(normal(3, 5, mean=0.5, std=0.3)),
    Sample(normal(2, 3, 4, 4, mean=-1.0, std=2.0)),
]
"""Samples of an elementwise op: a vector, a matrix and an image."""


def sample(shape: tuple[int, ...], *args: object, **kwargs: object) -> list[Sample]:
    """One call: a Gaussian of this shape, then these arguments."""
    return [Sample(normal(*shape), *args, **kwargs)]


def operands(
    first: tuple[int, ...],
    *between: object,
    second: tuple[int, ...],
    behind: tuple[object, ...] = (),
) -> list[Sample]:
    """Calls with two operands of these shapes: both Gaussian, then one of them constant."""
    pairs = (normal, normal), (normal, constant), (constant, normal)
    return [Sample(one(*first), *between, two(*second), *behind) for one, two in pairs]


# Spellings: how torch names its operations.


def operation_name(target: Target) -> str:
    """How a user writes the operation, e.g. `torch.Tensor.add` or `torch.nn.functional.relu`."""
    owner = getattr(target, "__self__", None)
    name = getattr(target, "__name__", None) or repr(target)
    if name in ("__get__", "__set__") and owner is not None:
        # A property of Python, such as `__cuda_array_interface__`, has its name in its getter.
        return f"torch.Tensor.{getattr(owner, 'fget', owner).__name__}"
    if type(target).__name__ in ("OpOverload", "OpOverloadPacket"):
        return f"torch.ops.{target}"
    if type(target).__name__ in ("ScriptMethod", "ScriptFunction"):
        return "torch.jit.ScriptModule.forward"
    if hasattr(target, "__objclass__") or getattr(target, "__qualname__", "").startswith("Tensor"):
        return f"torch.Tensor.{name}"
    module = getattr(target, "__module__", None) or "torch"
    if module.startswith("torch._C._"):
        # `torch.linalg.svdvals` calls itself `torch._C._linalg.linalg_svdvals`.
        name = name.removeprefix(module.removeprefix("torch._C._") + "_")
    return f"{_PUBLIC_MODULES.get(module, module)}.{name}"


_PUBLIC_MODULES = {
    "torch._C._nn": "torch.nn.functional",
    "torch.functional": "torch",
    "torch._jit_internal": "torch.nn.functional",
    "torch._VF": "torch",
    "torch._C._special": "torch.special",
    "torch._C._linalg": "torch.linalg",
    "torch._C._fft": "torch.fft",
}


def spellings(*names: str, inplace: bool = True) -> tuple[Target, ...]:
    """Every way in which torch spells the operations: function, method, in-place, operator, aten.

    An operation called `relu` is reached as `torch.relu`, `torch.relu_`, `Tensor.relu`,
    `Tensor.relu_`, `F.relu`, `F.relu_`, and in exported programs as `aten.relu.default`.
    """
    targets: dict[Target, None] = {}
    for name in names:
        variants = (name, f"__{name}__", f"{name}_", f"__i{name}__")
        for variant in variants if inplace else variants[:2]:
            spaces = (torch, torch.Tensor, torch.nn.functional, torch.special, nn_operators)
            candidates = (getattr(space, variant, None) for space in spaces)
            targets |= dict.fromkeys(target for target in candidates if callable(target))
            # The overloads of `aten.name`; `.out` overloads write elsewhere and are left out.
            packet = None if variant.startswith("__") else getattr(torch.ops.aten, variant, None)
            overloads = packet.overloads() if packet is not None else ()
            targets |= {getattr(packet, o): None for o in overloads if "out" not in o}
    if not targets:
        raise ValueError(f"torch has no operation called {' or '.join(names)}.")
    return tuple(targets)


def parameter_names(function: Target) -> list[str]:
    """The names of its parameters; none for a builtin, which does not tell."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


# Rules.


class Fidelity(Enum):
    """How true a rule is for independent Gaussian inputs.

    Examples:
        >>> from howsure.moments.rule import find
        >>> find(torch.relu).fidelity
        <Fidelity.EXACT: 'exact'>
    """

    EXACT = "exact"
    """The formula is the moment, up to rounding or quadrature error."""
    APPROXIMATE = "approximate"
    """The standard deviation is within the rule's stated `error`."""
    LINEARIZED = "linearized"
    """First order in the input's variance: right for small noise."""
    STRUCTURAL = "structural"
    """Elements are moved, not computed with."""
    REFUSED = "refused"
    """There is no Gaussian answer; the rule raises with the reason and the remedy."""


class Kind(Enum):
    """What a rule makes of its arguments; the value heads its section of the rule table."""

    BILINEAR = "bilinear"
    """Linear in each of two operands."""
    COMPOSITE = "composite"
    """A definition by operations that have rules; it is handed the Gaussians themselves."""
    CONSTRUCTION = "construction"
    """Makes a new constant tensor in the image of a Gaussian."""
    ELEMENTWISE = "elementwise"
    """A scalar function, by quadrature."""
    FORMULA = "formula"
    """Moments in closed form."""
    LINEAR_MAP = "linear map"
    """Linear in its one random argument: the variance goes through squared weights."""
    REFUSED = "refused"
    """Raises, with the reason and the remedy."""
    STRUCTURAL = "structural"
    """Moves elements: the same operation on mean and variance."""
    VALUE_ONLY = "value only"
    """A query that the mean alone answers."""


EXACT = Fidelity.EXACT
APPROXIMATE = Fidelity.APPROXIMATE
LINEARIZED = Fidelity.LINEARIZED
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
        samples: Calls with which the laws test it: a list, or a function of a `Draw`.
        kind: What it makes of its arguments.
        error: Bound on the relative error of the standard deviation over the samples.
        pointwise: Each output element depends on one element of one random input.
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
        match = re.match(r"As `\W*(\w+)", self.summary)
        return match.group(1) if match else None

    def paragraph(self, label: str) -> str:
        """What the docstring says behind `label:`, on one line."""
        text = inspect.getdoc(self.function) or ""
        match = re.search(rf"^{label}: (.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        return " ".join(match.group(1).split()) if match else ""

    @functools.cached_property
    def inplace_position(self) -> int | None:
        """Where the operation takes its `inplace` flag, if it has one."""
        for function in (self.function, self.targets[0]):
            names = parameter_names(function)
            if "inplace" in names:
                return names.index("inplace")
        return None

    def draw_samples(self) -> list[Sample]:
        """The sample calls, the same ones every time."""
        draw, drawn = Draw(), dict[Argument, object]()

        def value(argument: Argument) -> object:
            if argument not in drawn:
                drawn[argument] = argument.draw(draw)
            return drawn[argument]

        calls = self.samples(draw) if callable(self.samples) else self.samples
        filled = (substitute((call.args, call.kwargs), Argument, value) for call in calls)
        return [Sample(*args, **kwargs) for args, kwargs in filled]


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
    *targets: Target | str,
    samples: Samples,
    name: str = "",
    fidelity: Fidelity = EXACT,
    inplace: bool = True,
    **options: Any,
) -> Callable[[Callable[..., object]], Rule]:
    """Registers the decorated function as the moment rule of `targets`.

    A name such as "relu" stands for all `spellings` of torch's operation, those that work in place
    only if `inplace`. Without a `name` of its own the rule has the first of these. Parameters are
    named as in torch, since torch passes keywords.

    Examples:
        >>> from howsure.moments.rule import one_of_each_shape, unregister
        >>> @hs.rule(torch.rad2deg, samples=one_of_each_shape)
        ... def rad2deg(input):
        ...     factor = 180 / torch.pi
        ...     return hs.Moments(factor * input.mean, factor**2 * input.var)
        ...
        >>> hs.propagate(torch.rad2deg, torch.zeros(1), 0.01).var.sqrt()  # 0.1 rad
        tensor([5.7296])
        >>> unregister(rad2deg)
    """
    expanded: dict[Target, None] = {}
    for target in targets:
        called = spellings(target, inplace=inplace) if isinstance(target, str) else (target,)
        expanded |= dict.fromkeys(called)
    names = [target for target in targets if isinstance(target, str)]
    names += [getattr(target, "__name__", "") for target in targets]

    def enter(function: Callable[..., object]) -> Rule:
        title = name or next(iter(names), "")
        return register(Rule(title, function, tuple(expanded), fidelity, samples, **options))

    return enter


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
