"""Operations that are affine in their random arguments: directions go through the linear part."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.pushforward import push
from howsure.responses import Call, Outputs, Probed, Response

SUMS = ("add", "sub", "rsub", "neg")


def is_affine(call: Call) -> bool:
    """Whether the operation on the means is all there is: no innovation."""
    rule = call.rule
    if rule.family == "structural" or rule.name in SUMS:
        return True
    scales = rule.name == "mul" and call.occurrences == 1
    return scales or (rule.family == "linear map" and call.data_alone)


def affine(call: Call) -> Any:
    """Responses with F_out = L F, L the linear part of the operation."""
    part = _linear_part(call)
    if part is None:
        return linearised(call)
    result = Outputs(call.plainly(*call.means), Tensor)
    with torch.no_grad():
        pushed = torch.vmap(lambda *d: tuple(Outputs(part(*d), Tensor).found))(*call.probes)
        count = pushed[0].shape[:1]
        shaped = [F.expand(count + m.shape) for F, m in zip(pushed, result.found, strict=True)]
    return result.filled([Response(m, F) for m, F in zip(result.found, shaped, strict=True)])


def linearised(call: Call) -> Any:
    """Responses of the plain operation with its derivative at the means."""
    seen: list[Outputs] = []

    def values(*means: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        seen.append(Outputs(call.plainly(*means), Tensor))
        return tuple(seen[-1].found), ()

    out, pushed, _ = push(values, call.means, call.probes)
    responses = [Response(mean, F.detach()) for mean, F in zip(out, pushed, strict=True)]
    return seen[-1].filled(responses)


def _linear_part(call: Call) -> Callable[..., Any] | None:
    """The operation without its constant part, if that is simple to take away."""
    if call.given_rule is None or call.rule.name == "pad":
        return None
    name = call.rule.name
    if name == "mul":
        return call.plainly
    if name in SUMS:
        return _without_constants(call)
    if "bias" in _parameters(call):
        return _without_bias(call)
    constants = [leaf for leaf in call.leaves if _is_floating(leaf)]
    return None if constants else call.plainly


def _without_constants(call: Call) -> Callable[..., Any]:
    """A sum with 0 in place of what is not random."""
    args, kwargs = pytree.tree_unflatten(call.leaves, call.spec)
    args = tuple(arg if isinstance(arg, Probed) else 0.0 for arg in args)
    if "other" in kwargs and not isinstance(kwargs["other"], Probed):
        kwargs["other"] = 0.0
    return Call(call.rule, call.func, args, kwargs).plainly


def _without_bias(call: Call) -> Callable[..., Any]:
    args, kwargs = pytree.tree_unflatten(call.leaves, call.spec)
    place = _parameters(call).index("bias")
    args = tuple(None if i == place else arg for i, arg in enumerate(args))
    if "bias" in kwargs:
        kwargs["bias"] = None
    return Call(call.rule, call.func, args, kwargs).plainly


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point


def _parameters(call: Call) -> list[str]:
    return list(inspect.signature(call.rule.function).parameters)
