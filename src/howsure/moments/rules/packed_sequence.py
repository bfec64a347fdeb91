"""Packed sequences: steps of several lengths behind one another, and back to a padded batch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import _VF, Tensor

from howsure.moments.rule import STRUCTURAL, Draw, Kind, Sample, rule
from howsure.moments.value import Moments


def _batches(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 2, 4), torch.tensor([3, 2]), False)
    yield Sample(draw.moments(2, 3, 4), torch.tensor([3, 1]), True)


@rule(
    _VF._pack_padded_sequence,
    torch.ops.aten._pack_padded_sequence.default,
    name="pack_padded_sequence",
    fidelity=STRUCTURAL,
    samples=_batches,
    kind=Kind.GATHER,
)
def pack_padded_sequence(
    input: Moments,  # (time, batch, *) or (batch, time, *)
    lengths: Tensor,  # (batch,)
    batch_first: bool,
) -> tuple[Moments, Tensor]:
    """The rows of mean and variance that are not padding, step after step.

    Assumes: constant lengths.

    Source: definition.
    """
    mean, sizes = _VF._pack_padded_sequence(input.mean, lengths, batch_first)
    var, _ = _VF._pack_padded_sequence(input.var, lengths, batch_first)
    return Moments(mean, var), sizes


def _packs(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(5, 4), torch.tensor([2, 2, 1]), False, 0.5, 4)
    yield Sample(draw.moments(5, 4), torch.tensor([2, 2, 1]), True, 0.0, -1)


@rule(
    _VF._pad_packed_sequence,
    torch.ops.aten._pad_packed_sequence.default,
    name="pad_packed_sequence",
    fidelity=STRUCTURAL,
    samples=_packs,
    kind=Kind.GATHER,
)
def pad_packed_sequence(
    data: Moments,  # (all steps' rows, *)
    batch_sizes: Tensor,  # (time,)
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[Moments, Tensor]:
    """A padded batch of mean and variance; the padding has variance 0.

    Assumes: constant lengths.

    Source: definition.
    """
    options = batch_first, padding_value, total_length
    mean, lengths = _VF._pad_packed_sequence(data.mean, batch_sizes, *options)
    var, _ = _VF._pad_packed_sequence(data.var, batch_sizes, batch_first, 0.0, total_length)
    return Moments(mean, var), lengths
