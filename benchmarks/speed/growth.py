"""How cost grows: time and memory over samples, batch, resolution, depth and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from models.resnet import ResNet18
from torch import Tensor, nn

import howsure as hs
from howsure_lab.experiments.steering.model import DroNet
from speed.memory import peak_bytes
from speed.passes import NOISE, RATE, SAMPLES
from speed.timing import exponent, fastest

CHUNK = 4
Call = Callable[[], Any]


@dataclass(frozen=True)
class Growth:
    """Calls of growing size, one for each of several methods.

    Attributes:
        what: What grows.
        sizes: How far; the exponent is with respect to these.
        calls: From a size to calls by method.
        unit: What a size is.
    """

    what: str
    sizes: Sequence[int]
    calls: Callable[[int], dict[str, Call]]
    unit: str


def _predict(model: nn.Module, x: Tensor, method: str, **options: Any) -> Call:
    sure = hs.Uncertain(model, NOISE, method, **options)
    return lambda: sure(x)


def _dronet(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    net = DroNet()
    net.steer = nn.Linear(net.steer.in_features, outputs)
    return net.eval().requires_grad_(False)


def _samples(count: int) -> dict[str, Call]:
    x, net, dropout = torch.rand(1, 1, 200, 200), _dronet(), {"rate": RATE}
    return {
        "gradients": _predict(net, x, "gradients", samples=count),
        "Monte Carlo": _predict(net, x, "noise_sampling", samples=count),
        "sampled ADF": _predict(net, x, "sampled_adf", samples=count, **dropout),
        f"sampled ADF, chunk = {CHUNK}": _predict(
            net, x, "sampled_adf", samples=count, chunk=CHUNK, **dropout
        ),
    }


def _batch(count: int) -> dict[str, Call]:
    x, dropout = torch.rand(count, 1, 200, 200), {"rate": RATE}
    return {
        "ADF": _predict(_dronet(), x, "adf"),
        "T = 20": _predict(_dronet(), x, "sampled_adf", samples=SAMPLES, **dropout),
        "gradients": _predict(_dronet(), x, "gradients"),
    }


def _resolution(side: int) -> dict[str, Call]:
    torch.manual_seed(0)
    net, x = ResNet18(1).eval().requires_grad_(False), torch.rand(1, 3, side, side)
    return {
        "ADF": _predict(net, x, "adf"),
        "gradients": _predict(net, x, "gradients"),
    }


def _depth(layers: int) -> dict[str, Call]:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(layers - 1):
        parts += [nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    for part in parts:
        if isinstance(part, nn.Conv2d):  # as in trained networks, activations keep their size
            nn.init.kaiming_normal_(part.weight)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1)]
    net = nn.Sequential(*parts, *head).eval().requires_grad_(False)
    x, dropout = torch.rand(1, 3, 48, 48), {"rate": RATE}
    return {
        "ADF": _predict(net, x, "adf"),
        "T = 20": _predict(net, x, "sampled_adf", samples=SAMPLES, **dropout),
        "gradients": _predict(net, x, "gradients"),
    }


def _outputs(count: int) -> dict[str, Call]:
    x, net = torch.rand(1, 1, 200, 200), _dronet(count)
    return {
        "ADF": _predict(net, x, "adf"),
        "gradients": _predict(net, x, "gradients"),
    }


GROWTH = {
    "samples": Growth("samples or points (DroNet)", (8, 16, 32, 64), _samples, "samples"),
    "batch": Growth("batch (DroNet)", (1, 2, 4, 8, 16), _batch, "inputs"),
    "resolution": Growth("resolution (ResNet-18)", (64, 96, 128, 192, 256), _resolution, "pixels"),
    "depth": Growth("depth (32 channels, 48 x 48)", (4, 8, 16, 32), _depth, "convolutions"),
    "outputs": Growth("outputs (DroNet)", (1, 2, 4, 8, 16, 32), _outputs, "outputs"),
}


def measure(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """Seconds and memory at every size, and their exponents for each method."""
    growth = GROWTH[name]
    sizes = list(growth.sizes)[:3] if quick else list(growth.sizes)
    calls = {(size, method): c for size in sizes for method, c in growth.calls(size).items()}
    # The sizes take turns, as the methods do.
    labels = {f"{size} {method}": call for (size, method), call in calls.items()}
    times = fastest(labels, budget=1 if quick else 12, rounds=2 if quick else 12)
    peaks = {label: peak_bytes(call) for label, call in labels.items()}
    steps = [size**2 for size in sizes] if growth.unit == "pixels" else sizes
    methods = {}
    for method in dict.fromkeys(method for _, method in calls):
        own = [f"{size} {method}" for size in sizes]
        seconds, held = [times[label] for label in own], [peaks[label] for label in own]
        methods[method] = {
            "seconds": seconds,
            "peak_bytes": held,
            "exponent": exponent(steps, seconds),
            "memory_exponent": exponent(steps, held),
        }
    return {"what": growth.what, "unit": growth.unit, "sizes": steps, "methods": methods}
