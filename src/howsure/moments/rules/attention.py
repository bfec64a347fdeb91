"""Scaled dot-product attention: scores of queries and keys, their softmax, a weighted average."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.rule import APPROXIMATE, Draw, Sample, rule_of
from howsure.moments.rules.attention_weights import Scores, weighted_average
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype

Operand = Moments | Tensor


def _heads(draw: Draw) -> Iterable[Sample]:
    q, k, v = (draw.moments(2, 2, 3, 4, std=0.3) for _ in range(3))
    yield Sample(q, k, v)
    yield Sample(q, k, v, is_causal=True, scale=0.3)
    mask = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    yield Sample(q, draw.constant(2, 2, 3, 4), v, attn_mask=mask)
    yield Sample(draw.constant(2, 2, 5, 4), k, v, draw.constant(5, 3))
    yield Sample(
        draw.moments(4, 2, 9, std=0.3), draw.moments(4, 5, 9, std=0.3), draw.constant(4, 5, 3)
    )
    yield Sample(draw.constant(2, 2, 4), draw.constant(2, 3, 4), draw.moments(2, 3, 4))


@rule_of("scaled_dot_product_attention", fidelity=APPROXIMATE, samples=_heads, error=0.15)
def scaled_dot_product_attention(
    query: Operand,  # (*batch, heads, L, E)
    key: Operand,  # (*batch, heads, S, E)
    value: Operand,  # (*batch, heads, S, V)
    attn_mask: Operand | None = None,  # (*, L, S)
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Moments:
    """E = a m_V, Var = a**2 v_score (V - E)**2 + (a**2 + var_a) v_V, summed over keys.

    The weights a and their variances come from the leave-one-out rule of `softmax`; what the
    scores of one query share through the query's noise is kept (`weighted_average`).

    Assumes: independent queries, keys and values. Self-attention makes all three from one
    tensor, which the rule cannot see.

    Source: our own; docs/accuracy.md compares it with independent weights.
    """
    if dropout_p > 0:
        raise NoRuleError(
            "Attention dropout draws a random mask. Call `model.eval()` and pass `dropout_p=0` "
            "there; howsure places and samples dropout by itself."
        )
    if enable_gqa:
        key, value = (_with_heads(x, mean_of(query).shape[-3]) for x in (key, value))
    width = mean_of(query).shape[-1]
    scores = score_moments(query, key, 1 / math.sqrt(width) if scale is None else scale)
    if is_causal:
        lower = torch.ones_like(scores.mean, dtype=torch.bool).tril()
        scores = scores.masked(lower)
    if attn_mask is not None:
        scores = scores.masked(attn_mask)
    out = weighted_average(scores, value)
    return Moments(out.mean.to(mean_of(query).dtype), out.var)


def _with_heads(x: Operand, heads: int) -> Operand:
    """Each key or value head repeated for the query heads that share it."""
    repeats = heads // mean_of(x).shape[-3]
    if isinstance(x, Tensor):
        return x.repeat_interleave(repeats, -3)
    mean, var = (field.repeat_interleave(repeats, -3) for field in (x.mean, x.var))
    return Moments(mean, var)


def score_moments(query: Operand, key: Operand, scale: float) -> Scores:
    """The scaled products of queries and keys, in the dtype of variances.

    The softmax does not see what all scores of a query have in common, so that a query's noise
    acts on keys measured from their average only.
    """
    dtype = variance_dtype(mean_of(query).dtype)
    q, k = mean_of(query).to(dtype), mean_of(key).to(dtype)
    mean = q @ k.transpose(-2, -1) * scale
    away = k - k.mean(-2, keepdim=True)
    own = torch.zeros_like(mean)
    if isinstance(key, Moments):
        own = (q.square() + var_of(query)) @ key.var.transpose(-2, -1) * scale**2
    if not isinstance(query, Moments):
        return Scores(mean, own, None, away)
    return Scores(mean, own, query.var * scale**2, away)
