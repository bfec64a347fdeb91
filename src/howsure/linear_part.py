"""Operations that are affine in their random arguments: directions go through the linear part."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.pushforward import for_each, push
from howsure.responses import Call, Outputs, Probed, Response

SUMS = ("add", "sub", "rsub", "neg")
# Linear in the image, not in where it is read.
_OF_DATA_ALONE = ("grid_sample", "grid_sampler")


def is_affine(call: Call) -> bool:
    """Whether the operation on the means is all there is: no innovation."""
    rule = call.rule
    if rule.family in ("structural", "gather") or rule.name in SUMS:
        return True
    if call.occurrences > 1 or rule.family != "linear map":
        return call.occurrences == 1 and rule.name == "mul"
    return call.data_alone or rule.name not in _OF_DATA_ALONE


def affine(call: Call) -> Any:
    """Responses with F_out = L F, L the linear part of the operation."""
    part = _linear_part(call)
    result = Outputs(call.plainly(*call.means), Tensor)
    with torch.no_grad():
        pushed = for_each(lambda *d: tuple(Outputs(part(*d), Tensor).found), call.probes)
    found = zip(result.found, pushed, strict=True)
    return result.filled([Response(mean, _expanded(F, mean)) for mean, F in found])


def _expanded(directions: Tensor, mean: Tensor) -> Tensor:
    """Directions in the shape of the mean, which a constant may have made larger."""
    count, *shape = directions.shape
    ones = [1] * (mean.dim() - len(shape))
    return directions.reshape(count, *ones, *shape).expand(count, *mean.shape)


def linearised(call: Call) -> Any:
    """Responses of the plain operation with its derivative at the means."""
    seen: list[Outputs] = []

    def values(*means: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        seen.append(Outputs(call.plainly(*means), Tensor))
        return tuple(seen[-1].found), ()

    out, pushed, _ = push(values, call.means, call.probes)
    responses = [Response(mean, F.detach()) for mean, F in zip(out, pushed, strict=True)]
    return seen[-1].filled(responses)


def _linear_part(call: Call) -> Callable[..., Any]:
    """The operation without its constant part."""
    if call.rule.name in SUMS:
        return _without_constants(call)
    if "bias" in _parameters(call):
        return _without_bias(call)
    moves = call.rule.family in ("structural", "gather")
    return _moved(call) if moves else call.plainly


def _moved(call: Call) -> Callable[..., Any]:
    """Where elements are only moved, the constants among them cancel exactly."""

    def difference(*directions: Tensor) -> Any:
        at_zero = Outputs(call.plainly(*(torch.zeros_like(d) for d in directions)), Tensor)
        moved = Outputs(call.plainly(*directions), Tensor)
        pairs = zip(moved.found, at_zero.found, strict=True)
        return moved.filled([torch.where(zero.isinf(), 0.0, d - zero) for d, zero in pairs])

    may_have_constants = call.rule.name in ("pad", "pad_packed_sequence") or any(
        isinstance(leaf, Tensor) and leaf.dtype.is_floating_point for leaf in call.leaves
    )
    return difference if may_have_constants else call.plainly


def _without_constants(call: Call) -> Callable[..., Any]:
    """A sum with 0 in place of what is not random."""
    args, kwargs = pytree.tree_unflatten(call.leaves, call.spec)
    zero = torch.zeros_like(call.means[0][..., :0].sum())
    args = tuple(arg if isinstance(arg, Probed) else zero for arg in args)
    if "other" in kwargs and not isinstance(kwargs["other"], Probed):
        kwargs["other"] = zero
    return Call(call.rule, call.func, args, kwargs).plainly


def _without_bias(call: Call) -> Callable[..., Any]:
    args, kwargs = pytree.tree_unflatten(call.leaves, call.spec)
    place = _parameters(call).index("bias")
    args = tuple(None if i == place else arg for i, arg in enumerate(args))
    if "bias" in kwargs:
        kwargs["bias"] = None
    return Call(call.rule, call.func, args, kwargs).plainly


def _parameters(call: Call) -> list[str]:
    return list(inspect.signature(call.rule.function).parameters)
