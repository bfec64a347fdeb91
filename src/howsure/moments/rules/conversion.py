"""Casts, moves to devices, and new tensors made in the image of a Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.errors import NoRuleError
from howsure.moments.families import select
from howsure.moments.rule import STRUCTURAL, Kind, Sample, Target, rule, rule_of
from howsure.moments.value import Moments, certain, variance_dtype

_CASTS = ("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda")


@rule(
    *(getattr(Tensor, name) for name in _CASTS),
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
    torch.ops.aten.to.device,
    torch.ops.aten._to_copy.default,
    name="cast",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), torch.float64)],
    kind=Kind.STRUCTURAL,
    takes_target=True,
)
def cast(
    target: Target, input: Moments | Tensor, *args: object, **kwargs: object
) -> Moments | Tensor | str:
    """The mean is cast or moved; the variance follows, in float32 at the least.

    Assumes: rounding to the new dtype adds no noise worth carrying.

    Source: definition.
    """
    mean = target(select(input, "mean"), *select(args, "mean"), **select(kwargs, "mean"))
    if not isinstance(input, Moments):
        return mean  # a constant cast to the type of a Gaussian
    if mean is input.mean or isinstance(mean, str):
        return input if mean is input.mean else mean
    if not mean.dtype.is_floating_point:
        raise NoRuleError(
            "Rounding a Gaussian to integers is a step function and has no smooth moments; "
            "compute indices and labels from a tensor without noise."
        )
    return Moments(mean, input.var.to(mean.device, variance_dtype(mean.dtype)))


_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
_NEW = ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")


@rule(
    *(getattr(torch, name) for name in _LIKE),
    *(getattr(Tensor, name) for name in _NEW),
    *(getattr(torch.ops.aten, name).default for name in (*_LIKE, *_NEW[:4])),
    name="new tensors",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4))],
    kind=Kind.CONSTRUCTION,
    takes_target=True,
)
def new_tensor(target: Target, input: Moments, *args: object, **kwargs: object) -> Moments | Tensor:
    """A constant: variance 0; ready to have Gaussians written into it.

    Assumes: nothing.

    Source: definition.
    """
    if any(isinstance(leaf, Moments) for leaf in pytree.tree_leaves((args, kwargs))):
        raise NoRuleError(
            "It would fill a constant tensor with a Gaussian and drop its variance; use "
            "`x.clone()` or `value.expand(...)`."
        )
    made = target(input.mean, *args, **kwargs)
    if not made.dtype.is_floating_point:
        return made
    return certain(made)


@rule_of(
    "fill",
    "zero",
    fidelity=STRUCTURAL,
    kind=Kind.CONSTRUCTION,
    samples=lambda draw: [
        Sample(draw.moments(3, 4), 2.0),
        Sample(draw.moments(3, 4), draw.constant()),
    ],
)
def fill(self: Moments, value: float | Tensor = 0.0) -> Moments:
    """A constant in every element: variance 0.

    Assumes: nothing.

    Source: definition.
    """
    if isinstance(value, Moments) or not isinstance(self, Moments):
        raise NoRuleError("`fill_` with a Gaussian makes one value of many; use `expand`.")
    mean = torch.zeros_like(self.mean) + value
    return Moments(mean.to(self.mean.dtype), torch.zeros_like(self.var))


@rule(
    Tensor.copy_,
    torch.ops.aten.copy_.default,
    torch.ops.aten.copy.default,
    name="copy_",
    fidelity=STRUCTURAL,
    kind=Kind.ASSIGNMENT,
    samples=lambda draw: [
        Sample(draw.moments(3, 4), draw.moments(4)),
        Sample(draw.moments(3, 4), draw.constant(4)),
    ],
)
def copy_(self: Moments | Tensor, src: Moments | Tensor, non_blocking: bool = False) -> Moments:
    """The source's mean and variance; a constant source has variance 0.

    Assumes: nothing.

    Source: definition.
    """
    target, source = select((self, src), "mean")
    # A copy: later writes to the source must not be seen here.
    mean = source.to(target).expand(target.shape).clone()
    if not isinstance(src, Moments):
        return certain(mean)
    dtype = variance_dtype(mean.dtype)
    return Moments(mean, src.var.to(mean.device, dtype).expand(mean.shape))
