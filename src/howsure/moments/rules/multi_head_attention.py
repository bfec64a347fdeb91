"""Multi-head attention, written with operations that have rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite
from howsure.moments.rule import APPROXIMATE, Draw, Sample


def diagonal(draw: Draw, width: int, blocks: int) -> Tensor:
    """Projections that do not mix: what follows then meets independent inputs, as rules assume."""
    return torch.cat([torch.diag(draw.positive(width)) for _ in range(blocks)])


def _sequences(draw: Draw) -> Iterable[Sample]:
    x = [draw.moments(3, 2, 4, std=0.3) for _ in range(3)]
    weights = 4, 2, diagonal(draw, 4, 3), draw.constant(12)
    out = diagonal(draw, 4, 1), draw.constant(4)
    yield Sample(*x, *weights, None, None, False, 0.0, *out, training=False, need_weights=False)
    extra = draw.constant(1, 1, 4), draw.constant(1, 1, 4)
    masks = {"key_padding_mask": torch.tensor([[False, False, True], [False, True, False]])}
    masks["attn_mask"] = torch.ones(3, 3).triu(1).bool()
    yield Sample(
        draw.constant(3, 2, 4), *x[1:], *weights, *extra, True, 0.0, *out, training=False, **masks
    )


def mask_of_numbers(mask: Tensor, like: Tensor) -> Tensor:
    """Numbers to add to the scores: a boolean mask is True where a key is left out."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(
        mask, -torch.inf
    )


def _merged_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, scores: tuple[int, ...], like: Tensor
) -> Tensor | None:
    """Both masks as one that broadcasts to the scores (batch, heads, L, S); new keys are seen."""
    batch, heads, _, keys = scores
    total = None
    if attn_mask is not None:
        mask = mask_of_numbers(attn_mask, like)
        mask = F.pad(mask, (0, keys - mask.shape[-1]))
        total = mask if mask.dim() == 2 else mask.unflatten(0, (batch, heads))
    if key_padding_mask is not None:
        mask = mask_of_numbers(key_padding_mask, like)
        mask = F.pad(mask, (0, keys - mask.shape[-1])).reshape(batch, 1, 1, keys)
        total = mask if total is None else total + mask
    return total


def attend(
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
    name="multi_head_attention_forward",
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
    _refuse_what_is_random(dropout_p if training else 0.0, static_k, static_v)
    single = query.dim() == 2
    rows = [x.unsqueeze(1) if single else x for x in (query, key, value)]
    weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        assert in_proj_weight is not None
        weights = in_proj_weight.chunk(3)
    more = (None, bias_k, bias_v)
    q, k, v = heads_of(rows, weights, in_proj_bias, more, num_heads)
    if add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    mask = _merged_mask(attn_mask, key_padding_mask, (*q.shape[:3], k.shape[2]), query)
    out, seen = attend(q, k, v, mask, need_weights, average_attn_weights)
    out = F.linear(out, out_proj_weight, out_proj_bias)
    if not single:
        return out, seen
    return out.squeeze(1), None if seen is None else seen.squeeze(0)


def _refuse_what_is_random(dropout_p: float, *static: Tensor | None) -> None:
    if dropout_p > 0:
        raise NoRuleError(
            "Attention dropout draws a random mask. Call `model.eval()`; howsure places and "
            "samples dropout by itself."
        )
    if any(x is not None for x in static):
        raise NoRuleError("There is no rule for attention with `static_k` or `static_v`.")


def heads_of(
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
