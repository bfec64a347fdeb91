"""Large batches in pieces, so that the memory of probes and backward passes stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from howsure.structure import Parts, map_leaves

# Input elements per piece: activations, probes and gradients take some thousand times as much.
_ELEMENTS = 2**16


def pieces(x: Any, variance: Any, size: int | None) -> Iterator[tuple[Any, Any]]:
    """Consecutive rows of an input, with the rows of its variance."""
    tensors = Parts(x).tensors
    batch = tensors[0].shape[0]
    elements = max(1, sum(tensor.numel() for tensor in tensors) // max(batch, 1))
    rows = size or _unlike(min(batch, max(1, _ELEMENTS // elements)), tensors)
    for start in range(0, max(batch, 1), rows):
        yield tuple(_rows(tree, batch, start, start + rows) for tree in (x, variance))


def _unlike(rows: int, tensors: list[Tensor]) -> int:
    """At most `rows`, and the length of no other axis of the input: the batch stays recognisable.

    A model may move its batch axis, as recurrent ones do.
    """
    taken = {size for tensor in tensors for size in tensor.shape[1:]}
    return next((size for size in range(rows, 0, -1) if size not in taken), 1)


def _rows(tree: Any, batch: int, start: int, end: int) -> Any:
    """The rows of every tensor that has one for each input; others are shared by all."""

    def leaf(item: Any) -> Any:
        own = isinstance(item, Tensor) and item.dim() > 0 and item.shape[0] == batch
        return item[start:end] if own else item

    return tree if tree is None else map_leaves(leaf, tree)
