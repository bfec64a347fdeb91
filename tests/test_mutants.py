"""Wrong formulas that the laws must reject: the laws' own test.

The first two are those of the paper's released code.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from howsure.moments.families import linear_map  # noqa: F401  (the registry is filled by howsure)
from howsure.moments.interpreter import propagate  # noqa: F401
from howsure.moments.numerics import cdf, pdf
from howsure.moments.rule import registered
from howsure.moments.value import Moments, mean_of, var_of
from howsure.testing import check_rule

RULES = {rule.name: rule for rule in registered()}


def batch_norm_without_running_variance(input, running_mean, running_var, weight=None, *args, **kw):
    good = RULES["batch_norm"](input, running_mean, running_var, weight, *args, **kw)
    scale = 1.0 if weight is None else weight.square().reshape(-1, *[1] * (good.mean.dim() - 2))
    return Moments(good.mean, input.var * scale)


def average_pool_over_the_whole_input(input, *args, **kwargs):
    mean = F.avg_pool2d(input.mean, *args, **kwargs)
    total = F.avg_pool2d(input.var, *args, **kwargs)
    return Moments(mean, total / (input.mean.shape[-1] * input.mean.shape[-2]))


def residual_add_with_doubled_variance(input, other, *, alpha=1):
    good = RULES["add"](input, other, alpha=alpha)
    return Moments(good.mean, 2 * good.var)


def mask_on_the_mean_only(input, other):
    if isinstance(input, Moments) and isinstance(other, Moments):
        return RULES["mul"](input, other)
    mean = mean_of(input) * mean_of(other)
    return Moments(mean, (var_of(input) + var_of(other)).expand(mean.shape))


def linear_with_unsquared_weights(input, weight, bias=None):
    mean_in, var_in = (input.mean, input.var) if isinstance(input, Moments) else (input, 0 * input)
    return Moments(
        F.linear(mean_in, mean_of(weight), mean_of(bias)),
        F.linear(var_in, mean_of(weight).to(var_in.dtype)).abs(),
    )


def linear_with_the_bias_in_the_variance(input, weight, bias=None):
    good = RULES["linear"](input, weight, bias)
    return Moments(good.mean, good.var if bias is None else good.var + mean_of(bias).square())


def relu_by_difference_of_squares(input, inplace=False):
    mean, var = input.mean, input.var
    std = (var + torch.finfo(var.dtype).tiny).sqrt()
    a = mean / std
    first = mean * cdf(a) + std * pdf(a)
    second = (mean.square() + var) * cdf(a) + mean * std * pdf(a)
    return Moments(first, second - first.square())


def relu_with_the_plain_mean(input, inplace=False):
    return Moments(torch.relu(input.mean), RULES["relu"](input).var)


def delta_method_sigmoid(input):
    value = torch.sigmoid(input.mean)
    return Moments(value, (value * (1 - value)).square() * input.var)


def log_normal_softmax(input, dim=None, _stacklevel=3, dtype=None):
    log_mean, log_var = input.mean + input.var / 2, torch.expm1(input.var)
    share = torch.softmax(log_mean, dim)
    return Moments(share, share.square() * log_var)


def interpolated_variance(input, *args, **kwargs):
    return Moments(
        F.interpolate(input.mean, *args, **kwargs), F.interpolate(input.var, *args, **kwargs)
    )


def difference_of_variances(input, other, *, alpha=1):
    good = RULES["sub"](input, other, alpha=alpha)
    return Moments(good.mean, (var_of(input) - var_of(other) * alpha).abs().expand(good.mean.shape))


def mean_with_the_variance_of_the_sum(input, dim=None, keepdim=False, *, dtype=None):
    good = RULES["mean"](input, dim, keepdim)
    return Moments(good.mean, RULES["sum"](input, dim, keepdim).var)


def pad_with_noise(input, pad, mode="constant", value=None):
    good = RULES["pad"](input, pad, mode, value)
    return Moments(good.mean, F.pad(input.var, tuple(pad), mode, value))


def product_without_the_second_order_term(input, other):
    good = RULES["mul"](input, other)
    if isinstance(input, Moments) and isinstance(other, Moments):
        return Moments(good.mean, good.var - input.var * other.var)
    return good


def clamp_that_forgets_the_upper_end(input, min=None, max=None):
    return RULES["clamp"](input, min=min) if min is not None else RULES["clamp"](input, max=max)


def maximum_by_the_larger_mean(input, other):
    take = mean_of(input) >= mean_of(other)
    zero = torch.zeros(())
    return Moments(
        torch.maximum(mean_of(input), mean_of(other)),
        torch.where(take, zero + var_of(input), zero + var_of(other)).expand(take.shape),
    )


def variance_floor(input, inplace=False):
    good = RULES["relu"](input)
    return Moments(good.mean, good.var + 1e-3)


MUTANTS = {
    "batch_norm": [batch_norm_without_running_variance],
    "avg_pool2d": [average_pool_over_the_whole_input],
    "add": [residual_add_with_doubled_variance],
    "mul": [mask_on_the_mean_only, product_without_the_second_order_term],
    "linear": [linear_with_unsquared_weights, linear_with_the_bias_in_the_variance],
    "relu": [relu_by_difference_of_squares, relu_with_the_plain_mean, variance_floor],
    "sigmoid": [delta_method_sigmoid],
    "softmax": [log_normal_softmax],
    "interpolate": [interpolated_variance],
    "sub": [difference_of_variances],
    "mean": [mean_with_the_variance_of_the_sum],
    "pad": [pad_with_noise],
    "clamp": [clamp_that_forgets_the_upper_end],
    "maximum": [maximum_by_the_larger_mean],
}
CASES = [(name, mutant) for name, mutants in MUTANTS.items() for mutant in mutants]


@pytest.mark.parametrize(
    ("name", "mutant"), CASES, ids=lambda case: getattr(case, "__name__", case)
)
def test_laws_reject_a_wrong_formula(name, mutant):
    original = RULES[name]
    documented = replace(original, function=_documented(mutant, original), takes_target=False)
    with pytest.raises(AssertionError, match="breaks the law"):
        check_rule(documented)


@pytest.mark.parametrize("name", MUTANTS)
def test_laws_accept_the_right_formula(name):
    check_rule(RULES[name])


def _documented(mutant, original):
    """The mutant with the original's docstring, so that only its formula can be at fault."""
    mutant.__doc__ = original.function.__doc__
    return mutant
