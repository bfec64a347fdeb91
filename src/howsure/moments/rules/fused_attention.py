"""The fused inference forms of attention and of transformer layers, which exported programs hold.

torch's own modules leave these paths as soon as an input overrides torch functions.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import _VF, Tensor
from torch.nn import functional as F

from howsure.moments.families import composite
from howsure.moments.rule import APPROXIMATE, STRUCTURAL, Draw, Kind, Sample, rule
from howsure.moments.rules.attention import attend, diagonal, heads_of, mask_of_numbers


def _fused(draw: Draw) -> Iterable[Sample]:
    x = [draw.moments(2, 3, 4, std=0.3) for _ in range(3)]
    weights = 4, 2, diagonal(draw, 4, 3), draw.constant(12)
    out = diagonal(draw, 4, 1), draw.constant(4)
    yield Sample(*x, *weights, *out, None, False)


@composite(
    _VF._native_multi_head_attention,
    torch.ops.aten._native_multi_head_attention.default,
    name="native_multi_head_attention",
    wide=True,
    samples=_fused,
    fidelity=APPROXIMATE,
    error=0.15,
)
def native_multi_head_attention(
    query: Tensor,  # (batch, L, E)
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `multi_head_attention_forward`, batch first."""
    rows = [x.transpose(0, 1) for x in (query, key, value)]
    q, k, v = heads_of(rows, qkv_weight.chunk(3), qkv_bias, (None,) * 3, num_head)
    if mask is not None:
        # Whatever the dtype, nonzero means left out; type 1 is a mask of keys (batch, S).
        mask = mask_of_numbers(mask.bool(), query)
        mask = mask[:, None, None, :] if mask_type == 1 else mask
    out, weights = attend(q, k, v, mask, need_weights, average_attn_weights)
    return F.linear(out, proj_weight, proj_bias).transpose(0, 1), weights


def _layers(draw: Draw) -> Iterable[Sample]:
    """The residual path alone: its branches are correlated with it, which rules do not see."""
    width, heads, hidden = 4, 2, 6
    attention = draw.constant(3 * width, width), draw.constant(3 * width)
    closed = torch.zeros(width, width, dtype=torch.float64), draw.constant(width)
    norms = [draw.constant(width) for _ in range(4)]
    feed = draw.constant(hidden, width), draw.constant(hidden)
    back = torch.zeros(width, hidden, dtype=torch.float64), draw.constant(width)
    x = draw.moments(2, 3, width)
    yield Sample(x, width, heads, *attention, *closed, True, True, 1e-5, *norms, *feed, *back)


@composite(
    _VF._transformer_encoder_layer_fwd,
    torch.ops.aten._transformer_encoder_layer_fwd.default,
    name="transformer_encoder_layer",
    samples=_layers,
    fidelity=APPROXIMATE,
    error=0.15,
)
def transformer_encoder_layer(
    src: Tensor,  # (batch, L, E)
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and feed-forward block, each with its residual sum and `layer_norm`.

    Assumes: independent branches, although each residual sum adds a tensor to a function of it.

    Source: `native_multi_head_attention`, `layer_norm`, `linear`, `add`.
    """

    def attention_of(x: Tensor) -> Tensor:
        sizes = embed_dim, num_heads
        parameters = qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, False, mask_type
        return _VF._native_multi_head_attention(x, x, x, *sizes, *parameters)[0]

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(hidden, ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attention_of(norm(src, *first))
        return x + feed(norm(x, *second))
    x = norm(src + attention_of(src), *first)
    return norm(x + feed(x), *second)


@rule(
    _VF._nested_tensor_from_mask_left_aligned,
    name="nested tensors",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))],
    kind=Kind.VALUE_ONLY,
)
def nested_tensor_from_mask_left_aligned(t: object, mask: Tensor) -> bool:
    """False: `nn.TransformerEncoder` then keeps its padded form, which has rules.

    Assumes: nothing.

    Source: howsure's own decision.
    """
    return False
