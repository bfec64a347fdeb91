"""What peers say of a network: calls that give a standard deviation for every input.

Each peer lives in an environment of its own (benchmarks/requirements-peers.txt); this file imports
it where it is called.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Std = Callable[[Tensor], Tensor]
ADF = "torch-adf"


class CannotRun(Exception):
    """A peer has nothing for this network; the reason."""


def monte_carlo(model: nn.Module, noise_std: float, samples: int) -> Std:
    """Noisy inputs as one batch, as anyone would write it."""

    def call(x: Tensor) -> Tensor:
        with torch.inference_mode():
            rows = x.repeat_interleave(samples, 0)
            found = model(rows + noise_std * torch.randn_like(rows))
            return found.unflatten(0, (len(x), samples)).std(1)

    return call


def distprop(model: nn.Module, noise_std: float) -> Std:
    """Stable distribution propagation: the gradients at the input itself."""
    from distprop import SDP  # pyright: ignore[reportMissingImports]

    wrapped = SDP(model, noise_std, num_outputs=1, create_graph=False)

    def call(x: Tensor) -> Tensor:
        _, cov = wrapped(x.clone())  # it writes `requires_grad` into its input
        return cov.diagonal(dim1=1, dim2=2).sqrt()

    return call


def torch_adf(model: nn.Module, noise_std: float, *, full: bool) -> Std:
    """Assumed density filtering by a twin of the network, with variances or full covariances."""
    if not isinstance(model, nn.Sequential):
        raise CannotRun("it has sequences of its own layers only, no batch norm and no recurrence")
    twin = _adf_twin(model, "full" if full else "diag")

    def call(x: Tensor) -> Tensor:
        size = x[0].numel()
        var = torch.full_like(x, noise_std**2)
        if full:
            eye = noise_std**2 * torch.eye(size).reshape(*x.shape[1:], *x.shape[1:])
            var = eye.expand(len(x), *eye.shape)
        with torch.inference_mode():
            found = twin(x, var)[1]
        return (found.diagonal(dim1=1, dim2=2) if full else found).sqrt()

    return call


def _adf_twin(model: nn.Sequential, mode: str) -> Any:
    """The same layers with the same weights, of the peer's classes."""
    from torchadf import nn as peers  # pyright: ignore[reportMissingImports]

    layers = []
    for layer in model:
        kind = type(layer).__name__
        if not hasattr(peers, kind):
            raise CannotRun(f"it has no {kind}")
        layers.append(getattr(peers, kind)(*_arguments(layer), mode=mode))
        layers[-1].load_state_dict(layer.state_dict())
    return peers.Sequential(*layers).eval()


def _arguments(layer: nn.Module) -> tuple[Any, ...]:
    """What the peer's layer of the same name is made with."""
    match layer:
        case nn.Linear():
            return (layer.in_features, layer.out_features)
        case nn.Conv2d():
            sizes = (layer.kernel_size, layer.stride, layer.padding)
            return (layer.in_channels, layer.out_channels, *sizes)
        case nn.AvgPool2d():
            return (layer.kernel_size,)
        case _:
            return ()


def torch_uncertainty(model: nn.Module, samples: int, *, at_once: bool) -> Std:
    """MC dropout by the peer's wrapper around a copy: it puts dropout into train mode."""
    declare_operators()
    from torch_uncertainty.methods import mc_dropout  # pyright: ignore[reportMissingImports]

    wrapped = mc_dropout(copy.deepcopy(model), num_estimators=samples, on_batch=at_once).eval()

    def call(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return wrapped(x).unflatten(0, (samples, len(x))).std(0)

    return call


def declare_operators() -> None:
    """Lets torchvision be imported, which peers import."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "coverage"))
    from torchvision_shim import declare_missing_operators

    declare_missing_operators()
