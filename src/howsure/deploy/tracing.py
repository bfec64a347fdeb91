"""Writes down what a function does to tensors, as a graph of plain operations.

`make_fx` sees through `vmap`, forward and backward derivatives, so that every method is flat in
the end: no Gaussians, no rules, no autograd. The tensors are stand-ins without values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from howsure.private_torch import (
    FakeTensorMode,
    OpOverload,
    enable_python_dispatcher,
    is_mkldnn_enabled,
    pytree,
    set_mkldnn_enabled,
)
from howsure.trees import outside_tracing

aten = torch.ops.aten

_FEW = 4
# Large: sizes that no layer has, so that the batch axis is never taken for another. One is prime,
# the other a product of small primes: what depends on a remainder differs between them.
SIZES = (1009, 2310)


# Backward operations as forward ones, which every compiler and runtime knows.


def convolution_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, None, None]:
    """The gradient of a convolution's input: the convolution that goes the other way.

    A strided convolution leaves out what does not fill a step; `output_padding` brings it back.
    """
    if list(output_mask) != [True, False, False]:
        return NotImplemented
    spatial = len(stride)
    kernel, size = weight.shape[2:], input.shape[2:]
    fitting = [
        (grad.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1
        for i in range(spatial)
    ]
    missing = [0] * spatial if transposed else [s - f for s, f in zip(size, fitting, strict=True)]
    settings = (stride, padding, dilation, not transposed, missing, groups)
    return aten.convolution.default(grad, weight, None, *settings), None, None


def _few_channels_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *settings: Any,
) -> object:
    """The same as a product, and a sum over windows, where images have few channels.

    Processors are slow at convolutions that make one or three channels: this takes half the time.
    """
    dilation, transposed, _, groups, mask = settings
    is_plain = len(stride) == 2 and not transposed and groups == 1
    if list(mask) != [True, False, False] or not is_plain or weight.shape[1] > _FEW:
        return convolution_backward(grad, input, weight, bias_sizes, stride, padding, *settings)
    # What every window says about each of its pixels, (batch, channels * kernel, windows).
    parts = weight.flatten(1).mT @ grad.flatten(2)
    size, kernel = list(input.shape[2:]), list(weight.shape[2:])
    return aten.col2im.default(parts, size, kernel, dilation, padding, stride), None, None


def max_pool2d_backward(grad: Tensor, input: Tensor, *settings: Any) -> Tensor:
    """Every gradient at the place where the maximum was."""
    flat, indices = torch.zeros_like(input).flatten(-2), settings[-1]
    return flat.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).reshape(input.shape)


def avg_pool2d_backward(
    grad: Tensor,
    input: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> object:
    """Every gradient spread over its window: a transposed convolution with equal weights."""
    if ceil_mode or (any(padding) and not count_include_pad):
        return NotImplemented
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride else kernel
    share = 1 / (divisor_override or kernel[0] * kernel[1])
    weight = torch.full((1, 1, *kernel), share, dtype=grad.dtype, device=grad.device)
    one, whole = (t.reshape(-1, 1, *t.shape[-2:]) for t in (grad, input))
    settings = (stride, padding, [1, 1], False, [0, 0], 1, [True, False, False])
    return convolution_backward(one, whole, weight, None, *settings)[0].reshape(input.shape)


def _pair(sizes: Sequence[int]) -> list[int]:
    return list(sizes) * (2 // len(sizes))


DECOMPOSITIONS: dict[OpOverload, Callable[..., object]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
}
# Those that torch has itself.
_OF_TORCH = (aten.silu_backward.default, aten.mish_backward.default)
# What compiled programs take besides.
COMPILED = {**DECOMPOSITIONS, aten.convolution_backward.default: _few_channels_backward}


class _RealDraws(TorchFunctionMode):
    """Random numbers from a generator are drawn at once: a seed gives what it gives in eager."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None:
            return func(*args, **kwargs)
        with outside_tracing():
            return func(*args, **kwargs)


def traced(
    function: Callable[..., Sequence[Tensor]],
    tensors: Sequence[Tensor],
    decompositions: Mapping[OpOverload, Callable[..., object]] = DECOMPOSITIONS,
) -> GraphModule:
    """The function of these tensors as a graph; its constants are buffers.

    Args:
        function: From tensors to a flat sequence of tensors. Decisions by shapes are taken as for
            these shapes; a decision by values is an error.
        tensors: Examples: only dtype, device and shape matter.
        decompositions: Operations in other words.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        stand_ins = [
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            for tensor in tensors
        ]

    def drawn(*inputs: Tensor) -> list[Tensor]:
        with _RealDraws():
            return [output.detach() for output in function(*inputs)]

    others = torch.export.default_decompositions()
    table = {**{op: others[op] for op in _OF_TORCH}, **decompositions}
    make = make_fx(drawn, table, tracing_mode="real", _allow_non_fake_inputs=True)
    with _plain_operations(), mode, enable_python_dispatcher():
        graph = make(*stand_ins)
    # The graph keeps the mode, and a weight to which the mode has a weak reference refuses
    # `torch.utils.swap_tensors`.
    mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        # Views expect the order in memory of the stand-ins.
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        # `clamp(x, 0.0, 1.5)` in place of `clamp(x, 0, 1.5)`, of which torch's ONNX export fails.
        if node.target in (aten.clamp.default, aten.clamp_.default):
            limits = [*node.args[1:], *node.kwargs.values()]
            if any(isinstance(limit, float) for limit in limits):
                node.args = (node.args[0], *map(_as_float, node.args[1:]))
                node.kwargs = {name: _as_float(limit) for name, limit in node.kwargs.items()}
    graph.recompile()
    # Compilers and exporters take buffers for constants.
    for name in dict.fromkeys(str(n.target) for n in graph.graph.nodes if n.op == "get_attr"):
        value = getattr(graph, name)
        if isinstance(value, Tensor):
            delattr(graph, name)
            graph.register_buffer(name, value)
    return graph.eval()


def held_constants(graph: GraphModule, tensors: Sequence[Tensor]) -> dict[str, int]:
    """The constants of a graph that are among some tensors: their names, and numbers there."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    constants = graph.named_buffers(remove_duplicate=False)
    return {name: numbers[id(value)] for name, value in constants if id(value) in numbers}


def lift_constants(graph: GraphModule, names: Sequence[str]) -> None:
    """Makes some constants of the graph its last inputs, in this order."""
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    mode = last.meta["val"].fake_mode
    uses = [node for node in graph.graph.nodes if node.op == "get_attr"]
    for name in names:
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"held_{name}")
        value = graph.get_buffer(name)
        with mode:
            last.meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
        for node in uses:
            if node.target == name:
                node.replace_all_uses_with(last)
                graph.graph.erase_node(node)
        delattr(graph, name)
    graph.recompile()


@contextmanager
def _plain_operations() -> Iterator[None]:
    """Attention and recurrent layers as products: fused kernels have no form outside torch."""
    mha = torch.backends.mha
    before = mha.get_fastpath_enabled(), is_mkldnn_enabled()
    mha.set_fastpath_enabled(False)
    set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(before[0])
        set_mkldnn_enabled(before[1])


def _as_float(limit: Any) -> Any:
    return float(limit) if isinstance(limit, int) else limit


# One graph for any batch size, from two of fixed sizes. Symbolic shapes do not pass through `vmap`
# of convolutions and batched backward passes (torch 2.13). But two traces that differ only in their
# batch sizes have the same operations, and where their numbers differ, they are linear in the batch
# size: 8 * batch rows of 8 probes, say.


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
