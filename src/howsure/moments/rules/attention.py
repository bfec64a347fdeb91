"""Attention: scores of queries and keys, their softmax, an average of values; and many heads of it.

out = sum_j a_j V_j with a = softmax(scores). The weights sum to 1, so that noise in a score moves
the output by a_j (V_j - out): only what differs from the average counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite, move
from howsure.moments.rule import APPROXIMATE, STRUCTURAL, Draw, Kind, Sample, rule, sample
from howsure.moments.rules.softmax import leave_one_out
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype
from howsure.private_torch import variable_functions

Operand = Moments | Tensor

# Six Gauss-Hermite nodes: their error is far below that of taking the log-sum-exp as Gaussian.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(6)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Scores:
    """Noisy scores: mean + noise of each score's own + keys @ noise of the query.

    Attributes:
        mean: Expected scores, -inf where a mask leaves a key out.
        own_var: Variance of the noise that each score has for itself.
        query_var: Variances of the query's noise, scaled; `None` for a constant query.
        keys: Keys, measured from their average.
    """

    mean: Tensor  # (*batch, L, S)
    own_var: Tensor  # (*batch, L, S)
    query_var: Tensor | None  # (*batch, L, E)
    keys: Tensor  # (*batch, S, E)

    @property
    def var(self) -> Tensor:
        """The whole variance of each score."""
        if self.query_var is None:
            return self.own_var
        return self.own_var + self.query_var @ self.keys.square().transpose(-2, -1)

    def masked(self, mask: Moments | Tensor) -> Scores:
        """Scores without the keys that a boolean mask leaves out, or plus a mask of numbers."""
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            return replace(self, mean=self.mean.masked_fill(mask.logical_not(), -torch.inf))
        mean = self.mean + mean_of(mask).to(self.mean.dtype)
        return replace(self, mean=mean, own_var=self.own_var + var_of(mask))


def attention_weights(mean: Tensor, var: Tensor) -> Moments:
    """Moments of softmax(scores) along the last axis, for scores that may be -inf.

    The leave-one-out rule of `softmax`, with few nodes, since there is one score for every pair.
    """
    if mean.shape[-1] == 1:
        return Moments(torch.ones_like(mean), torch.zeros_like(var))
    top = mean.amax(-1, keepdim=True)
    masked_out = torch.isneginf(top)
    std = torch.where(var == 0, torch.ones_like(var), var).sqrt().detach()
    # A masked score is -inf; far enough below the others is the same, and stays finite.
    floor = top.masked_fill(masked_out, 0.0) - 1e4 - 20 * std
    logits, var = torch.maximum(mean, floor), var.masked_fill(mean < floor, 0.0)
    weight = _sigmoid_moments(leave_one_out(logits, var, -1))
    certain = (var == 0).all(-1, keepdim=True)
    normal = weight.mean / weight.mean.sum(-1, keepdim=True)
    expected = torch.where(certain, torch.softmax(logits, -1), normal)
    # torch gives a query without any key the output 0.
    return Moments(expected.masked_fill(masked_out, 0.0), weight.var.masked_fill(masked_out, 0.0))


def _sigmoid_moments(input: Moments) -> Moments:
    """Moments of sigmoid(x), from its small side, where differences keep their digits.

    A tiny std is widened for the evaluation and the result scaled back, as in
    `howsure.moments.numerics.expectation`.
    """
    distance = input.mean.abs()
    resolution = 1e-3 if input.var.dtype == torch.float32 else 1e-5
    widened = torch.maximum(input.var, (resolution * distance.detach().clamp(min=1)).square())
    std, scale = widened.sqrt(), input.var / widened
    center = torch.sigmoid(-distance)
    values = [torch.sigmoid(std * node - distance) - center for node in _NODES.tolist()]
    weighted = list(zip(_WEIGHTS.tolist(), values, strict=True))
    shift = sum((w * value for w, value in weighted), torch.zeros_like(center))
    spread = sum((w * (value - shift).square() for w, value in weighted), torch.zeros_like(center))
    small = center + scale * shift
    return Moments(torch.where(input.mean > 0, 1 - small, small), scale * spread)


def weighted_average(scores: Scores, value: Moments | Tensor) -> Moments:
    """Moments of softmax(scores) @ value, with the correlation of the weights.

    Noise in score k moves the output by a_k u_k, u_k = r_k (V_k - out) - sum_j a_j r_j (V_j - out):
    the linearized softmax, in which r scales each weight's std to that of the leave-one-out rule.
    Var = sum_k a_k**2 u_k**2 v_k + sum_d (sum_k a_k u_k K_kd)**2 v_d + (a**2 + var_a) v_V.
    """
    score_var = scores.var
    weights = attention_weights(scores.mean, score_var)
    a, values = weights.mean, mean_of(value).to(score_var.dtype)
    mean = a @ values
    # Values measured from their average: less is lost where squares are subtracted.
    away = values - values.mean(-2, keepdim=True)
    ratio = _spread_ratio(a, weights.var, score_var)
    pull = _Pull(a, a * ratio, away)
    var = pull.squared(scores.own_var, ratio)
    if scores.query_var is not None:
        var = var + pull.through_keys(scores.keys, scores.query_var)
    if isinstance(value, Moments):
        var = var + (a.square() + weights.var) @ value.var
    return Moments(mean, var)


def _spread_ratio(a: Tensor, weight_var: Tensor, score_var: Tensor) -> Tensor:
    """The weights' std over that of the linearized softmax, for independent scores."""
    c = a.square() * score_var
    others = (c.sum(-1, keepdim=True) - c).clamp(min=0)
    linear = c * (1 - a).square() + a.square() * others
    # A weight that does not move at first order keeps its (vanishing) linear part.
    still = (linear <= torch.finfo(linear.dtype).tiny) | (weight_var == 0)
    one = torch.ones_like(linear)
    return (torch.where(still, one, weight_var) / torch.where(still, one, linear)).sqrt()


