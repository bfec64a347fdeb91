"""Wrong formulas for attention, normalization, products and gathers, which the laws must reject."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import howsure.moments.rules  # noqa: F401  (fills the table)
from howsure.moments.families import bilinear
from howsure.moments.rule import registered
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype
from howsure.testing import check_rule

RULES = {rule.name: rule for rule in registered()}


def layer_norm_by_the_scale_of_the_mean(
    input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True
):
    axes = tuple(range(-len(normalized_shape), 0))
    scale = input.mean.var(axes, correction=0, keepdim=True) + eps
    gain = 1.0 if weight is None else weight.square()
    mean = F.layer_norm(input.mean, normalized_shape, weight, bias, eps)
    return Moments(mean, input.var * gain / scale)


def attention_with_independent_weights(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    good = RULES["scaled_dot_product_attention"](
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )
    if attn_mask is not None or is_causal or isinstance(key, torch.Tensor):
        return good
    scores = bilinear(lambda q, k: q @ k.mT / math.sqrt(q.shape[-1]), query, key)
    return Moments(good.mean, bilinear(torch.matmul, RULES["softmax"](scores, -1), value).var)


def matmul_without_the_second_order_term(input, other):
    good = RULES["matmul"](input, other)
    if not (isinstance(input, Moments) and isinstance(other, Moments)):
        return good
    return Moments(good.mean, good.var - input.var @ other.var)


def einsum_that_squares_before_it_sums(equation, *operands, path=None):
    mean = torch.einsum(equation, *(mean_of(x) for x in operands))
    powers = [mean_of(x).to(variance_dtype(mean.dtype)).square() for x in operands]
    second = [power + var_of(x) for power, x in zip(powers, operands, strict=True)]
    return Moments(mean, torch.einsum(equation, *second) - torch.einsum(equation, *powers))


def lerp_that_counts_the_start_twice(input, end, weight):
    mean = torch.lerp(mean_of(input), mean_of(end), mean_of(weight))
    var = var_of(input) + RULES["mul"](RULES["sub"](end, input), weight).var
    return Moments(mean, var.expand(mean.shape))


def sampled_variance(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    options = mode, padding_mode, bool(align_corners)
    mean, var = (F.grid_sample(x, grid.to(x.dtype), *options) for x in (input.mean, input.var))
    return Moments(mean, var.clamp(min=0))


def fill_that_keeps_the_variance(input, mask, value):
    mean = torch.masked_fill(input.mean, mask, mean_of(value))
    return Moments(mean, input.var.expand(mean.shape))


def index_add_without_the_square_of_alpha(input, dim, index, source, *, alpha=1):
    good = RULES["index_add"](input, dim, index, source)
    more = torch.index_add(mean_of(input), dim, index, mean_of(source), alpha=alpha)
    return Moments(more, good.var)


def length_by_the_delta_method(input, ord=2, dim=None, keepdim=False, *, dtype=None):
    if ord != 2:
        return RULES["vector_norm"](input, ord, dim, keepdim, dtype=dtype)
    axes = tuple(range(input.mean.dim())) if dim is None else dim
    length = torch.linalg.vector_norm(input.mean, 2, axes, keepdim, dtype=dtype)
    spread = (input.mean.square() * input.var).sum(axes, keepdim=keepdim)
    return Moments(length, spread / length.square())


MUTANTS = {
    "layer_norm": layer_norm_by_the_scale_of_the_mean,
    "scaled_dot_product_attention": attention_with_independent_weights,
    "matmul": matmul_without_the_second_order_term,
    "einsum": einsum_that_squares_before_it_sums,
    "lerp": lerp_that_counts_the_start_twice,
    "grid_sample": sampled_variance,
    "masked_fill": fill_that_keeps_the_variance,
    "index_add": index_add_without_the_square_of_alpha,
    "vector_norm": length_by_the_delta_method,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_laws_reject_a_wrong_formula(name):
    original, mutant = RULES[name], MUTANTS[name]
    mutant.__doc__ = original.function.__doc__
    with pytest.raises(AssertionError, match="breaks the law"):
        check_rule(replace(original, function=mutant, takes_target=False))
