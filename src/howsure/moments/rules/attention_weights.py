"""Averages weighted by the softmax of noisy scores: the inner part of attention.

out = sum_j a_j V_j with a = softmax(scores). The weights sum to 1, so that noise in a score moves
the output by a_j (V_j - out): only what differs from the average counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from howsure.moments.rules.softmax import leave_one_out
from howsure.moments.value import Moments, mean_of, var_of

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
    centre = torch.sigmoid(-distance)
    shift, square = torch.zeros_like(centre), torch.zeros_like(centre)
    values = [torch.sigmoid(std * node - distance) - centre for node in _NODES.tolist()]
    for weight, value in zip(_WEIGHTS.tolist(), values, strict=True):
        shift = shift + weight * value
    for weight, value in zip(_WEIGHTS.tolist(), values, strict=True):
        square = square + weight * (value - shift).square()
    small = centre + scale * shift
    return Moments(torch.where(input.mean > 0, 1 - small, small), scale * square)


def weighted_average(scores: Scores, value: Moments | Tensor) -> Moments:
    """Moments of softmax(scores) @ value, with the correlation of the weights.

    Noise in score k moves the output by a_k u_k, u_k = r_k (V_k - out) - sum_j a_j r_j (V_j - out):
    the linearised softmax, in which r scales each weight's std to that of the leave-one-out rule.
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
    """The weights' std over that of the linearised softmax, for independent scores."""
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
