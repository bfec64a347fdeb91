"""Operations that move elements without computing with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import select, structural, zip_moments
from howsure.moments.rule import STRUCTURAL, Draw, Kind, Sample, Target, rule, rule_of, spellings
from howsure.moments.value import Moments, as_moments


def _register(
    name: str,
    *sample: object,
    also: tuple[str, ...] = (),
    shape: tuple[int, ...] = (2, 3, 4),
    views: bool = True,
) -> None:
    """A structural rule with one sample: the arguments after a Gaussian of `shape`."""
    targets = (*spellings(name, *also, inplace=False),)

    def samples(draw: Draw) -> list[Sample]:
        return [Sample(draw.moments(*shape), *sample)]

    structural(*targets, name=name, samples=samples, views=views)


_register("reshape", (4, 6))
_register("flatten", 1)
_register("unflatten", 1, (3, 1))
_register("ravel")
_register("permute", (2, 0, 1))
_register("transpose", 0, 2, also=("swapaxes", "swapdims"))
_register("movedim", 0, 2, also=("moveaxis",))
_register("t", shape=(2, 3))
_register("adjoint")
_register("squeeze", 1, shape=(2, 1, 3))
_register("unsqueeze", 1)
_register("expand", (2, 3, 4), shape=(2, 1, 4))
_register("broadcast_to", (2, 3, 4), shape=(2, 1, 4))
_register("repeat", (2, 1, 3), views=False)
_register("tile", (2, 1), views=False)
_register("repeat_interleave", 2, 1, views=False)
_register("flip", (0, 2), views=False)
_register("fliplr", views=False)
_register("flipud", views=False)
_register("roll", 1, 2, views=False)
_register("rot90", views=False)
_register("narrow", 1, 1, 2)
_register("select", 1, 1)
_register("chunk", 2, 1)
_register("split", 2, 2, also=("split_with_sizes",))
_register("tensor_split", 2, 1)
_register("unbind", 1)
_register("unfold", 2, 2, 1)
_register("diagonal", 0, 1, 2)
_register("tril", shape=(3, 3), views=False)
_register("triu", shape=(3, 3), views=False)
_register("clone", views=False)
_register("detach")
_register("contiguous")
_register("view_as", torch.zeros(4, 6))
_register("reshape_as", torch.zeros(4, 6))
_register("expand_as", torch.zeros(2, 3, 4), shape=(2, 1, 4))
_register("channel_shuffle", 2, shape=(1, 4, 2, 2), views=False)
_register("pixel_shuffle", 2, shape=(1, 4, 2, 2), views=False)
_register("pixel_unshuffle", 2, shape=(1, 1, 4, 4), views=False)
_register("atleast_1d")
_register("atleast_2d")
_register("atleast_3d")

structural(
    *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real")),
    name="transposed attributes",
    samples=lambda draw: [Sample(draw.moments(2, 3))],
)


@rule_of(
    "view",
    also=(torch.ops.aten._unsafe_view.default,),
    inplace=False,
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(2, 3, 4), (4, 6))],
    kind=Kind.STRUCTURAL,
)
def view(self: Moments, *shape: Any) -> Moments:
    """The same elements in another shape.

    As `reshape`: whether torch could do it without a copy depends on strides that its own kernel
    chose, and that a rule's result need not have.

    Assumes: nothing.

    Source: definition.
    """
    if any(isinstance(part, torch.dtype) for part in shape):
        raise NoRuleError("The bits of a Gaussian cannot be read as another type; use `to`.")
    return Moments(self.mean.reshape(*shape), self.var.reshape(*shape))


def _indices(draw: Draw) -> Iterable[Sample]:
    x = draw.moments(3, 4, 5)
    yield Sample(x, 1)
    yield Sample(x, (slice(None), slice(None, None, 2)))
    yield Sample(x, (..., None, 0))
    yield Sample(x, torch.tensor([2, 0, 0]))
    yield Sample(x, torch.tensor([True, False, True]))


_RANDOM_INDEX = (
    "An index that depends on the noisy input is not a Gaussian operation; compute it from a "
    "tensor without noise."
)


@rule(
    Tensor.__getitem__,
    name="getitem",
    fidelity=STRUCTURAL,
    samples=_indices,
    kind=Kind.STRUCTURAL,
)
def getitem(self: Moments, index: Any) -> Moments:
    """The same elements of mean and variance.

    Assumes: a constant index.

    Source: definition.
    """
    if not isinstance(self, Moments) or _holds_moments(index):
        raise NoRuleError(_RANDOM_INDEX)
    return Moments(self.mean[index], self.var[index])


def _holds_moments(index: object) -> bool:
    items = index if isinstance(index, (tuple, list)) else (index,)
    return any(isinstance(item, Moments) for item in items)


def _assignments(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 4), (slice(None), 1), draw.moments(3))
    yield Sample(draw.moments(3, 4), 0, 2.5)


@rule(
    Tensor.__setitem__,
    name="setitem",
    fidelity=STRUCTURAL,
    samples=_assignments,
    kind=Kind.ASSIGNMENT,
)
def setitem(self: Moments | Tensor, index: Any, value: object) -> Moments:
    """The assigned elements of mean and variance replaced; a constant has variance 0.

    Assumes: a constant index.

    Source: definition.
    """
    if not isinstance(self, Moments):
        raise NoRuleError(
            "A Gaussian cannot be written into a constant tensor; start from "
            "`x.new_zeros(...)` or `torch.zeros_like(x)` of the noisy tensor."
        )
    if _holds_moments(index):
        raise NoRuleError(_RANDOM_INDEX)
    mean, var = self.mean.clone(), self.var.clone()
    mean[index] = select(value, "mean")
    # A constant's variance 0, written as a product so that vmap sees which values it belongs to.
    var[index] = value.var if isinstance(value, Moments) else 0.0
    return Moments(mean, var)


def _joined(
    target: Target, tensors: Moments | Sequence[Moments | Tensor], *args: object, **kwargs: object
) -> object:
    """The same operation on means and on variances; constants among them have variance 0.

    Assumes: nothing.

    Source: definition.
    """
    if isinstance(tensors, Moments):
        raise NoRuleError("Pass a list of tensors.")
    full = [as_moments(item) for item in tensors]
    means = target([item.mean for item in full], *args, **kwargs)
    return zip_moments(means, target([item.var for item in full], *args, **kwargs))


def _tensor_lists(draw: Draw) -> Iterable[Sample]:
    yield Sample([draw.moments(2, 3), draw.moments(2, 3)])
    yield Sample([draw.moments(2, 3), draw.constant(2, 3)])


for _name in ("cat", "stack", "hstack", "vstack", "dstack"):
    _also = {"cat": ("concat", "concatenate"), "vstack": ("row_stack",)}.get(_name, ())
    rule_of(
        _name,
        *_also,
        fidelity=STRUCTURAL,
        samples=_tensor_lists,
        kind=Kind.STRUCTURAL,
        takes_target=True,
        views=False,
    )(_joined)


def _borders(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 3, 4, 5)
    yield Sample(image, (1, 2, 0, 1))
    yield Sample(image, (1, 1), "constant", 2.0)
    for mode in ("reflect", "replicate", "circular"):
        yield Sample(image, (1, 2, 2, 1), mode=mode)


@rule_of(
    "pad", first=F.pad, fidelity=STRUCTURAL, samples=_borders, kind=Kind.STRUCTURAL, views=False
)
def pad(
    input: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Moments:
    """A constant border has variance 0; reflected, replicated and circular ones copy it.

    Assumes: nothing; copies are fully correlated with their source.

    Source: definition.
    """
    return Moments(F.pad(input.mean, tuple(pad), mode, value), F.pad(input.var, tuple(pad), mode))


def _together(target: Target, *tensors: Any, **kwargs: object) -> object:
    """The same operation on means and on variances, tensor by tensor.

    Assumes: nothing. Copies of one element are fully correlated, which later rules ignore.

    Source: definition.
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    means = target(*select(tensors, "mean"), **kwargs)
    variances = target(*(as_moments(item).var for item in given), **kwargs)
    return tuple(
        _paired(item, mean, var) for item, mean, var in zip(given, means, variances, strict=True)
    )


def _paired(item: Moments | Tensor, mean: Tensor, var: Tensor) -> Moments | Tensor:
    return Moments(mean, var) if isinstance(item, Moments) else mean


def _two_shapes(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 1), draw.moments(4))
    yield Sample(draw.moments(3, 1), draw.constant(4))


def _two_axes(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3), draw.moments(4), indexing="ij")
    yield Sample(draw.constant(3), draw.moments(4), indexing="xy")


for _name, _samples in (("broadcast_tensors", _two_shapes), ("meshgrid", _two_axes)):
    rule_of(
        _name,
        inplace=False,
        fidelity=STRUCTURAL,
        samples=_samples,
        kind=Kind.STRUCTURAL,
        takes_target=True,
        views_each=True,
    )(_together)
