"""Softmax and its relatives: the leave-one-out rule.

p_i = sigmoid(x_i - L_i), where L_i = log sum_{j != i} e^{x_j} does not depend on x_i. L_i is
taken as Gaussian; the rest is one-dimensional quadrature. The standard deviation is within about
10 % for logit standard deviations up to 2, where the log-normal moments of the authors' code are
wrong by factors; `docs/accuracy.md` has the table.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.numerics import expectation
from howsure.moments.rule import APPROXIMATE, Sample, Target, normal, rule
from howsure.moments.value import Moments

_LOGITS = [
    Sample(normal(4, 5, std=0.5), 1),
    Sample(normal(2, 3, 2, std=0.3), dim=1),
    Sample(normal(3, 2, std=0.5), -1),
]


def leave_one_out(mean: Tensor, var: Tensor, dim: int) -> Moments:
    """Moments of x_i - L_i for every i, with q the softmax over the others.

    E[L] = LSE + sum q (1 - q) v / (1 + sqrt(1 + v' / 4)): the integral over the noise level t of
    1/2 sum v E_t[q (1 - q)], where E_t[q (1 - q)] falls as 1 / sqrt(1 + t v' / 4) and
    v' = v + sum q**2 v. Second order for small v, of order sqrt(v) for large.
    Var[L] = sum q'**2 v with q' the softmax of (mean - LSE) / sqrt(1 + pi (v + sum p**2 v) / 8),
    MacKay's expectation of the margin. A shift of all logits changes nothing.
    """
    # A masked score of -inf would make gradients 0 * inf; at -1e30 its share is 0 as well.
    mean = mean.clamp(min=-1e30)
    margin = mean - torch.logsumexp(mean, dim, keepdim=True)
    common = (torch.softmax(mean, dim).square() * var).sum(dim, keepdim=True)
    softened = margin / torch.sqrt(1 + math.pi / 8 * (var + common))
    pooled = (torch.softmax(softened, dim).square() * var).sum(dim, keepdim=True)
    pull = var / (1 + torch.sqrt(1 + 0.25 * (var + pooled)))
    log_sum, once, twice = _over_others(mean, pull, dim)
    _, _, spread = _over_others(softened, var, dim)
    return Moments(mean - log_sum - (once - twice), var + spread)


def _over_others(logits: Tensor, weight: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """log sum e^x, sum q w and sum q**2 w over j != i, with q the softmax over j != i.

    By reweighting the full softmax with 1 / (1 - p_i), except for the leading element, whose
    own share would cancel everything: only one can have p above one half.
    """
    leader = F.one_hot(logits.argmax(dim), logits.shape[dim]).movedim(-1, dim).bool()
    p = torch.softmax(logits, dim)
    rest = torch.where(leader, 0.5, 1 - p)
    log_sum = torch.logsumexp(logits, dim, keepdim=True) + torch.log(rest)
    once = ((p * weight).sum(dim, keepdim=True) - p * weight) / rest
    square = p.square() * weight
    twice = (square.sum(dim, keepdim=True) - square) / rest.square()

    others = logits.masked_fill(leader, torch.finfo(logits.dtype).min)
    q = torch.softmax(others, dim)
    return (
        torch.where(leader, torch.logsumexp(others, dim, keepdim=True), log_sum),
        torch.where(leader, (q * weight).sum(dim, keepdim=True), once).clamp(min=0),
        torch.where(leader, (q.square() * weight).sum(dim, keepdim=True), twice).clamp(min=0),
    )


def _against_others(
    function: Target,
    plain: Target,
    input: Moments,
    dim: int | None,
    stacklevel: object,
    dtype: torch.dtype | None,
) -> Moments:
    """Moments of `function(x_i - L_i)`, and those of `plain` where there is no noise."""
    if isinstance(stacklevel, torch.dtype):  # `torch.softmax(x, dim, dtype)` has it in this place.
        dtype = stacklevel
    mean = input.mean if dtype is None else input.mean.to(dtype)
    # The axis that `F.softmax` takes when none is given.
    axis = (0 if mean.dim() in (0, 1, 3) else 1) if dim is None else dim
    work = input.var.dtype if dtype is None else torch.promote_types(input.var.dtype, dtype)
    logits, var, exact = mean.to(work), input.var.to(work), plain(mean, axis)
    if logits.dim() == 0 or logits.shape[axis] == 1:
        return Moments(exact, torch.zeros_like(var))
    margin = leave_one_out(logits, var, axis)
    out = expectation(function, margin.mean, margin.var)
    expected = out.mean / out.mean.sum(axis, keepdim=True) if plain is torch.softmax else out.mean
    certain = (input.var == 0).all(axis, keepdim=True)
    return Moments(torch.where(certain, exact, expected.to(mean.dtype)), out.var)


@rule(F.softmax, "softmax", fidelity=APPROXIMATE, samples=_LOGITS, error=0.15)
def softmax(
    input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Moments:
    """Leave-one-out: p_i = sigmoid(x_i - log sum_{j != i} e^{x_j}), by quadrature; means sum to 1.

    Assumes: independent logits; log-sum-exp of the others Gaussian. Std within 15 % for logit
    standard deviations up to 2.

    Source: our own; compared with log-normal, delta and mean-field rules in docs/accuracy.md.
    """
    return _against_others(torch.sigmoid, torch.softmax, input, dim, _stacklevel, dtype)


@rule(F.log_softmax, "log_softmax", fidelity=APPROXIMATE, samples=_LOGITS, error=0.15)
def log_softmax(
    input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Moments:
    """As `softmax`, for log p_i = logsigmoid(x_i - log sum_{j != i} e^{x_j})."""
    return _against_others(F.logsigmoid, torch.log_softmax, input, dim, _stacklevel, dtype)


@rule("logsumexp", fidelity=APPROXIMATE, error=0.15, samples=[Sample(normal(4, 5, std=0.5), 1)])
def logsumexp(input: Moments, dim: int | tuple[int, ...], keepdim: bool = False) -> Moments:
    """E = LSE + 1/2 sum p (1 - p) v, Var = sum p**2 v, p = softmax(mean).

    Assumes: independent elements; first order in the variance, with a second-order mean.

    Source: Taylor expansion.
    """
    value = torch.logsumexp(input.mean, dim, True)
    p = torch.exp(input.mean - value).to(input.var.dtype)
    shift = 0.5 * (p * (1 - p) * input.var).sum(dim, True)
    mean, var = value + shift.to(value.dtype), (p.square() * input.var).sum(dim, True)
    return Moments(mean, var) if keepdim else Moments(mean.squeeze(dim), var.squeeze(dim))


@rule(F.softmin, fidelity=APPROXIMATE, samples=_LOGITS, error=0.15)
def softmin(
    input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Moments:
    """As `softmax(-x)`."""
    return softmax(Moments(-input.mean, input.var), dim, dtype=dtype)
