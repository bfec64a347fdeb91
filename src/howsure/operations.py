"""The operations of torch that a model runs: a mode that intercepts them, and names for them.

Nothing is hooked into the model: it stays as it is, other threads that run it notice nothing, and
whatever happens inside a `with` block, leaving it ends the interception. Names of modules are read
from Python's call stack, so a pass that needs no names pays nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from howsure.isolation import ORIGINAL
from howsure.private_torch import unwrap_compiled

_CONVOLUTIONS = {
    f"{kind}{dims}d": dims for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)
}
# They return an output sequence first, then their final states.
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_LAYERS = {
    *_CONVOLUTIONS,
    *RECURRENT,
    *(f"{kind}_cell" for kind in RECURRENT),
    *("linear", "bilinear", "multi_head_attention_forward"),
}
# Layers only if one operand is a parameter: `x @ self.weight`.
_PRODUCTS = {"matmul", "mm", "bmm", "addmm", "einsum", "__matmul__", "__rmatmul__"}

# By name whether whole channels are dropped.
DROPOUTS = {
    "dropout": False,
    "alpha_dropout": False,
    "dropout1d": True,
    "dropout2d": True,
    "dropout3d": True,
    "feature_dropout": True,
    "feature_alpha_dropout": True,
}
ALPHA_DROPOUTS = {"alpha_dropout", "feature_alpha_dropout"}
NORMALIZATIONS = {"batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"}
# Functions of one element.
ACTIVATIONS = frozenset(
    """
    relu relu6 leaky_relu prelu threshold _threshold elu celu selu gelu silu mish softplus softsign
    sigmoid special_expit log_sigmoid hardsigmoid hardswish hardtanh hardshrink softshrink
    tanhshrink tanh sinh cosh sin cos tan asin acos atan asinh acosh atanh
    arcsin arccos arctan arcsinh arccosh arctanh
    exp exp2 expm1 special_exp2 special_expm1 log log2 log10 log1p special_log1p logit special_logit
    erf erfc erfinv special_erf special_erfc special_erfinv
    abs absolute square sqrt rsqrt reciprocal pow __rpow__ clamp clamp_min clamp_max clip
    """.split()  # noqa: SIM905
)
# A positive factor on a channel passes through its pool.
POOLS = {
    f"{kind}_pool{dims}d"
    for kind in ("avg", "max", "adaptive_avg", "adaptive_max")
    for dims in (1, 2, 3)
}


class Operations(TorchFunctionMode):
    """Intercepts every operation of torch inside a `with` block, in its own thread only."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Runs the operation as `operation` does."""
        return self.operation(func, args, kwargs or {})

    def operation(
        self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Returns what the operation returns to the model; subclasses override it."""
        return func(*args, **kwargs)


def base_name(func: Callable[..., object]) -> str:
    """The operation's name without namespace, overload and in-place mark."""
    name = getattr(func, "__name__", "").split(".")[0]
    return name if name.startswith("__") else name.rstrip("_")


def operands(args: Iterable[object], kwargs: Mapping[str, object]) -> Iterator[Tensor]:
    """The tensors among the arguments of an operation, also in lists such as an LSTM's weights.

    Torch nests arguments no deeper; a walk through any structure would take ten times as long.
    """
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (tuple, list)):
            yield from (item for item in argument if isinstance(item, Tensor))


def spatial_dims(name: str) -> int:
    """The number of dimensions behind the channels of a convolution; 0 for other operations."""
    return _CONVOLUTIONS.get(name, 0)


def numbered(name: str, calls: Counter[str]) -> str:
    """A name for every call: `drop`, then `drop#2`, ...; counts the call in `calls`."""
    calls[name] += 1
    return name if calls[name] == 1 else f"{name}#{calls[name]}"


class CallSites:
    """Names the module of `model` that is running."""

    def __init__(self, model: Callable[..., object]) -> None:
        self.model = unwrap_compiled(model)

    @cached_property
    def paths(self) -> dict[int, str]:
        """The dotted path of every module, by the module's identity."""
        if not isinstance(self.model, nn.Module):
            return {}
        return {id(module): path for path, module in self.model.named_modules()}

    def module_path(self) -> str | None:
        """The dotted path of the innermost running module; "" is the model itself."""
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                owner = owner.__dict__.get(ORIGINAL, owner)
                if id(owner) in self.paths:
                    return self.paths[id(owner)]
            frame = frame.f_back
        return None

    def here(self) -> str:
        """The running module in words, for messages."""
        path = self.module_path()
        if path is None:
            return "the model's function"
        return f"`{path}`" if path else f"the model's own `forward` ({type(self.model).__name__})"


class LayerNames(CallSites):
    """Names the layer of `model` that an operation belongs to.

    Attributes:
        parameters: The name of every parameter, by the parameter's identity.
    """

    def __init__(self, model: Callable[..., object]) -> None:
        super().__init__(model)
        named = self.model.named_parameters() if isinstance(self.model, nn.Module) else ()
        self.parameters = {id(parameter): name for name, parameter in named}

    def layer_of(
        self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> str | None:
        """The layer's name, such as `layer1.0.conv1`; `None` if the operation is not a layer.

        A layer has the name of the module that owns its weight. Without such a module it has the
        name of the one that is running, and without that the operation's.
        """
        operation = base_name(func)
        if operation not in _LAYERS and operation not in _PRODUCTS:
            return None
        for operand in operands(args, kwargs):
            parameter = self.parameters.get(id(operand))
            if parameter is not None and operand.dim() > 1:
                # `conv1.weight` belongs to `conv1`; a bare parameter `w` is a layer itself.
                return parameter.rpartition(".")[0] or parameter
        return (self.module_path() or operation) if operation in _LAYERS else None
