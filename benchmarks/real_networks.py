"""The networks and inputs on which accuracy is measured, and Monte Carlo as truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bench import cached, draws
from models import trained
from torch import Tensor, nn

from howsure_lab.experiments.recognition.resnets import STD
from howsure_lab.experiments.steering.model import load_weights

GRAY = 1 / 255


@dataclass(frozen=True)
class Case:
    """A network with inputs and either sensor noise or dropout."""

    name: str
    network: str
    noise_std: float = 0.0  # of pixels in [0, 1], or of numbers with unit variance
    rate: float = 0.0
    units: str | None = None


NOISE = (("2 gray levels", 2 * GRAY), ("8 gray levels", 8 * GRAY), ("0.1", 0.1))
CASES = [
    *(
        Case(f"{network}, {label}", network, noise_std=std)
        for network in ("ResNet-20", "ResNet-32", "DroNet", "ViT")
        for label, std in NOISE
    ),
    *(
        Case(f"{network}, {std}", network, noise_std=std)
        for network in ("LSTM", "MLP")
        for std in (0.05, 0.2, 0.5)
    ),
    *(
        Case(f"ResNet-20, {units}-wise dropout {rate:.1%}", "ResNet-20", rate=rate, units=units)
        for units in ("element", "channel")
        for rate in (0.005, 0.02, 0.05)
    ),
]


# Networks on a few numbers, with their inputs.
_NUMBERS = {"LSTM": trained.sequences, "MLP": trained.vectors}


def images_of(data: Path, network: str, count: int) -> Tensor:
    """Every k-th test input, as the network takes it."""
    if network in _NUMBERS:
        return _NUMBERS[network](count)
    if network == "DroNet":
        return _frames(data / "udacity/test_ch2_001/center", count)
    pixels = np.load(data / "cifar10/cifar10_subset.npz")["x_test"][:: 10_000 // count][:count]
    return trained.normalized(pixels)


def _frames(folder: Path, count: int) -> Tensor:
    from PIL import Image

    files = sorted(folder.glob("*.jpg"))
    chosen = files[:: len(files) // count][:count]
    return (
        torch.stack([torch.from_numpy(np.array(Image.open(f), np.float32)) for f in chosen])[
            :, None
        ]
        / 255
    )


def model_of(data: Path, case: Case) -> nn.Module:
    """The trained network of a case."""
    own = {"ViT": lambda: trained.vit(data), "LSTM": trained.lstm, "MLP": trained.mlp}
    if case.network in own:
        return own[case.network]()
    if case.network == "DroNet":
        return load_weights(data / "dronet" / "dronet_torch.pt")
    depth = int(case.network.removeprefix("ResNet-"))
    return trained.cifar_resnet(data / "cifar10_resnets", depth, case.units)


def noise_var(case: Case) -> Tensor:
    """The variance of the network's input."""
    if case.network == "DroNet" or case.network in _NUMBERS:
        return torch.tensor(case.noise_std**2)
    return (case.noise_std / torch.tensor(STD).reshape(3, 1, 1)).square()


def monte_carlo(
    model: nn.Module, x: Tensor, case: Case, samples: int, seed: int = 0
) -> Tensor:  # (samples, batch, outputs)
    """Outputs of the plain network for noisy inputs, or with dropout masks."""
    generator = torch.Generator().manual_seed(seed)
    std = noise_var(case).sqrt()
    # The memory format in which convolutions on a CPU are fastest.
    x = x.to(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)
    _switch_dropout(model, case.rate)
    torch.manual_seed(seed)
    rows = []
    with torch.inference_mode():
        for _ in range(samples):
            rows.append(model(x + std * torch.randn(x.shape, generator=generator)))
    _switch_dropout(model, 0.0)
    return torch.stack(rows)


def _switch_dropout(model: nn.Module, rate: float) -> None:
    for module in model.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.p = rate
            module.train(rate > 0)


def truth(data: Path, case: Case, count: int, samples: int) -> Tensor:
    """Monte Carlo for a case, cached: (samples, images, outputs); ten times as many of numbers."""

    def compute() -> Tensor:
        model, x = model_of(data, case), images_of(data, case.network, count)
        if case.network in _NUMBERS:
            return draws(model, x, noise_var(case).sqrt(), 10 * samples)
        return monte_carlo(model, x, case, samples)

    return cached(_key(case, count, samples), compute)


def _key(case: Case, count: int, samples: int) -> str:
    numbers = " x 10" if case.network in _NUMBERS else ""
    return f"{case} {count} {samples}{numbers}"


def linear_part(data: Path, case: Case, count: int, samples: int) -> dict[str, Tensor] | None:
    """The linear part of the draws of Monte Carlo, cached, and its exact variance.

    `draws` (samples, images, outputs) are <J, noise> for the very noise of Monte Carlo, with a
    slope J that knows nothing of it, and `var` (images, outputs) is |J S|^2. Monte Carlo less what
    its linear part is off by is more precise than Monte Carlo (control variates). Masks of dropout
    are not drawn here: `None`.
    """
    if case.rate:
        return None

    def compute() -> dict[str, Tensor]:
        x = images_of(data, case.network, count)
        slope = noise_var(case).sqrt() * mean_slope(model_of(data, case), x, case)
        drawn = _linear_rows(slope, samples, one_by_one=case.network in _NUMBERS)
        return {"draws": drawn, "var": slope.flatten(2).square().sum(2)}

    return cached(f"linear {_key(case, count, samples)}", compute)


def _linear_rows(slope: Tensor, samples: int, *, one_by_one: bool) -> Tensor:
    """Products of the slope with the normal numbers of `monte_carlo`, or of `bench.draws`."""
    generator = torch.Generator().manual_seed(0)
    shape = slope.shape[2:]
    flat = slope.flatten(2)
    if one_by_one:
        numbers = (torch.randn(10 * samples, *shape, generator=generator) for _ in flat)
        return torch.stack([z.flatten(1) @ own.T for z, own in zip(numbers, flat, strict=True)], 1)
    draws = (torch.randn(len(flat), *shape, generator=generator) for _ in range(samples))
    return torch.stack([torch.einsum("ioe,ie->io", flat, z.flatten(1)) for z in draws])


def mean_slope(model: nn.Module, x: Tensor, case: Case, pairs: int = 4) -> Tensor:
    """Gradients (images, outputs, *input), averaged over noisy points and their mirror images."""
    generator = torch.Generator().manual_seed(1)
    std = noise_var(case).sqrt()
    total: list[Tensor] = []
    for _ in range(pairs):
        z = std * torch.randn(x.shape, generator=generator)
        for point in (x + z, x - z):
            point.requires_grad_()
            outputs = model(point).sum(0)
            found = [torch.autograd.grad(each, point, retain_graph=True)[0] for each in outputs]
            total.append(torch.stack(found, 1))
    return torch.stack(total).mean(0)
