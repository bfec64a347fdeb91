"""Reads the variance of every output off the ledger, with one backward pass per output.

g = d E[output] / d E[source] by reverse mode. To first order Cov = sum g g' v over the units of
all sources. The operations' remainders add their quadratic parts with all correlations: the output
contains 1/2 z' H z, H = sum over operations and units of g E[f''] F F', and such forms have the
covariance 1/2 <H, H'>. With K directions H is known as the K x K matrix M = sum g E[f''] F_k F_l,
and <M, M'> without the part of their traces, <M, M'> - tr M tr M' / K, is an estimate of <H, H'>:
unbiased for elements of different colours (`howsure.signs`), and never negative for H = H'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.concrete import is_traced
from howsure.signs import are_coloured
from howsure.sites import LedgerInterpreter, Remainder

# Elements of products that are made at once; more would not fit into a cache.
_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class Reading:
    """Where the covariance between the outputs of each input comes from.

    Attributes:
        by_source: For each source its part of the variances, (batch, outputs).
        elements: For each source the same by element, (batch, outputs, *units).
        slopes: For each source d output / d element, in the same shape.
        data_remainder: Variance beyond first order in which a sensor's noise takes part.
        model_remainder: Variance beyond first order of the masks alone, (batch, outputs).
        covariance: All of it, (batch, outputs, outputs).
    """

    by_source: list[Tensor]
    elements: list[Tensor]
    slopes: list[Tensor]
    data_remainder: Tensor
    model_remainder: Tensor
    covariance: Tensor

    @property
    def remainder(self) -> Tensor:
        """Variance beyond first order, (batch, outputs)."""
        return self.data_remainder + self.model_remainder


def read(
    rows: Tensor,  # (batch, outputs), with derivatives
    ledger: LedgerInterpreter,
    chosen: Sequence[int],
) -> Reading:
    """The variances of the chosen outputs of every input."""
    sources, remainders = ledger.sources, ledger.remainders
    leaves = [source.mean for source in sources] + [each.mean for each in remainders]
    gradients = _gradients(rows, leaves, chosen)
    covariance = torch.zeros(rows.shape[0], len(chosen), len(chosen)).to(rows)
    by_source, elements, slopes = [], [], []
    for source, gradient in zip(sources, gradients, strict=False):
        weight = _front(gradient * source.var.sqrt().to(gradient.dtype), source.axis + 1)
        flat = weight.flatten(2)
        covariance = covariance + flat @ flat.mT
        by_source.append(flat.square().sum(-1))
        elements.append(weight.square())
        slopes.append(_front(gradient, source.axis + 1))
    beyond = [torch.zeros_like(covariance)] * 2
    if chosen:
        beyond = _beyond(covariance, ledger, gradients[len(sources) :])
    data, model = (each.diagonal(dim1=1, dim2=2) for each in beyond)
    return Reading(by_source, elements, slopes, data, model, covariance + beyond[0] + beyond[1])


def _front(tensor: Tensor, axis: int) -> Tensor:
    """The axis that counts the inputs of the batch in front."""
    return tensor.movedim(axis, 0)


def _gradients(rows: Tensor, leaves: list[Tensor], chosen: Sequence[int]) -> Sequence[Tensor]:
    """d rows[:, k] / d leaf for the chosen k, in front; the inputs of a batch do not mix."""
    if not chosen or not leaves or not rows.requires_grad:
        return [leaf.new_zeros(len(chosen), *leaf.shape) for leaf in leaves]
    selectors = torch.zeros(len(chosen), *rows.shape, dtype=rows.dtype, device=rows.device)
    selectors[torch.arange(len(chosen)), :, torch.as_tensor(list(chosen))] = 1
    if len(chosen) == 1:  # without `vmap`, whose calls cost more than small products
        found = torch.autograd.grad(rows, leaves, selectors[0], allow_unused=True)
        found = [None if each is None else each[None] for each in found]
    else:
        found = torch.autograd.grad(
            rows, leaves, selectors, is_grads_batched=True, allow_unused=True
        )
    return [
        leaf.new_zeros(len(chosen), *leaf.shape) if each is None else each
        for leaf, each in zip(leaves, found, strict=True)
    ]


def _beyond(
    like: Tensor,  # (batch, outputs, outputs)
    ledger: LedgerInterpreter,
    gradients: Sequence[Tensor],  # each (outputs, batch, *)
) -> list[Tensor]:
    """Covariances of the quadratic parts and of what is beyond them: data's and model's."""
    rests, forms = [torch.zeros_like(like), torch.zeros_like(like)], Forms(ledger)
    for remainder, gradient in zip(ledger.remainders, gradients, strict=True):
        for index, rest in enumerate(_of_kinds(remainder, ledger)):
            if rest is not None:
                plain = _rows(gradient, remainder, like)
                weight = _rows(gradient * rest.to(gradient.dtype), remainder, like)
                rests[index] = rests[index] + weight @ plain.mT
        for bend in remainder.bends:
            directions = bend.directions.expand(-1, *gradient.shape[1:])
            weight = _rows(gradient * bend.curvature, remainder, like)
            forms.add(weight, _rows(directions, remainder, like))
    return [rest + form for rest, form in zip(rests, forms.covariances(like), strict=True)]


def _of_kinds(
    remainder: Remainder, ledger: LedgerInterpreter
) -> tuple[Tensor | None, Tensor | None]:
    """What is beyond the quadratic part, of the data and of the model."""
    rest, shares = remainder.rest, remainder.shares
    if rest is None or shares is None:
        return (None, rest) if ledger.has_masks_only else (rest, None)
    return rest * shares[0], rest * shares[1]


def _rows(tensor: Tensor, remainder: Remainder, like: Tensor) -> Tensor:
    """(front, *shape) as (batch, front, units)."""
    if remainder.has_channels_last and not is_traced():
        tensor = tensor.permute(0, 1, 3, 4, 2)  # any order will do, and this one needs no copy
    if like.shape[0] == 1:
        return tensor.flatten(1)[None]
    return tensor.movedim(remainder.axis + 1, 0).flatten(2)


class Forms:
    """The matrices M of all outputs, summed over operations."""

    def __init__(self, ledger: LedgerInterpreter) -> None:
        self.ledger = ledger
        self.sum: Tensor | None = None  # (batch, outputs, K, K)
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.size = 0

    def add(
        self,
        weight: Tensor,  # (batch, outputs, units)
        directions: Tensor,  # (batch, K, units)
    ) -> None:
        """Adds sum over units of weight F_k F_l; small operations wait to be summed together."""
        # A graph serves any batch size: what is done must not depend on it.
        rows = len(directions) if is_traced() else 1
        size = weight.shape[1] * directions.numel() // rows
        if self.size + size > _AT_ONCE:
            self._sum_waiting()
        if size <= _AT_ONCE:
            self.waiting.append((weight, directions))
            self.size += size
        else:  # one output after the other, to save memory
            columns = [_upper(directions * w[:, None], directions) for w in weight.unbind(1)]
            self._add_matrices(torch.stack(columns, 1))

    def _sum_waiting(self) -> None:
        if self.waiting:
            weight, directions = (torch.cat(each, -1) for each in zip(*self.waiting, strict=True))
            scaled = directions[:, None] * weight[:, :, None]
            self._add_matrices(_upper(scaled, directions[:, None]))
            self.waiting, self.size = [], 0

    def _add_matrices(self, new: Tensor) -> None:
        self.sum = new if self.sum is None else self.sum + new

    def covariances(self, like: Tensor) -> list[Tensor]:
        """1/2 <H, H'> for all pairs of outputs, (batch, outputs, outputs): data's and model's."""
        self._sum_waiting()
        if self.sum is None:
            return [torch.zeros_like(like)] * 2
        return [vector @ vector.mT / 2 for vector in self._vectors(self.sum)]

    def _vectors(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The data's part of the matrices and the model's, as vectors.

        Where half of the probes belong to sensors and half to masks, M has blocks; the one that
        mixes the two counts as the data's.
        """
        cut = self.ledger.of_sensors
        if cut is None:
            whole, none = _vector(matrix), matrix[..., 0, :0]
            return (none, whole) if self.ledger.has_masks_only else (whole, none)
        both = 2**0.5 * matrix[..., :cut, cut:].flatten(2)
        data = torch.cat([_vector(matrix[..., :cut, :cut]), both], -1)
        return data, _vector(matrix[..., cut:, cut:])


def _upper(left: Tensor, right: Tensor) -> Tensor:  # each (..., K, units)
    """left right', (..., K, K), which is symmetric: nearly half of the products are left out."""
    count = left.shape[-2]
    if count <= 2:
        return left @ right.mT
    half = count // 2
    across = left[..., :half, :] @ right[..., half:, :].mT
    first = torch.cat([_upper(left[..., :half, :], right[..., :half, :]), across], -1)
    second = torch.cat([across.mT, _upper(left[..., half:, :], right[..., half:, :])], -1)
    return torch.cat([first, second], -2)


def _vector(matrix: Tensor) -> Tensor:  # (batch, outputs, K, K)
    """M as a vector whose square is <M, M> without the trace's part; (batch, outputs, pairs).

    Pairs k < l, which <M, M> counts twice, come times sqrt(2).
    """
    count = matrix.shape[-1]
    own = matrix.diagonal(dim1=-2, dim2=-1)
    rows, columns = torch.triu_indices(count, count, 1, device=matrix.device)
    pairs = 2**0.5 * matrix[..., rows, columns]
    whole = torch.cat([own - own.mean(-1, keepdim=True), pairs], -1)
    # Independent signs disturb each other: the Wishart distribution's correction.
    bias = 1.0 if are_coloured(count) else (count - 1) * (count + 2) / count**2
    return whole / bias**0.5
