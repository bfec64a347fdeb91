"""Attention and transformer modules run unmodified, in every configuration."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import howsure as hs


def _tensors(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if leaf is not None]


def _assert_plain_without_noise(model, *inputs):
    expected = model(*inputs)
    out = hs.propagate(model, inputs, (0.0, *[None] * (len(inputs) - 1)))
    torch.testing.assert_close(_tensors(out.mean), _tensors(expected), rtol=1e-4, atol=1e-5)
    assert all(bool((var == 0).all()) for var in _tensors(out.var))


OPTIONS = [
    {},
    {"batch_first": True},
    {"bias": False, "kdim": 4, "vdim": 5},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_multi_head_attention_without_noise_is_plain(options, need_weights):
    module = nn.MultiheadAttention(8, 2, **options).eval()
    query, key, value = torch.randn(3, 2, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    if "kdim" in options:
        key, value = key[..., :4], value[..., :5]
    if options.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    padding = torch.tensor([[False, False, True, False, False], [False, True, False, False, True]])
    mask = torch.zeros(3, 5).masked_fill(torch.rand(3, 5) < 0.2, -torch.inf)
    mask[:, 0] = 0

    def model(q):
        return module(q, key, value, padding.float() * -1e9, need_weights, mask)

    _assert_plain_without_noise(model, query)
    noisy = hs.propagate(lambda q: model(q)[0], query, 0.1)
    assert bool((noisy.var > 0).all())


def test_unbatched_attention_and_weights_of_every_head():
    module = nn.MultiheadAttention(8, 2).eval()
    key = torch.randn(5, 8)

    def model(query):
        return module(query, key, key, average_attn_weights=False)

    _assert_plain_without_noise(model, torch.randn(3, 8))


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_and_decoder_layers(norm_first):
    options = {"dim_feedforward": 16, "batch_first": True, "norm_first": norm_first}
    memory = torch.randn(2, 5, 8)
    encoder = nn.TransformerEncoderLayer(8, 2, **options).eval()
    decoder = nn.TransformerDecoderLayer(8, 2, **options).eval()
    with torch.no_grad():  # the fused path would be open
        _assert_plain_without_noise(encoder, torch.randn(2, 4, 8))
        _assert_plain_without_noise(decoder, torch.randn(2, 4, 8), memory)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    out = hs.propagate(lambda x: encoder(x, causal, is_causal=True), torch.randn(2, 4, 8), 0.01)
    assert bool((out.var > 0).all())


def test_encoder_with_padding_keeps_its_padded_form():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False, False, False, True], [False, False, False, False]])
    x = torch.randn(2, 4, 8)

    def model(value):
        return encoder(value, src_key_padding_mask=padding)

    with torch.enable_grad():
        expected = model(x)
    with torch.no_grad():
        out = hs.propagate(model, x, 0.0)
    seen = ~padding
    torch.testing.assert_close(out.mean[seen], expected[seen], rtol=1e-4, atol=1e-5)


def test_grouped_queries_and_constant_queries():
    x = torch.randn(2, 4, 3, 5)
    key, value = torch.randn(2, 2, 6, 5), torch.randn(2, 2, 6, 5)

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    _assert_plain_without_noise(grouped, x, key, value)
    repeated = [y.repeat_interleave(2, 1) for y in (key, value)]
    one = hs.propagate(grouped, (x, key, value), (0.1, 0.1, 0.1))
    two = hs.propagate(F.scaled_dot_product_attention, (x, *repeated), (0.1, 0.1, 0.1))
    torch.testing.assert_close(one.var, two.var)
    learned = hs.propagate(grouped, (x, key, value), (None, 0.1, None))
    assert bool((learned.var > 0).all())


def test_query_without_keys_gives_zero():
    q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
    mask = torch.tensor([[False] * 3, [True] * 3, [True, False, False]])

    def model(query):
        return F.scaled_dot_product_attention(query, k, v, attn_mask=mask)

    out = hs.propagate(model, q, 0.1)
    assert bool((out.mean[0, 0, 0] == 0).all()) and bool((out.var[0, 0, 0] == 0).all())
    torch.testing.assert_close(out.mean[0, 0, 2], v[0, 0, 0])


def test_noise_that_all_keys_share_does_not_count():
    """The softmax ignores what is added to all scores: a common part of the keys is such noise."""
    q, k, v = (torch.randn(1, 4, 8, dtype=torch.float64) for _ in range(3))
    near = hs.propagate(F.scaled_dot_product_attention, (q, k, v), (0.1, None, None))
    far = hs.propagate(F.scaled_dot_product_attention, (q, k + 5, v), (0.1, None, None))
    torch.testing.assert_close(near.mean, far.mean)
    torch.testing.assert_close(near.var, far.var)


def test_attention_dropout_is_refused_in_train_mode():
    module = nn.MultiheadAttention(8, 2, dropout=0.1)
    x = torch.randn(3, 2, 8)
    with pytest.raises(hs.NoRuleError, match="eval"):
        hs.propagate(lambda y: module.train()(y, y, y), x, 0.1)
    with pytest.raises(hs.NoRuleError, match="eval"):
        hs.propagate(lambda y: F.scaled_dot_product_attention(y, y, y, dropout_p=0.1), x, 0.1)


def test_variances_of_attention_can_be_trained():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3))
    noisy = tuple(torch.full((1, 2, 3, 4), 0.1) for _ in range(3))
    out = hs.propagate(F.scaled_dot_product_attention, (q, k, v), noisy)
    out.var.sum().backward()
    assert all(float(x.grad.abs().max()) > 1e-4 for x in (q, k, v))
