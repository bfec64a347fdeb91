"""Dropout inside one operation: of attention weights, and between the layers of a recurrent net.

In eval mode torch leaves it out. Here each operation runs step by step, and hands what its dropout
would drop to a function: one that multiplies it, or one that records its shape.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.operations import RECURRENT

Drop = Callable[[Tensor], Tensor]
# What follows the module's path in the name of a site.
INNER = {
    "multi_head_attention_forward": "weights",
    "scaled_dot_product_attention": "weights",
    **dict.fromkeys(RECURRENT, "layers"),
}


def inner_rate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The rate of the dropout inside an operation.

    Models give theirs to `scaled_dot_product_attention` in train mode only.
    """
    if name in RECURRENT:
        layers, rate = args[5:7] if is_packed(args) else args[4:6]
        return float(rate) if layers > 1 else 0.0
    place = 10 if name == "multi_head_attention_forward" else 4
    return float(kwargs.get("dropout_p", args[place] if len(args) > place else 0.0))


def is_packed(args: tuple[Any, ...]) -> bool:
    """Whether a recurrent layer was given a packed sequence, whose rows are not on one axis."""
    return not isinstance(args[3], bool)


def run_with_dropout(
    name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], drop: Drop
) -> Any:
    """What the operation returns with its inner dropout done by `drop`."""
    if name in RECURRENT:
        return func(*args, **kwargs) if is_packed(args) else _recurrent(func, args, drop)
    if name == "multi_head_attention_forward":
        return _many_heads(func, args, kwargs, drop)
    return _attend(*args, **kwargs, drop=drop)


def _recurrent(func: Callable[..., Any], args: tuple[Any, ...], drop: Drop) -> tuple[Any, ...]:
    """One call for each layer, with `drop` between them."""
    data, state, weights, biases, layers, _, _, is_bidirectional, batch_first = args
    directions = 2 if is_bidirectional else 1
    per_layer = len(weights) // layers
    states = []
    for layer in range(layers):
        rows = slice(layer * directions, (layer + 1) * directions)
        first = tuple(s[rows] for s in state) if isinstance(state, tuple) else state[rows]
        some = weights[layer * per_layer : (layer + 1) * per_layer]
        data = drop(data) if layer else data
        data, *last = func(data, first, some, biases, 1, 0.0, False, is_bidirectional, batch_first)
        states.append(last)
    return data, *(torch.cat(parts) for parts in zip(*states, strict=True))


def _many_heads(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], drop: Drop
) -> tuple[Tensor, Tensor | None]:
    """The weights as torch computes them; their average of the values, after `drop`, is ours."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    asked = {"training": False, "need_weights": True, "average_attn_weights": False}
    _, weights = func(**{**given, **asked})
    has_batch = weights.dim() == 4
    weights = drop(weights)
    if given["static_v"] is not None:
        values = given["static_v"].unflatten(0, (-1, given["num_heads"])).movedim(2, 0)
    else:
        value, size = given["value"], given["embed_dim_to_check"]
        matrix, bias = given["v_proj_weight"], given["in_proj_bias"]
        if not given["use_separate_proj_weight"]:
            matrix = given["in_proj_weight"][2 * size :]
        values = F.linear(value, matrix, None if bias is None else bias[2 * size :])
        values = values if has_batch else values.unsqueeze(1)  # (keys, batch, size)
        if given["bias_v"] is not None:
            values = torch.cat([values, given["bias_v"].expand(1, *values.shape[1:])])
        values = values.unflatten(2, (given["num_heads"], -1))  # (keys, batch, heads, size)
    if given["add_zero_attn"]:
        values = torch.cat([values, torch.zeros_like(values[:1])])
    by_head = weights if has_batch else weights.unsqueeze(0)
    average = torch.matmul(by_head, values.permute(1, 2, 0, 3))  # (batch, heads, queries, size)
    joined = average.permute(2, 0, 1, 3).flatten(2)
    out = F.linear(joined, given["out_proj_weight"], given["out_proj_bias"])
    shown = weights.mean(-3) if given["average_attn_weights"] else weights
    return out if has_batch else out.squeeze(1), shown if given["need_weights"] else None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    drop: Drop,
) -> Tensor:
    """Attention as torch defines it, with `drop` on its weights."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    # A query without any key has the output 0.
    weights = scores.softmax(-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return drop(weights) @ value
