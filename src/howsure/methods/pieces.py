"""Large batches in pieces, so that the memory of probes and backward passes stays bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from howsure.values.trees import Parts, map_leaves

# Input elements per piece: activations, probes and gradients take some thousand times as much.
_ELEMENTS = 2**16


def pieces(x: Any, variance: Any, size: int | None) -> Iterator[tuple[Any, Any]]:
    """Consecutive rows of an input, with the rows of its variance."""
    tensors = Parts(x).tensors
    batch = tensors[0].shape[0]
    variance = _broadcast(variance, x)  # (C,) per channel must not be taken for one per row
    elements = max(1, sum(tensor.numel() for tensor in tensors) // max(batch, 1))
    rows = size or _unlike(min(batch, max(1, _ELEMENTS // elements)), tensors)
    for start in range(0, max(batch, 1), rows):
        yield tuple(_rows(tree, batch, start, start + rows) for tree in (x, variance))


def _broadcast(variance: Any, x: Any) -> Any:
    """Tensors of variances in the shapes of their inputs; what does not fit is left as it is."""
    if isinstance(variance, Tensor) and isinstance(x, Tensor):
        fits = variance.dim() <= x.dim() and all(
            size in (1, other)
            for size, other in zip(variance.shape[::-1], x.shape[::-1], strict=False)
        )
        return variance.expand(x.shape) if fits else variance
    if isinstance(variance, Mapping) and isinstance(x, Mapping):
        return {key: _broadcast(var, x.get(key)) for key, var in variance.items()}
    if isinstance(variance, (tuple, list)) and isinstance(x, (tuple, list)):
        parts = [_broadcast(*pair) for pair in zip(variance, x, strict=False)]
        parts += variance[len(parts) :]
        constructor: Any = type(variance)
        return constructor(*parts) if hasattr(variance, "_fields") else constructor(parts)
    return variance


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
