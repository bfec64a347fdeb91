"""A log-variance head on any model: the network learns the noise of its data (Kendall & Gal 2017).

The head is a second output layer beside the model's own, fed with the same features:

    mean = tail(W h + b)          log_var = W' h + b',  W' = 0 and b' = log(initial_var) at first

which is one output layer with twice the outputs. The model's own output layer and whatever follows
it (a squeeze, a scale, a tanh) stay as they are, so the mean starts as the trained one, exactly.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure.multipliers.dry_run import Call, Trace
from howsure.operations import LayerNames, Operations, spatial_dims
from howsure.private_torch import unwrap_compiled
from howsure.progress import in_eval_mode
from howsure.trees import TensorTree, as_call

# The variance never falls below this share of the initial one: a network that fits a target
# exactly would otherwise gain without end by shrinking it.
_FLOOR = 1e-6


class HeteroscedasticModel(nn.Module):
    """A model that returns (mean, log_var); `log_var` has the structure of the mean.

    `network` is a copy of the model and has its parameter names; `heads` are the new layers, one
    for each output.
    """

    def __init__(
        self, network: nn.Module, layers: tuple[str, ...], heads: nn.ModuleList, floor: float
    ) -> None:
        super().__init__()
        self.network = network
        self.layers = layers
        self.heads = heads
        self.log_floor = math.log(floor)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The mean, and the logarithm of the variance: log(floor + exp(head))."""
        with _Watch(self.network) as watch:
            mean = self.network(*args, **kwargs)
        parts = TensorTree(mean)
        log_vars = [
            self._floored(head(watch.features[layer])).reshape(like.shape)
            for layer, head, like in zip(self.layers, self.heads, parts.tensors, strict=True)
        ]
        return mean, parts.unflatten(log_vars)

    def _floored(self, log_var: Tensor) -> Tensor:
        return torch.logaddexp(log_var, torch.full_like(log_var, self.log_floor))


def add_variance_head(
    model: nn.Module, x: Any, *, initial_var: float = 1.0
) -> HeteroscedasticModel:
    """A copy of the model with a log-variance beside each output; train it before use.

    Args:
        model: A trained model, in eval mode. It is not changed.
        x: An input like those to come, for one dry run that finds the output layers.
        initial_var: The variance that the head predicts before training; the mean squared error
            of the model on held-out data is a good one.

    Raises:
        ValueError: If an output does not come straight from one linear or convolution layer.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> head = hs.add_variance_head(model, torch.zeros(2, 3))
        >>> mean, log_var = head(torch.zeros(2, 3))
        >>> log_var.shape
        torch.Size([2, 1])
    """
    if not initial_var > 0 or not math.isfinite(initial_var):
        raise ValueError(f"`initial_var` must be a positive variance, not {initial_var}.")
    network = copy.deepcopy(model)
    with in_eval_mode(network):
        layers = _output_layers(network, x)
    heads = nn.ModuleList(_head(network, layer, initial_var) for layer in layers)
    made = HeteroscedasticModel(network, layers, heads.train(model.training), _FLOOR * initial_var)
    made.training = model.training
    return made


class _Watch(Operations):
    """Keeps what goes into each layer of a pass. A mode belongs to its thread; a hook would not."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = LayerNames(model)
        self.features: dict[str, Tensor] = {}

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation."""
        layer = self.names.layer_of(func, args, kwargs)
        if layer is not None:
            self.features[layer] = args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


def _output_layers(model: nn.Module, x: Any) -> tuple[str, ...]:
    """The layer that each output tensor comes from."""
    trace = Trace(model)
    args, kwargs = as_call(x)
    with torch.no_grad(), trace:
        output = unwrap_compiled(model)(*args, **kwargs)
    tensors = TensorTree(output).tensors
    if not tensors:
        raise ValueError("The model returns no floating-point tensor, so there is no variance.")
    return tuple(_source(trace.origins.get(tensor, set()), tensor, model) for tensor in tensors)


def _source(origins: set[Call], output: Tensor, model: nn.Module) -> str:
    """The name of the one layer that an output comes from."""
    if len(origins) != 1:
        names = ", ".join(sorted(layer.name for layer in origins)) or "none"
        raise ValueError(
            "A variance head needs an output that comes from one output layer; this one comes "
            f"from these layers: {names}. Wrap the model so that a linear or convolution layer "
            "comes last."
        )
    (layer,) = origins
    has_twin = layer.chain[0] == "linear" or spatial_dims(layer.chain[0]) > 0
    if not has_twin or _module(model, layer.name) is None:
        raise ValueError(
            f"The output layer `{layer.name}` is `{layer.chain[0]}`; a variance head needs "
            "`nn.Linear` or a convolution module there."
        )
    shape = tuple(layer.output.shape)
    if not _same_order(shape, tuple(output.shape)):
        raise ValueError(
            f"The output layer `{layer.name}` returns shape {shape} and the model "
            f"{tuple(output.shape)}; a variance head needs the same elements in the same order. "
            "Wrap the model so that it returns what the layer does."
        )
    return layer.name


def _same_order(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether only axes of length 1 came or went, or the axes after the first were flattened."""
    flattened = len(two) <= 2 and one[:1] == two[:1] and math.prod(one) == math.prod(two)
    return flattened or [n for n in one if n != 1] == [n for n in two if n != 1]


def _module(model: nn.Module, name: str) -> nn.Module | None:
    module = dict(model.named_modules()).get(name)
    return module if hasattr(module, "weight") else None


def _head(model: nn.Module, layer: str, initial_var: float) -> nn.Module:
    """A layer like the output layer, with weights 0 and the logarithm of the variance as bias."""
    head: Any = copy.deepcopy(_module(model, layer))
    weight: Tensor = head.weight
    transposed = isinstance(head, nn.modules.conv._ConvTransposeNd)
    channels = weight.shape[1] * head.groups if transposed else weight.shape[0]
    bias = torch.full((channels,), math.log(initial_var), dtype=weight.dtype, device=weight.device)
    head.bias = nn.Parameter(bias)
    head.weight = nn.Parameter(torch.zeros_like(weight))
    return head


def gaussian_loss(
    mean: Tensor,  # (batch, ...)
    log_var: Tensor,  # (batch, ...)
    target: Tensor,  # (batch, ...)
) -> Tensor:
    """Mean of 1/2 [log_var + exp(-log_var) (target - mean)**2].

    Source: Kendall & Gal 2017, Eq. 8; no division by a variance that may be 0.
    """
    return 0.5 * (log_var + torch.exp(-log_var) * (target - mean).square()).mean()


def logit_loss(
    mean: Tensor,  # (batch, classes, ...)
    log_var: Tensor,  # (batch, classes, ...)
    target: Tensor,  # (batch, ...), class indices
    normal: Tensor,  # (draws, batch, classes, ...), standard normal numbers
) -> Tensor:
    """Mean of -log 1/T sum_t softmax(mean + std e_t)[target]: the likelihood under noisy logits.

    Source: Kendall & Gal 2017, Eq. 12, in logarithms.
    """
    logits = mean + torch.exp(0.5 * log_var) * normal
    labels = target.long().unsqueeze(1).expand(normal.shape[0], -1, 1, *target.shape[1:])
    chosen = F.log_softmax(logits, dim=2).gather(2, labels).squeeze(2)
    return (math.log(normal.shape[0]) - torch.logsumexp(chosen, dim=0)).mean()
