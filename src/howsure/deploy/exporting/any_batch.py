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
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

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
    batch = _batch_node(small, carrier)
    for one, other in pairs:
        _check_same(one, other)
        if one.op == "get_attr":
            _check_same_constant(getattr(small, one.target), getattr(large, other.target))
        else:
            one.args, one.kwargs = _merged(one, other, batch)
    small.recompile()
    return small


def _batch_node(graph: GraphModule, carrier: int) -> Node:
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    with graph.graph.inserting_after(inputs[-1]):
        return graph.graph.call_function(torch.ops.aten.sym_size.int, (inputs[carrier], 0))


def _check_same(one: Node, other: Node) -> None:
    if (one.op, one.name) != (other.op, other.name) or str(one.target) != str(other.target):
        raise BatchSizeMattersError(f"A larger batch has `{other}` in place of `{one}`.")


def _check_same_constant(one: Tensor, other: Tensor) -> None:
    if one.shape != other.shape or not torch.equal(one, other):
        raise BatchSizeMattersError(
            f"A constant has the shape {tuple(one.shape)} for {SIZES[0]} inputs and "
            f"{tuple(other.shape)} for {SIZES[1]}."
        )


def _merged(one: Node, other: Node, batch: Node) -> Any:
    """The arguments of the first, with expressions of the batch size where the second differs."""
    first, spec = pytree.tree_flatten((one.args, dict(one.kwargs)))
    second, _ = pytree.tree_flatten((other.args, dict(other.kwargs)))
    pairs = zip(first, second, strict=True)
    return pytree.tree_unflatten([_number(a, b, batch, one) for a, b in pairs], spec)


def _number(first: object, second: Any, batch: Node, where: Node) -> object:
    if isinstance(first, Node) or not isinstance(first, int) or first == second:
        _check_equal(first, second, where)
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


def _check_equal(first: object, second: object, where: Node) -> None:
    both_nodes = isinstance(first, Node) and isinstance(second, Node)
    # NaN is a number like any other here.
    both_nan = first != first and second != second
    if str(first) != str(second) if both_nodes else first != second and not both_nan:
        raise BatchSizeMattersError(f"`{where.target}` has {first} or {second} by batch size.")
