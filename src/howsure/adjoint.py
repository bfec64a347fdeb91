"""Reads the variance of every output off the ledger, with one backward pass per output.

g = d E[output] / d E[source] by reverse mode. To first order Cov = sum g g' v over the units of
all sources. The operations' remainders add their quadratic parts with all correlations: the output
contains 1/2 z' H z, H = sum over operations and units of g E[f''] F F', and such forms have the
covariance 1/2 <H, H'>. With K random directions H is known as M_kl = sum g E[f''] F_k F_l. Pairs of
different directions are independent, so that K**2 times the average of M_kl M'_kl over all pairs
k < l is an unbiased estimate of <H, H'>.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.sites import Remainder, Source


@dataclass(frozen=True, eq=False)
class Reading:
    """Where the covariance between the outputs of each input comes from.

    Attributes:
        by_source: For each source its part of the variances, (batch, outputs).
        elements: For each source the same by element, (batch, outputs, *units).
        slopes: For each source d output / d element, in the same shape.
        remainder: Variance beyond first order, (batch, outputs).
        covariance: All of it, (batch, outputs, outputs).
    """

    by_source: list[Tensor]
    elements: list[Tensor]
    slopes: list[Tensor]
    remainder: Tensor
    covariance: Tensor


def read(
    rows: Tensor,  # (batch, outputs), with derivatives
    sources: Sequence[Source],
    remainders: Sequence[Remainder],
    chosen: Sequence[int],
) -> Reading:
    """The variances of the chosen outputs of every input."""
    leaves = [source.mean for source in sources] + [each.mean for each in remainders]
    gradients = _gradients(rows, leaves, chosen)
    covariance = torch.zeros(rows.shape[0], len(chosen), len(chosen)).to(rows)
    by_source, elements, slopes = [], [], []
    for source, gradient in zip(sources, gradients, strict=False):
        slope, std = _front(gradient, source.axis + 1), source.var.sqrt().to(gradient.dtype)
        weight = _front(gradient * std, source.axis + 1)
        flat = weight.flatten(2)
        covariance = covariance + flat @ flat.mT
        by_source.append(flat.square().sum(-1))
        elements.append(weight.square())
        slopes.append(slope)
    beyond = _beyond(covariance, remainders, gradients[len(sources) :])
    remainder = beyond.diagonal(dim1=1, dim2=2)
    return Reading(by_source, elements, slopes, remainder, covariance + beyond)


def _front(tensor: Tensor, axis: int) -> Tensor:
    """The axis that counts the inputs of the batch in front."""
    return tensor.movedim(axis, 0)


def _gradients(rows: Tensor, leaves: list[Tensor], chosen: Sequence[int]) -> Sequence[Tensor]:
    """d rows[:, k] / d leaf for the chosen k, in front; the inputs of a batch do not mix."""
    if not chosen or not rows.requires_grad:
        return [leaf.new_zeros(len(chosen), *leaf.shape) for leaf in leaves]
    selectors = torch.zeros(len(chosen), *rows.shape, dtype=rows.dtype, device=rows.device)
    selectors[torch.arange(len(chosen)), :, torch.as_tensor(list(chosen))] = 1
    found = torch.autograd.grad(rows, leaves, selectors, is_grads_batched=True, allow_unused=True)
    return [
        leaf.new_zeros(len(chosen), *leaf.shape) if each is None else each
        for leaf, each in zip(leaves, found, strict=True)
    ]


def _beyond(
    like: Tensor,  # (batch, outputs, outputs)
    remainders: Sequence[Remainder],
    gradients: Sequence[Tensor],  # each (outputs, batch, *)
) -> Tensor:
    """Covariance of the quadratic parts and of what is beyond them."""
    rest, forms, count = torch.zeros_like(like), None, 0
    for remainder, gradient in zip(remainders, gradients, strict=True):
        if remainder.rest is not None:
            scaled = gradient * remainder.rest.sqrt().to(gradient.dtype)
            weight = _rows(scaled, remainder, like)
            rest = rest + weight @ weight.mT
        for bend in remainder.bends:
            directions = bend.directions.expand(-1, *gradient.shape[1:])
            weight = _rows(gradient * bend.curvature, remainder, like)
            form = _form(weight, _rows(directions, remainder, like))
            forms = form if forms is None else forms + form
            count = bend.directions.shape[0]
    return rest if forms is None else rest + _of_forms(forms, count)


def _rows(tensor: Tensor, remainder: Remainder, like: Tensor) -> Tensor:
    """(front, *shape) as (batch, front, units)."""
    if like.shape[0] == 1:
        return tensor.flatten(1)[None]
    return tensor.movedim(remainder.axis + 1, 0).flatten(2)


def _form(
    weight: Tensor,  # (batch, outputs, units)
    directions: Tensor,  # (batch, K, units)
) -> Tensor:
    """M_kl = sum over units of weight F_k F_l for all pairs k < l, (batch, outputs, pairs)."""
    columns = [torch.cat(_pairs(directions * w[:, None], directions), 1) for w in weight.unbind(1)]
    return torch.stack(columns, 1)


def _pairs(left: Tensor, right: Tensor) -> list[Tensor]:
    """Products of different rows: one half with the other, then within each half."""
    count = left.shape[1]
    if count < 2:
        return []
    half = count // 2
    across = (left[:, :half] @ right[:, half:].mT).flatten(1)
    halves = slice(None, half), slice(half, None)
    return [across, *(pair for s in halves for pair in _pairs(left[:, s], right[:, s]))]


def _of_forms(forms: Tensor, count: int) -> Tensor:
    """1/2 <H, H'> for all pairs of outputs, (batch, outputs, outputs)."""
    return forms @ forms.mT * (count**2 / forms.shape[-1] / 2)
