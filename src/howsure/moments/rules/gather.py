"""Reading elements at constant indices: the same elements of mean and variance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import select
from howsure.moments.numerics.blocks import squared
from howsure.moments.rule import EXACT, STRUCTURAL, Draw, Kind, Sample, Target, rule, spellings
from howsure.moments.value import Moments


def _read(target: Target, *args: object, **kwargs: object) -> Moments:
    """The same elements of mean and variance.

    Assumes: constant indices; an element that is read twice is fully correlated with itself.

    Source: definition.
    """
    means = target(*select(args, "mean"), **select(kwargs, "mean"))
    return Moments(means, target(*select(args, "var"), **select(kwargs, "var")))


def _register(name: str, *sample: object, targets: Sequence[Target] = ()) -> None:
    rule(
        *(targets or spellings(name, inplace=False)),
        name=name,
        fidelity=STRUCTURAL,
        samples=lambda draw: [Sample(draw.moments(3, 4), *sample)],
        kind=Kind.GATHER,
        takes_target=True,
    )(_read)


_register("index_select", 1, torch.tensor([2, 0, 0]))
_register("gather", 1, torch.tensor([[0, 0, 3], [1, 2, 2], [3, 1, 0]]))
_register("take", torch.tensor([[11, 0], [5, 5]]))
_register("take_along_dim", torch.tensor([[1], [0], [3]]), 1)
_register("masked_select", torch.tensor([True, False, True, True]))
_register("index", [None, torch.tensor([2, 0, 0])], targets=(torch.ops.aten.index.Tensor,))


rule(
    torch.ops.aten.im2col.default,
    name="im2col",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(2, 3, 5, 4), (2, 3), (1, 1), (1, 0), (2, 1))],
    kind=Kind.GATHER,
    takes_target=True,
)(_read)


def _tables(draw: Draw) -> Iterable[Sample]:
    yield Sample(torch.tensor([[0, 2], [1, 1]]), draw.moments(3, 4))
    yield Sample(torch.tensor([0, 2]), weight=draw.moments(3, 4), padding_idx=0)


_RANDOM_INDEX = (
    "An index that depends on the noisy input is not a Gaussian operation; compute it from a "
    "tensor without noise."
)


@rule(F.embedding, name="embedding", fidelity=STRUCTURAL, samples=_tables, kind=Kind.GATHER)
def embedding(
    input: Tensor,  # (*) of indices
    weight: Moments,  # (rows, width)
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Moments:
    """The indexed rows of mean and variance.

    Assumes: constant indices; a row that is read twice is fully correlated with itself.

    Source: definition.
    """
    if isinstance(input, Moments):
        raise NoRuleError(_RANDOM_INDEX)
    if max_norm is not None:
        raise NoRuleError("An embedding with `max_norm` rescales its weights; scale them before.")
    return Moments(F.embedding(input, weight.mean), F.embedding(input, weight.var))


@rule(
    torch.ops.aten.embedding.default,
    torch.embedding,
    name="embedding (aten order)",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), torch.tensor([0, 2, 2]))],
    kind=Kind.GATHER,
)
def embedding_aten(weight: Moments, indices: Tensor, *options: object, **kwargs: object) -> Moments:
    """As `embedding`, with the argument order of exported programs."""
    return embedding(indices, weight)


def _bags(draw: Draw) -> Iterable[Sample]:
    ids, table = torch.tensor([[0, 2], [1, 3]]), draw.moments(4, 3)
    yield Sample(ids, table)
    yield Sample(ids, table, mode="sum", per_sample_weights=draw.constant(2, 2))
    yield Sample(torch.tensor([0, 2, 1]), table, torch.tensor([0, 1]))


@rule(F.embedding_bag, name="embedding_bag", fidelity=EXACT, samples=_bags, kind=Kind.LINEAR_MAP)
def embedding_bag(
    input: Tensor,  # (bags, n) of indices, or (all,) with offsets
    weight: Moments,  # (rows, width)
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Moments:
    """Var = sum of the rows' variances, by squared weights; over n**2 for a mean.

    Assumes: independent rows, and no row twice in one bag; exact then.

    Source: `sum`, `mean`.
    """
    if mode == "max" or max_norm is not None:
        raise NoRuleError("`embedding_bag` has a rule for sums and means, without `max_norm`.")

    def bag(table: Tensor, how: str, weights: Tensor | None) -> Tensor:
        options = {"include_last_offset": include_last_offset, "padding_idx": padding_idx}
        options |= {"mode": how, "per_sample_weights": weights}
        return F.embedding_bag(input, table, offsets, **options)  # pyright: ignore[reportArgumentType]

    mean = bag(weight.mean, mode, per_sample_weights)
    if mode == "sum":
        squares = (
            None if per_sample_weights is None else squared(per_sample_weights, weight.var.dtype)
        )
        return Moments(mean, bag(weight.var, "sum", squares))
    count = bag(torch.ones_like(weight.var), "sum", None).clamp(min=1)
    return Moments(mean, bag(weight.var, "sum", None) / count.square())
