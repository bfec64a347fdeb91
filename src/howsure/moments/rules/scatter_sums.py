"""Adding elements up at constant places: variances add up too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import select
from howsure.moments.rule import EXACT, Draw, Kind, Sample, rule, rule_of
from howsure.moments.rules.scatter import ROWS, noise_of, pairs, placed
from howsure.moments.value import Moments, variance_dtype


def _reductions(draw: Draw) -> Iterable[Sample]:
    for reduce in ("sum", "mean"):
        for include_self in (True, False):
            source = draw.moments(2, 4)
            yield Sample(draw.moments(3, 4), 0, ROWS, source, reduce, include_self=include_self)


@rule_of("scatter_reduce", samples=_reductions)
def scatter_reduce(
    input: Moments | Tensor,
    dim: int,
    index: Tensor,
    src: Moments | Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Moments:
    """Var = sum of the variances that meet in an element; over n**2 for a mean.

    Assumes: a constant index and independent elements; exact then.

    Source: `sum`, `mean`.
    """
    if reduce not in ("sum", "mean"):
        raise NoRuleError(f"`scatter_reduce` has rules for sum and mean, not for `{reduce}`.")

    def op(x: Tensor, y: Tensor, how: str = "sum") -> Tensor:
        return torch.scatter_reduce(x, dim, index, y, how, include_self=include_self)

    total = placed(op, {0: "input", 1: "src"}, input, src)
    if reduce == "sum":
        return total
    count = op(torch.ones_like(total.var), torch.ones_like(select(src, "mean")).to(total.var))
    mean = op(select(input, "mean"), select(src, "mean"), "mean")
    return Moments(mean, total.var / count.square())


def _additions(draw: Draw) -> Iterable[Sample]:
    yield from pairs(1, torch.tensor([2, 0, 2]), source=(3, 3))(draw)
    yield Sample(draw.moments(3, 4), 1, torch.tensor([2, 0]), draw.moments(3, 2), alpha=-0.5)


@rule_of("index_add", samples=_additions)
def index_add(
    input: Moments | Tensor,
    dim: int,
    index: Tensor,
    source: Moments | Tensor,
    *,
    alpha: float = 1,
) -> Moments:
    """As `add`, at the indexed places."""
    mean = torch.index_add(select(input, "mean"), dim, index, select(source, "mean"), alpha=alpha)
    start, more = (noise_of(x, variance_dtype(mean.dtype)) for x in (input, source))
    return Moments(mean, torch.index_add(start, dim, index, more, alpha=alpha**2))


def _columns(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(2, 8, 12), (4, 5), (2, 2))
    yield Sample(draw.moments(2, 8, 6), output_size=(4, 5), kernel_size=2, stride=2, padding=(0, 1))


@rule(
    F.fold,
    torch.ops.aten.col2im.default,
    name="fold",
    fidelity=EXACT,
    samples=_columns,
    kind=Kind.LINEAR_MAP,
)
def fold(
    input: Moments,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Moments:
    """As `sum` of what meets in a pixel."""
    options = output_size, kernel_size, dilation, padding, stride
    return Moments(F.fold(input.mean, *options), F.fold(input.var, *options))
