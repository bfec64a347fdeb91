"""Writes down what a function does to tensors, as a graph of plain operations.

`make_fx` sees through `vmap`, forward and backward derivatives, so that every method is flat in
the end: no Gaussians, no rules, no autograd. The tensors are stand-ins without values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from howsure.deploy.compiling.backward import DECOMPOSITIONS
from howsure.trees import outside_tracing


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

    make = make_fx(drawn, dict(decompositions), tracing_mode="real", _allow_non_fake_inputs=True)
    with _plain_operations(), mode, enable_python_dispatcher():
        graph = make(*stand_ins)
    _forget_originals(mode)
    graph.graph.eliminate_dead_code()
    _reshape_where_viewed(graph)
    _limit_by_numbers_of_one_kind(graph)
    graph.recompile()
    _keep_constants(graph)
    return graph.eval()


def _forget_originals(mode: FakeTensorMode) -> None:
    """Drops the mode's weak references to the tensors that it has stand-ins for.

    The graph keeps the mode, and a weight with such a reference refuses `torch.utils.swap_tensors`.
    """
    mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()


@contextmanager
def _plain_operations() -> Iterator[None]:
    """Attention and recurrent layers as products: fused kernels have no form outside torch."""
    mha = torch.backends.mha
    mkldnn = torch._C  # the flags of `torch.backends.mkldnn` warn about others
    were = mha.get_fastpath_enabled(), mkldnn._get_mkldnn_enabled()
    mha.set_fastpath_enabled(False)
    mkldnn._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(were[0])
        mkldnn._set_mkldnn_enabled(were[1])


def _reshape_where_viewed(graph: GraphModule) -> None:
    """Reshapes in place of views, which expect the order in memory of the stand-ins."""
    for node in graph.graph.nodes:
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default


def _limit_by_numbers_of_one_kind(graph: GraphModule) -> None:
    """`clamp(x, 0.0, 1.5)` in place of `clamp(x, 0, 1.5)`, of which torch's ONNX export fails."""
    for node in graph.graph.nodes:
        if node.target not in (torch.ops.aten.clamp.default, torch.ops.aten.clamp_.default):
            continue
        limits = [*node.args[1:], *node.kwargs.values()]
        if any(isinstance(limit, float) for limit in limits):
            node.args = (node.args[0], *map(_as_float, node.args[1:]))
            node.kwargs = {name: _as_float(limit) for name, limit in node.kwargs.items()}


def _as_float(limit: Any) -> Any:
    return float(limit) if isinstance(limit, int) else limit


def _keep_constants(graph: GraphModule) -> None:
    """The tensors that the graph holds as buffers, which compilers and exporters take as fixed."""
    used = dict.fromkeys(str(n.target) for n in graph.graph.nodes if n.op == "get_attr")
    for name in used:
        value = getattr(graph, name)
        if isinstance(value, Tensor):
            delattr(graph, name)
            graph.register_buffer(name, value.detach())