class _Pull:
    """How far noise in each score moves the output: a_k u_k, never formed for all pairs."""

    def __init__(self, a: Tensor, scaled: Tensor, values: Tensor) -> None:
        self.a = a  # (*batch, L, S)
        self.scaled = scaled  # a r
        self.values = values  # (*batch, S, V)
        self.out = a @ values
        self.shift = scaled @ values - self.out * scaled.sum(-1, keepdim=True)

    def squared(self, var: Tensor, ratio: Tensor) -> Tensor:
        """sum_k (a_k u_k)**2 var_k, multiplied out."""
        twice, once, plain = (x * self.a * var for x in (self.scaled * ratio, self.scaled, self.a))
        square = twice @ self.values.square() - 2 * self.out * (twice @ self.values)
        square = square + self.out.square() * twice.sum(-1, keepdim=True)
        cross = once @ self.values - self.out * once.sum(-1, keepdim=True)
        total = square - 2 * self.shift * cross + self.shift.square() * plain.sum(-1, keepdim=True)
        # A sum of squares: only rounding can make it negative.
        return total.clamp(min=0)

    def through_keys(self, keys: Tensor, query_var: Tensor) -> Tensor:
        """sum_d (sum_k a_k u_k keys_kd)**2 query_var_d, in blocks of d to bound the memory."""
        total = torch.zeros_like(self.out)
        levels = torch.stack([self.out, self.shift], -2)  # (*, L, 2, V)
        shares = torch.stack([self.scaled @ keys, self.a @ keys], -1)  # (*, L, E, 2)
        blocks = (keys.split(8, -1), query_var.split(8, -1), shares.split(8, -2))
        for k, v, share in zip(*blocks, strict=True):
            pairs = (k.unsqueeze(-1) * self.values.unsqueeze(-2)).flatten(-2)
            moved = (self.scaled @ pairs).unflatten(-1, (k.shape[-1], -1)) - share @ levels
            total = total + (v.unsqueeze(-2) @ moved.square()).squeeze(-2)
        return total


_DROPOUT = (
    "Attention dropout draws a random mask. Call `model.eval()`, and pass `dropout_p=0` there; "
    "howsure places and samples dropout by itself."
)


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


@rule("scaled_dot_product_attention", fidelity=APPROXIMATE, samples=_heads, error=0.15)
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
        raise NoRuleError(_DROPOUT)
    if enable_gqa:
        # Each key or value head is repeated for the query heads that share it.
        repeats = mean_of(query).shape[-3] // mean_of(key).shape[-3]
        key, value = (
            move(torch.repeat_interleave, {0: "input"}, x, repeats, -3)
            if isinstance(x, Moments)
            else x.repeat_interleave(repeats, -3)
            for x in (key, value)
        )
    width = mean_of(query).shape[-1]
    scores = score_moments(query, key, 1 / math.sqrt(width) if scale is None else scale)
    if is_causal:
        lower = torch.ones_like(scores.mean, dtype=torch.bool).tril()
        scores = scores.masked(lower)
    if attn_mask is not None:
        scores = scores.masked(attn_mask)
    out = weighted_average(scores, value)
    return Moments(out.mean.to(mean_of(query).dtype), out.var)


def score_moments(query: Operand, key: Operand, scale: float) -> Scores:
    """The scaled products of queries and keys, in the dtype of variances.

    The softmax does not see what all scores of a query have in common, so that a query's noise
    acts on keys measured from their average only.
    """
    dtype = variance_dtype(mean_of(query).dtype)
    q, k = mean_of(query).to(dtype), mean_of(key).to(dtype)
    mean = q @ k.transpose(-2, -1) * scale
    away = k - k.mean(-2, keepdim=True)
    own_var = torch.zeros_like(mean)
    if isinstance(key, Moments):
        own_var = (q.square() + var_of(query)) @ key.var.transpose(-2, -1) * scale**2
    if not isinstance(query, Moments):
        return Scores(mean, own_var, None, away)
    return Scores(mean, own_var, query.var * scale**2, away)


