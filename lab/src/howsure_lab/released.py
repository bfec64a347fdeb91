"""The formulas of the authors' released code, only to compare with; see docs/migrating.md.

The moments of every layer it has, as overrides for `propagate(..., rules=...)`, written from the
formulas of `contrib/adf.py` in Loquercio et al.'s repository, with their defects: each docstring
says which. After every layer a constant, `min_variance`, is added to the variance. Then how it
combines samples and scores them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import per_dim
from howsure.moments.numerics import cdf, pdf
from howsure.moments.rule import APPROXIMATE, Rule, Target, find, one_of_each_shape
from howsure.moments.value import Moments

Formula = Callable[..., Moments]

# Right in the released code but for the constant; a global average pool may be spelled in three
# ways, of which theirs is `avg_pool2d`.
_ONLY_LIFTED = (
    F.conv2d,
    F.conv_transpose2d,
    F.linear,
    F.dropout,
    F.dropout2d,
    F.adaptive_avg_pool2d,
    torch.mean,
)


def released_rules(min_variance: float = 1e-3) -> dict[Target, Rule]:
    """The released formulas by operation.

    Args:
        min_variance: What they add to the variance after every layer; their default is 1e-3.
    """
    if not min_variance >= 0:
        raise ValueError(f"`min_variance` is a variance and must be 0 or more, not {min_variance}.")
    formulas: dict[Target, Formula] = {
        F.batch_norm: batch_norm,
        F.relu: relu,
        F.leaky_relu: leaky_relu,
        F.avg_pool2d: avg_pool2d,
        F.softmax: softmax,
        **{op: _found(op).called_as(op) for op in _ONLY_LIFTED},
    }
    rules = {op: _lifted(formula, min_variance) for op, formula in formulas.items()}
    rules[F.max_pool2d] = functools.partial(max_pool2d, min_variance=min_variance)
    released = {}
    for op, formula in rules.items():
        name, targets = f"released {_found(op).name}", _found(op).targets
        for target in targets:
            released[target] = Rule(name, formula, (target,), APPROXIMATE, one_of_each_shape)
    return released


def _found(op: Target) -> Rule:
    rule = find(op)
    assert rule is not None
    return rule


def _lifted(formula: Formula, min_variance: float) -> Formula:
    """The formula with the constant added to its variance."""

    @functools.wraps(formula)
    def lifted(*args: object, **kwargs: object) -> Moments:
        out = formula(*args, **kwargs)
        return Moments(out.mean, out.var + min_variance)

    return lifted


def batch_norm(
    input: Moments,  # (batch, channels, *)
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """var = weight**2 var. Defect: without 1 / (running_var + eps)."""
    mean = F.batch_norm(
        input.mean, running_mean, running_var, weight, bias, training, momentum, eps
    )
    if weight is None:
        raise NoRuleError("The released batch norm has no variance without affine weights.")
    return Moments(mean, input.var * weight.square().reshape(-1, *[1] * (mean.dim() - 2)))


def relu(input: Moments, inplace: bool = False) -> Moments:
    """var = E[x**2] - E[x]**2. Defect: 0 or negative in float32, NaN where var is 0."""
    mean, var = input.mean, input.var
    std = var.sqrt()
    upper, density = cdf(mean / std), pdf(mean / std)
    out = mean * upper + std * density
    return Moments(out, (mean.square() + var) * upper + mean * std * density - out.square())


def leaky_relu(input: Moments, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """`relu` with the part below 0 and the covariance of the two; it has the same defect."""
    above, below = relu(input), relu(Moments(-input.mean, input.var))
    mean = above.mean - negative_slope * below.mean
    covariance = -above.mean * below.mean
    var = above.var + negative_slope**2 * below.var - 2 * negative_slope * covariance
    return Moments(mean, var)


def avg_pool2d(
    input: Moments,  # (batch, channels, height, width)
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    *args: object,
) -> Moments:
    """var = average of var / (height width). Defect: of the input, not of the window."""
    stride = stride if stride else kernel_size
    if args or any(per_dim(padding, 2)) or per_dim(stride, 2) != per_dim(kernel_size, 2):
        raise NoRuleError("The released average pool has a kernel size only.")
    window, count = per_dim(kernel_size, 2), math.prod(input.mean.shape[-2:])
    return Moments(F.avg_pool2d(input.mean, window), F.avg_pool2d(input.var, window) / count)


def max_pool2d(
    input: Moments,  # (batch, channels, height, width)
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    min_variance: float,
) -> Moments:
    """The larger of two columns, then of two rows. Defects: as `relu`, and only 2 x 2."""
    plain = not ceil_mode and not return_indices and not any(per_dim(padding, 2))
    size = per_dim(kernel_size, 2), per_dim(stride or kernel_size, 2)
    if not plain or size != ((2, 2), (2, 2)):
        raise NoRuleError("The released max pool is 2 x 2 with stride 2 only.")
    for axis in (-1, -2):
        # Every second column, from the first and from the second on; then rows.
        index = torch.arange(input.mean.shape[axis], device=input.mean.device)
        mean, var = (
            [part.index_select(axis, index[start::2]) for start in (0, 1)]
            for part in (input.mean, input.var)
        )
        larger = _larger(*map(Moments, mean, var))
        input = Moments(larger.mean, larger.var + min_variance)
    return input


def _larger(first: Moments, second: Moments) -> Moments:
    """Clark's moments of a maximum, the variance as E[x**2] - E[x]**2."""
    std = (first.var + second.var).sqrt()
    ratio = (first.mean - second.mean) / std
    upper, density = cdf(ratio), pdf(ratio)
    mean = std * density + (first.mean - second.mean) * upper + second.mean
    square = (first.mean + second.mean) * std * density
    square = square + (first.mean.square() + first.var) * upper
    square = square + (second.mean.square() + second.var) * (1 - upper)
    return Moments(mean, square - mean.square())


def softmax(
    input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: object = None
) -> Moments:
    """Log-normal moments of e**x over the sum of their means.

    Defects: the sum is taken as constant, so that a probability can have a std above 1; overflows
    from logits of 45 on.
    """
    axis = 1 if dim is None else dim
    mean = torch.exp(input.mean + 0.5 * input.var)
    var = torch.exp(2 * input.mean + input.var) * (torch.exp(input.var) - 1)
    total = mean.sum(axis, keepdim=True) + 1e-5
    return Moments(mean / total, var / total.square())


def released_options(min_variance: float = 1e-3) -> dict[str, Any]:
    """Options with which `Uncertain` computes what the released code does.

    The formulas of its layers, and the variance of the means divided by T - 1.
    """
    return {"rules": released_rules(min_variance), "unbiased": True}


def released_nll(
    mean: Tensor,  # (batch, classes)
    var: Tensor,  # (batch, classes)
    target: Tensor,  # (batch, classes), one-hot
) -> Tensor:
    """Mean of log var + (target - mean)**2 / (2 var**2) + 1/2 log 2 pi.

    Defect: the variance goes where the standard deviation belongs (`Normal(mean, scale=var)`).
    """
    normal = torch.distributions.Normal(mean, scale=var, validate_args=False)
    return -normal.log_prob(target).mean()
