"""Does the predicted std follow the camera's noise? Three methods against Monte Carlo.

With `--data FOLDER` (`cifar10/` and `cifar10_resnets/`, as for `howsure reproduce recognition`) the
network is a CIFAR ResNet-20; else it is the small residual network for digits that comes with
howsure. Run from the repository: `python examples/gallery/noise_sweep.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure import plots
from howsure.files import write_atomically
from howsure_lab.digits.data import held_out_digits
from howsure_lab.digits.model import load_trained
from howsure_lab.experiments.recognition.data import normalized, read_cifar
from howsure_lab.experiments.recognition.resnets import STD, load_pretrained
from howsure_lab.experiments.recognition.run import find_weights

LEVELS = (1, 2, 4, 8, 16, 32)  # gray levels, as a std
METHODS = ("adf", "linear", "gradients")


def digits(count: int) -> tuple[nn.Module, Tensor, Tensor | float]:
    """A network, images for it, and by what its input was divided."""
    return load_trained(), held_out_digits(count).images, 1.0


def cifar(folder: Path, count: int) -> tuple[nn.Module, Tensor, Tensor | float]:
    images = read_cifar(folder / "cifar10").test_x[:count]
    model = load_pretrained(find_weights(folder), 20)
    return model, normalized(images), torch.tensor(STD).view(3, 1, 1)


@torch.no_grad()
def true_std(model: nn.Module, x: Tensor, noise: hs.noise.Noise, copies: int) -> Tensor:
    """The std over noisy samples, (images, outputs)."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([model(noise.sample(x, generator)) for _ in range(copies)]).std(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted std against the camera's noise.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_noise_sweep.png"))
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10 and its ResNets")
    parser.add_argument("--quick", action="store_true", help="few images, few copies")
    options = parser.parse_args()

    count, copies = (4, 60) if options.quick else (20, 400)
    model, x, divisor = cifar(options.data, count) if options.data else digits(count)
    model.requires_grad_(False)
    true, found = [], {name: [] for name in METHODS}
    for level in LEVELS:
        noise = hs.noise.gray_levels(level).through_normalize(0, divisor)
        stds = true_std(model, x, noise, copies)
        true.append(float(stds.mean()))
        for name in METHODS:
            p = hs.Uncertain(model, noise, name, rate=0.0)(x)
            found[name].append(float(p.data_var.sqrt().mean()))
        ratios = "  ".join(f"{name} {found[name][-1] / true[-1]:.3f}" for name in METHODS)
        print(f"{level:3} gray levels, predicted / true std: {ratios}")

    figure = Figure(figsize=(5.6, 5.2), dpi=100, layout="constrained")
    ax = plots.noise_sweep(LEVELS, found, true, ax=figure.add_subplot())
    network = "CIFAR ResNet-20" if options.data else "residual network for digits"
    ax.set_title(f"{network}, noise in gray levels", fontsize=11)
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
