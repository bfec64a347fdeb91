"""Gradients of every output with respect to all sources of noise, at some points."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.gradients.calls import Calls, Rows
from howsure.gradients.image_gradients import fast_image_gradients
from howsure.gradients.sources import Sources, leaf, outputs_at
from howsure.values.trees import Parts

# One backward pass per output: beyond this, sampling is cheaper.
MOST_OUTPUTS = 64


@dataclass(frozen=True, eq=False)
class Gradients:
    """What some points say about some rows.

    Attributes:
        values: Outputs, (points, rows, outputs).
        by_source: Gradients of every output with respect to each source, (outputs, points, rows,
            elements).
        watched: Gradients with respect to the watched multipliers, (outputs, points, rows, masks).
    """

    values: Tensor
    by_source: list[Tensor]
    watched: Tensor | None = None

    def at(self, points: slice) -> Gradients:
        """Those of some of the points."""
        watched = None if self.watched is None else self.watched[:, points]
        return Gradients(self.values[points], [each[:, points] for each in self.by_source], watched)


def gradients_at(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> Gradients:
    """One forward pass at all points, and one backward pass for every output.

    `points` are those of every source, (points, rows, *shape), or the same for all `count` rows.
    """
    tensors = Parts(calls.x).tensors
    images = [x for x in (tensors[noisy.number] for noisy in sources.inputs) if x.dim() == 4]
    fast = fast_image_gradients(images) if images else nullcontext()
    with torch.inference_mode(False), torch.enable_grad():
        all_points = [*points, *sources.still(len(points[0]))]
        leaves = [leaf(z, count, calls.x).requires_grad_() for z in all_points]
        with fast:
            outputs = outputs_at(calls, sources, leaves, rows)
        check_outputs(outputs.shape[2])
        found = [_gradients(outputs, k, leaves) for k in range(outputs.shape[2])]
    by_source = [_flat(column) for column in zip(*found, strict=True)]
    own = len(points)
    watched = torch.cat(by_source[own:], 3) if sources.watched else None
    return Gradients(outputs.detach(), by_source[:own], watched)


def check_outputs(count: int) -> None:
    """An error where a backward pass for each output is too many."""
    if count > MOST_OUTPUTS:
        raise ValueError(
            f"The model has {count} outputs per input, and this method needs a backward pass for "
            f"each; it does up to {MOST_OUTPUTS}. Choose some with `output=lambda y: y[:, :8]`, or "
            'sample with `method="noise_sampling"`.'
        )


def _gradients(outputs: Tensor, k: int, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of output k of every row: rows are independent, so one pass serves all."""
    output = outputs[:, :, k]
    if not output.requires_grad:
        return [torch.zeros_like(each) for each in leaves]
    is_last = k == outputs.shape[2] - 1
    found = torch.autograd.grad(output.sum(), leaves, retain_graph=not is_last, allow_unused=True)
    pairs = zip(found, leaves, strict=True)
    return [torch.zeros_like(own) if each is None else each for each, own in pairs]


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    """(outputs, points, rows, elements)."""
    first = gradients[0]
    return torch.stack(list(gradients)).reshape(len(gradients), *first.shape[:2], -1)
