"""A graph for any batch size, from two graphs of fixed ones.

Symbolic shapes do not pass through `vmap` of convolutions and batched backward passes (torch 2.13).
But two traces that differ only in their batch sizes have the same operations, and where their
numbers differ, they are linear in the batch size: 8 * batch rows of 8 probes, say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from howsure.private_torch import pytree

# Large: sizes that no layer has, so that the batch axis is never taken for another. One is prime,
# the other a product of small primes: what depends on a remainder differs between them.
SIZES = (1009, 2310)


class BatchSizeMattersError(ValueError):
    """Two batch sizes are treated differently by more than their number of rows."""


def for_any_batch(trace: Callable[[int], GraphModule], carrier: int) -> GraphModule:
    """The graph whose batch size is that of its input number `carrier`."""
    small, large = (trace(size) for size in SIZES)
    pairs = list(zip(small.graph.nodes, large.graph.nodes, strict=False))
    if len(small.graph.nodes) != len(large.graph.nodes):
        raise BatchSizeMattersError("A larger batch takes more operations.")
    inputs = [node for node in small.graph.nodes if node.op == "placeholder"]
    with small.graph.inserting_after(inputs[-1]):
        batch = small.graph.call_function(torch.ops.aten.sym_size.int, (inputs[carrier], 0))
    for one, other in pairs:
        if (one.op, one.name) != (other.op, other.name) or str(one.target) != str(other.target):
            raise BatchSizeMattersError(f"A larger batch has `{other}` in place of `{one}`.")
        if one.op == "get_attr":
            first, second = getattr(small, one.target), getattr(large, other.target)
            if first.shape != second.shape or not torch.equal(first, second):
                raise BatchSizeMattersError(
                    f"A constant has the shape {tuple(first.shape)} for {SIZES[0]} inputs and "
                    f"{tuple(second.shape)} for {SIZES[1]}."
                )
            continue
        # The arguments of the first, with expressions of the batch size where the second differs.
        leaves, spec = pytree.tree_flatten((one.args, dict(one.kwargs)))
        others, _ = pytree.tree_flatten((other.args, dict(other.kwargs)))
        merged = [_merge(a, b, batch, one) for a, b in zip(leaves, others, strict=True)]
        one.args, one.kwargs = pytree.tree_unflatten(merged, spec)
    small.recompile()
    return small


def _merge(first: Any, second: Any, batch: Node, where: Node) -> object:
    """An argument of both, or the number that is a linear function of the batch size."""
    if isinstance(first, Node) or not isinstance(first, int) or first == second:
        both_nodes = isinstance(first, Node) and isinstance(second, Node)
        # NaN is a number like any other here.
        both_nan = first != first and second != second
        if str(first) != str(second) if both_nodes else first != second and not both_nan:
            raise BatchSizeMattersError(f"`{where.target}` has {first} or {second} by batch size.")
        return first
    factor, odd = divmod(second - first, SIZES[1] - SIZES[0])
    rest = first - factor * SIZES[0]
    # Through two points goes a line for a square, too; its constant is -SIZES[0] * SIZES[1].
    if odd or rest < -SIZES[0]:
        raise BatchSizeMattersError(
            f"`{where.target}` has {first} for {SIZES[0]} inputs, {second} for {SIZES[1]}."
        )
    graph = batch.graph
    with graph.inserting_before(where):
        scaled = batch if factor == 1 else graph.call_function(operator.mul, (batch, factor))
        return graph.call_function(operator.add, (scaled, rest)) if rest else scaled
