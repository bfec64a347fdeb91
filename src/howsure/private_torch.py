"""All that howsure takes from private modules of torch, in one place, each with its reason.

None has a public form that does the same; a new version of torch is checked against this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# What packed and nested sequences call, which have no public operators.
from torch import _VF as variable_functions
from torch import Tensor

# Traces under a mode without real tensors need the Python implementations of operators.
from torch._dispatch.python import enable_python_dispatcher

# What a node of a graph calls, as a type.
from torch._ops import OpOverload

# Tensors without memory, on which a trace runs.
from torch._subclasses.fake_tensor import FakeTensorMode

# The class of all dropout layers, which has no public name.
from torch.nn.modules.dropout import _DropoutNd as AnyDropout

# Nested structures with the paths of their leaves; `torch.utils.pytree` came later than torch 2.6.
from torch.utils import _pytree as pytree

# Base of what sees every operation of a pass, also those inside functions of torch; see below.
from torch.utils._python_dispatch import TorchDispatchMode as _TorchDispatchMode

# Leaves a trace for a moment, to draw the numbers of a seed.
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

__all__ = [
    "AnyDropout",
    "FakeTensorMode",
    "OpOverload",
    "TorchDispatchMode",
    "compile_graph",
    "disable_current_modes",
    "enable_python_dispatcher",
    "functorch",
    "hooks_of_saved_tensors",
    "is_mkldnn_enabled",
    "load_package",
    "nn_operators",
    "pytree",
    "set_mkldnn_enabled",
    "unwrap_compiled",
    "variable_functions",
    "write_package",
]

# The operators behind `torch.nn.functional`, some of which have no public name: rules are keyed by
# what a model calls.
nn_operators: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]

# Which `vmap` or `grad` is running, and the tensor inside its wrapper: rules look at values where
# there are any, and an operation that `vmap` cannot do runs sample by sample.
functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]

# Which functions stand between autograd and what it saves: none, or those of a checkpoint, which
# must find the same tensors when it computes again. Before 2.8, torch does not tell.
hooks_of_saved_tensors = getattr(
    getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", None
)


class TorchDispatchMode(_TorchDispatchMode):
    """Sees every operation of a pass; torch's own imports the compiler at the first of them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_mkldnn_enabled() -> bool:
    """Whether recurrent layers and products may use oneDNN."""
    return torch._C._get_mkldnn_enabled()


def set_mkldnn_enabled(enabled: bool) -> None:
    """Switches oneDNN; the flags of `torch.backends.mkldnn` warn about others."""
    torch._C._set_mkldnn_enabled(enabled)


def unwrap_compiled(model: Callable[..., object]) -> Callable[..., object]:
    """The module that `torch.compile` was given, or the model itself.

    A compiled module would be compiled anew for every shape and mode, and hides its operations.
    """
    return getattr(model, "_orig_mod", model)


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Tensor], *, freezing: bool
) -> Callable[..., Sequence[Tensor]]:
    """A flat graph as machine code.

    `torch.compile` would take constants for inputs, which switches freezing off, and would check
    guards in every call.
    """
    import torch._inductor  # takes a second and 60 MB, which only compiling needs

    # Kernels called from C++, not one by one from Python: half the time of an LSTM's program.
    options: dict[str, Any] = {"freezing": freezing, "cpp_wrapper": True}
    run: Any = torch._inductor.compile(graph, list(inputs), options=options)
    return run


def write_package(program: torch.export.ExportedProgram, path: str) -> None:
    """Writes a program as machine code of AOTInductor, which has no public form."""
    from torch._inductor import aoti_compile_and_package

    aoti_compile_and_package(program, package_path=path)


def load_package(path: str) -> Callable[..., dict[str, Tensor]]:
    """The program that `write_package` wrote."""
    from torch._inductor import aoti_load_package

    package: Any = aoti_load_package(path)
    return package
