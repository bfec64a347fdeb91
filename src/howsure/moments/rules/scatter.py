"""Writing elements at constant places: what is written brings its variance, a constant has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.families import select
from howsure.moments.rule import (
    EXACT,
    STRUCTURAL,
    Draw,
    Fidelity,
    Kind,
    Sample,
    Samples,
    Target,
    rule,
    rule_of,
    spellings,
)
from howsure.moments.value import Moments, variance_dtype


def noise_of(argument: object, dtype: torch.dtype) -> Any:
    """The variance of an argument that carries data; a constant has variance 0."""
    if isinstance(argument, Moments):
        return argument.var.to(dtype)
    return torch.zeros_like(argument, dtype=dtype) if isinstance(argument, Tensor) else 0.0


def placed(
    op: Callable[..., Tensor], data: Mapping[int, str], *args: object, **kwargs: object
) -> Moments:
    """The same operation on means and variances; `data` names the arguments that carry data."""
    mean = op(*select(args, "mean"), **select(kwargs, "mean"))
    dtype = variance_dtype(mean.dtype)
    noises = [noise_of(arg, dtype) if i in data else arg for i, arg in enumerate(args)]
    named = {k: noise_of(arg, dtype) if k in data.values() else arg for k, arg in kwargs.items()}
    return Moments(mean, op(*noises, **named))


def _register(
    op: Target,
    data: Mapping[int, str],
    samples: Samples,
    *names: str,
    fidelity: Fidelity = STRUCTURAL,
) -> None:
    def write(*args: object, **kwargs: object) -> Moments:
        """The same operation on mean and variance; constants have variance 0.

        Assumes: constant indices and masks; elements that are added up are independent.

        Source: definition.
        """
        return placed(op, data, *args, **kwargs)

    kind = Kind.ASSIGNMENT if fidelity is STRUCTURAL else Kind.FORMULA
    rule(*spellings(*names), name=names[0], fidelity=fidelity, samples=samples, kind=kind)(write)


def pairs(*middle: object, source: tuple[int, ...], behind: tuple[object, ...] = ()) -> Samples:
    """Calls `op(input, *middle, source, *behind)` with Gaussians and constants in both places."""

    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(draw.moments(3, 4), *middle, draw.moments(*source), *behind)
        yield Sample(draw.moments(3, 4), *middle, draw.constant(*source), *behind)
        yield Sample(draw.constant(3, 4), *middle, draw.moments(*source), *behind)

    return samples


def _fills(*middle: object) -> Samples:
    return lambda draw: [
        Sample(draw.moments(3, 4), *middle, 0.5),
        Sample(draw.moments(3, 4), *middle, draw.moments()),
    ]


_COLUMNS, ROWS = torch.tensor([2, 0]), torch.tensor([[2, 0, 1, 1], [0, 1, 2, 0]])
_MASK = torch.tensor([True, False, True, False])
_register(torch.masked_fill, {0: "input", 2: "value"}, _fills(_MASK), "masked_fill")
_register(torch.index_fill, {0: "input", 3: "value"}, _fills(1, _COLUMNS), "index_fill")
_register(
    torch.index_copy, {0: "input", 3: "source"}, pairs(1, _COLUMNS, source=(3, 2)), "index_copy"
)
_register(
    torch.masked_scatter,
    {0: "input", 2: "source"},
    pairs(_MASK.expand(3, 4), source=(6,)),
    "masked_scatter",
)


def _index_put(
    input: Tensor, indices: Iterable[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`torch.index_put`, with `None` for a whole axis, as exported programs have it."""
    return torch.ops.aten.index_put.default(input, list(indices), values, accumulate)


_register(
    _index_put,
    {0: "input", 2: "values"},
    pairs((torch.tensor([0, 2]), torch.tensor([1, 1])), source=(2,)),
    "index_put",
)
_register(
    torch.scatter_add,
    {0: "input", 3: "src"},
    pairs(0, ROWS, source=(2, 4)),
    "scatter_add",
    fidelity=EXACT,
)


for _name, _where, _source in (
    ("slice_scatter", (1, 1, 3), (3, 2)),
    ("select_scatter", (1, 2), (3,)),
    ("diagonal_scatter", (), (3,)),
):
    _samples = pairs(source=_source, behind=_where)
    _register(getattr(torch, _name), {0: "input", 1: "src"}, _samples, _name)


def _scatters(draw: Draw) -> Iterable[Sample]:
    yield from pairs(0, ROWS, source=(2, 4))(draw)
    yield Sample(draw.moments(3, 4), 0, ROWS, value=0.5)


@rule_of("scatter", samples=_scatters)
def scatter(
    input: Moments | Tensor, dim: int, index: Tensor, *args: object, **kwargs: object
) -> Moments:
    """Elements replaced, or added to, in mean and variance.

    Assumes: a constant index; elements that are added up are independent; exact then.

    Source: definition.
    """
    reduce = kwargs.pop("reduce", None)
    if reduce == "multiply":
        raise NoRuleError("`scatter` has a rule for replacing and adding; multiply with `mul`.")
    if args and not isinstance(args[0], (Moments, Tensor)):
        args, kwargs = (), {**kwargs, "value": args[0]}
    op = torch.scatter if reduce is None else torch.scatter_add
    return placed(op, {0: "input", 3: "src", 4: "value"}, input, dim, index, *args, **kwargs)


def _choices(draw: Draw) -> Iterable[Sample]:
    yield Sample(_MASK, draw.moments(3, 4), draw.moments(3, 4))
    yield Sample(_MASK, draw.moments(3, 4), 0.0)
    yield Sample(_MASK, draw.constant(4), draw.moments(3, 1))


@rule(
    torch.where,
    *(getattr(torch.ops.aten.where, name) for name in ("self", "ScalarOther", "ScalarSelf")),
    name="where",
    fidelity=STRUCTURAL,
    samples=_choices,
    kind=Kind.ASSIGNMENT,
)
def where(condition: Tensor, *args: object, **kwargs: object) -> Moments:
    """Mean and variance of the branch that a constant condition chooses.

    Assumes: a constant condition.

    Source: definition.
    """
    if isinstance(condition, Moments):
        raise NoRuleError(
            "A random condition makes a mixture, which is not Gaussian; compute the condition "
            "from a tensor without noise."
        )
    return placed(torch.where, {1: "input", 2: "other"}, condition, *args, **kwargs)


@rule(
    Tensor.where,
    name="where (method)",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), _MASK, draw.moments(4))],
    kind=Kind.ASSIGNMENT,
)
def where_method(*args: object, **kwargs: object) -> Moments:
    """As `where(condition, self, other)`."""
    self, condition, *other = args
    return where(condition, self, *other, **kwargs)
