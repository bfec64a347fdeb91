"""One model to try: where it comes from, how it is built, what it is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

NOISE_VAR = 1e-4


@dataclass(frozen=True)
class Setup:
    """A model in eval mode, its input, and the noise variance in the structure of the input."""

    model: nn.Module
    x: Any
    noise_var: Any


@dataclass(frozen=True)
class Case:
    """A named recipe; `further` marks models beyond the list that the rules were made for."""

    library: str
    family: str
    name: str
    build: Callable[[], Setup]
    further: bool = False

    @property
    def key(self) -> str:
        return f"{self.library}/{self.family}/{self.name}"

    def setup(self, seed: int = 0) -> Setup:
        """The model with random weights, the same ones every time."""
        torch.manual_seed(seed)
        made = self.build()
        made.model.eval()
        randomize_constants(made.model)
        fit_batch_norms(made.model, made.x)
        return made


def call(model: Callable[..., Any], x: Any) -> Any:
    """The plain forward pass: a tuple is positional arguments, a dict keyword arguments."""
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def randomize_constants(model: nn.Module, scale: float = 0.2) -> None:
    """Adds random numbers to constant parameters: scales of 1 or 1e-6, zero biases.

    Many architectures start with branches multiplied by 0 or 1e-6; an error in such a branch would
    not be seen in the output.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(scale * torch.randn_like(parameter))


def fit_batch_norms(model: nn.Module, x: Any, batch: int = 4) -> None:
    """Sets the running statistics to those of a few random inputs, as after training.

    With the initial statistics (0, 1) many untrained networks shrink their signal a hundredfold per
    layer, and the variance leaves the range of float32.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    hooks = [norm.register_forward_pre_hook(_take_statistics) for norm in norms]
    if norms:
        with torch.no_grad():
            call(model, pytree.tree_map(lambda t: torch.randn(batch, *t.shape[1:]), x))
    for hook in hooks:
        hook.remove()


def _take_statistics(norm: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    axes = [axis for axis in range(args[0].dim()) if axis != 1]
    var, mean = torch.var_mean(args[0], axes, correction=0)
    norm.running_mean.copy_(mean)
    # Channels that hardly vary must not be blown up: the network would amplify rounding errors.
    norm.running_var.copy_(var + 0.2 * var.mean())


def noisy_input(model: nn.Module, *shape: int) -> Setup:
    """A model of one tensor, with noise on all of it."""
    return Setup(model, torch.randn(*shape), NOISE_VAR)