# Many heads, written with operations that have rules.
def _diagonal(draw: Draw, width: int, blocks: int) -> Tensor:
    """Projections that do not mix: what follows then meets independent inputs, as rules assume."""
    return torch.cat([torch.diag(draw.positive(width)) for _ in range(blocks)])


def _sequences(draw: Draw) -> Iterable[Sample]:
    x = [draw.moments(3, 2, 4, std=0.3) for _ in range(3)]
    weights = 4, 2, _diagonal(draw, 4, 3), draw.constant(12)
    out = _diagonal(draw, 4, 1), draw.constant(4)
    yield Sample(*x, *weights, None, None, False, 0.0, *out, training=False, need_weights=False)
    extra = draw.constant(1, 1, 4), draw.constant(1, 1, 4)
    masks = {"key_padding_mask": torch.tensor([[False, False, True], [False, True, False]])}
    masks["attn_mask"] = torch.ones(3, 3).triu(1).bool()
    yield Sample(
        draw.constant(3, 2, 4), *x[1:], *weights, *extra, True, 0.0, *out, training=False, **masks
    )


def _mask_of_numbers(mask: Tensor, like: Tensor) -> Tensor:
    """Numbers to add to the scores: a boolean mask is True where a key is left out."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(
        mask, -torch.inf
    )


def _merge_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, scores: tuple[int, ...], like: Tensor
) -> Tensor | None:
    """Both masks as one that broadcasts to the scores (batch, heads, L, S); new keys are seen."""
    batch, heads, _, keys = scores
    total = None
    if attn_mask is not None:
        mask = _mask_of_numbers(attn_mask, like)
        mask = F.pad(mask, (0, keys - mask.shape[-1]))
        total = mask if mask.dim() == 2 else mask.unflatten(0, (batch, heads))
    if key_padding_mask is not None:
        mask = _mask_of_numbers(key_padding_mask, like)
        mask = F.pad(mask, (0, keys - mask.shape[-1])).reshape(batch, 1, 1, keys)
        total = mask if total is None else total + mask
    return total


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool, average: bool
) -> tuple[Tensor, Tensor | None]:
    """Attention of heads (batch, heads, L, E): the output (L, batch, heads E), and the weights."""
    out = F.scaled_dot_product_attention(q, k, v, mask)
    out = out.permute(2, 0, 1, 3).flatten(2)
    if not need_weights:
        return out, None
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    return out, weights.mean(1) if average else weights


@composite(
    F.multi_head_attention_forward,
    wide=True,
    samples=_sequences,
    fidelity=APPROXIMATE,
    error=0.15,
)
def multi_head_attention_forward(
    query: Tensor,  # (L, batch, E) or (L, E)
    key: Tensor,  # (S, batch, E)
    value: Tensor,  # (S, batch, E)
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Projections by `linear`, heads by `scaled_dot_product_attention`, then the output's `linear`.

    Assumes: independent projections, although all are made from one input.

    Source: `linear`, `scaled_dot_product_attention`.
    """
    if training and dropout_p > 0:
        raise NoRuleError(_DROPOUT)
    if static_k is not None or static_v is not None:
        raise NoRuleError("There is no rule for attention with `static_k` or `static_v`.")
    single = query.dim() == 2
    rows = [x.unsqueeze(1) if single else x for x in (query, key, value)]
    projections = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        assert in_proj_weight is not None
        projections = in_proj_weight.chunk(3)
    q, k, v = _project_heads(rows, projections, in_proj_bias, (None, bias_k, bias_v), num_heads)
    if add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    mask = _merge_masks(attn_mask, key_padding_mask, (*q.shape[:3], k.shape[2]), query)
    out, weights = _attend(q, k, v, mask, need_weights, average_attn_weights)
    out = F.linear(out, out_proj_weight, out_proj_bias)
    if not single:
        return out, weights
    return out.squeeze(1), None if weights is None else weights.squeeze(0)


def _project_heads(
    rows: Sequence[Tensor],  # (length, batch, E) each
    weights: Sequence[Tensor | None],
    bias: Tensor | None,
    more: Sequence[Tensor | None],
    heads: int,
) -> list[Tensor]:  # (batch, heads, length, E / heads) each
    """Queries, keys and values, projected, with the learned extra keys and values behind."""
    projected = []
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    for x, weight, shift, extra in zip(rows, weights, biases, more, strict=True):
        assert weight is not None
        x = F.linear(x, weight, shift)
        if extra is not None:
            x = torch.cat([x, extra.expand(1, *x.shape[1:])])
        projected.append(x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3))
    return projected


@rule(
    variable_functions._nested_tensor_from_mask_left_aligned,
    name="nested tensors",
    fidelity=STRUCTURAL,
    samples=sample((2, 3, 4), torch.ones(2, 3, dtype=torch.bool)),
    kind=Kind.VALUE_ONLY,
)
def nested_tensor_from_mask_left_aligned(t: object, mask: Tensor) -> bool:
    """False: `nn.TransformerEncoder` then keeps its padded form, which has rules.

    Assumes: nothing.

    Source: howsure's own decision.
    """
    return False
