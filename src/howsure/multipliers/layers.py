"""Which operations are layers with weights, and what usually follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from howsure.moments import rules as _rules  # noqa: F401  (fills the table)
from howsure.moments.rule import find
from howsure.trees import unwrap_compiled

_CONVOLUTIONS = {
    f"{kind}{dims}d": dims for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)
}
_DENSE = {"linear", "bilinear", "multi_head_attention_forward"}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_CELLS = {"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
# Layers only if one operand is a parameter: `x @ self.weight`.
_PRODUCTS = {"matmul", "mm", "bmm", "addmm", "einsum", "__matmul__", "__rmatmul__"}
DROPOUTS = {
    "dropout": False,
    "alpha_dropout": False,
    "dropout1d": True,
    "dropout2d": True,
    "dropout3d": True,
    "feature_dropout": True,
    "feature_alpha_dropout": True,
}


def base_name(func: Callable[..., object]) -> str:
    """The operation's name without namespace, overload and in-place mark."""
    name = getattr(func, "__name__", "").split(".")[0]
    return name if name.startswith("__") else name.rstrip("_")


def spatial_dims(name: str) -> int:
    """How many axes follow the channel axis in the operation's output."""
    return _CONVOLUTIONS.get(name, 0)


def is_linear(func: Callable[..., object]) -> bool:
    """Whether the operation is that of `nn.Linear`."""
    return base_name(func) == "linear"


def is_recurrent(name: str) -> bool:
    """Whether the operation returns the output sequence first, then states."""
    return name in _RECURRENT


def follows_a_layer(func: Callable[..., object]) -> bool:
    """Whether the operation is a normalisation or an activation."""
    rule = find(func)
    return rule is not None and (rule.normalises or rule.pointwise)


def commutes_with_channels(func: Callable[..., object]) -> bool:
    """Whether scaling a whole channel before the operation or after it is the same.

    A pool of a positive multiple is that multiple of the pool: the mask may as well come later,
    on fewer elements, and more of the network is shared by all samples.
    """
    rule = find(func)
    return rule is not None and rule.pools


class Weights:
    """The parameters of a model, by identity: names the layer that an operation belongs to."""

    def __init__(self, model: Callable[..., object]) -> None:
        model = unwrap_compiled(model)
        named = model.named_parameters() if isinstance(model, nn.Module) else ()
        self.names = {id(parameter): name for name, parameter in named}

    def layer_of(self, func: Callable[..., object], args: object, kwargs: object) -> str | None:
        """The layer's name; "" for weights that are not parameters; `None` if it is no layer."""
        name = base_name(func)
        owner = next(self._owners([args, kwargs]), None)
        if name in _CONVOLUTIONS or name in _DENSE or name in _RECURRENT or name in _CELLS:
            return owner or ""
        return owner if name in _PRODUCTS else None

    def _owners(self, arguments: object) -> Iterator[str]:
        if isinstance(arguments, Tensor):
            name = self.names.get(id(arguments))
            if name is not None and arguments.dim() > 1:
                # `conv1.weight` belongs to `conv1`; a bare parameter `w` is its own layer.
                yield name.rpartition(".")[0] or name
        elif isinstance(arguments, (tuple, list)):
            for item in arguments:
                yield from self._owners(item)
        elif isinstance(arguments, dict):
            yield from self._owners(list(arguments.values()))
