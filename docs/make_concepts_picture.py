"""Draws docs/img/concepts.png: a number goes in, a Gaussian goes in, and what independence costs.

Run from the repository: `.venv/bin/python docs/make_concepts_picture.py`. The third panel is
measured on the network of `howsure_lab.digits`, which takes a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor, nn

import howsure as hs
from howsure_lab.digits.data import held_out_digits, sense
from howsure_lab.digits.model import DigitNet, load_trained

# From the palette of Okabe and Ito, which readers with any color vision can tell apart.
BLUE, VERMILLION, GRAY = "#0072B2", "#D55E00", "#8c8c8c"
PICTURE = Path(__file__).parent / "img" / "concepts.png"
MEAN, STD = 0.5, 0.8
LIMITS = (-2.2, 3.0)


def main() -> None:
    """Draws the three panels and writes the picture under a temporary name first."""
    figure = Figure(figsize=(12, 4.3), dpi=110, layout="constrained")
    panels = figure.subfigures(1, 3, width_ratios=(1, 1, 1.15), wspace=0.03, squeeze=False)
    number, gaussian, network = panels.flat
    draw_number(number)
    draw_gaussian(gaussian)
    draw_ratios(network.subplots(), measure_ratios(load_trained()))
    network.suptitle("What independence costs in a deep network", weight="bold")
    PICTURE.parent.mkdir(exist_ok=True)
    part = PICTURE.with_suffix(".part")
    figure.savefig(part, format="png")
    part.replace(PICTURE)
    print(f"Wrote {PICTURE.relative_to(Path(__file__).parents[1])}")


def frame(figure: SubFigure, title: str) -> tuple[Axes, Axes, Axes]:
    """Axes for a function, for its output (to the left) and for its input (below)."""
    figure.suptitle(title, weight="bold")
    axes = figure.subplots(
        2, 2, sharex="col", sharey="row", width_ratios=(1, 2.4), height_ratios=(2.4, 1)
    )
    (left, middle), (corner, below) = axes
    corner.set_axis_off()
    x = np.linspace(*LIMITS, 200)
    middle.plot(x, x.clip(0), color="black", linewidth=1.5)
    middle.text(2.9, -0.9, "max(x, 0)", ha="right", va="center")
    middle.set(xlim=LIMITS, ylim=(-1.3, 3.0))
    left.set_ylabel("output")
    below.set_xlabel("input")
    left.invert_xaxis()
    for ax in (left, middle, below):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    left.set_xticks([])
    below.set_yticks([])
    middle.tick_params(labelbottom=False, labelleft=False)
    return left, middle, below


def draw_number(figure: SubFigure) -> None:
    """A plain network: one number in, one number out."""
    left, middle, below = frame(figure, "A number goes in")
    middle.plot([MEAN, MEAN, LIMITS[0]], [-1.3, MEAN, MEAN], color=GRAY, linestyle=":")
    middle.plot(MEAN, MEAN, "o", color=BLUE)
    below.vlines(MEAN, 0, 1, color=BLUE, linewidth=2)
    below.set_ylim(0, 1.1)
    left.hlines(MEAN, 0, 1, color=BLUE, linewidth=2)
    left.set_xlim(1.1, 0)


def draw_gaussian(figure: SubFigure) -> None:
    """The same operation on a Gaussian: the true output, and the Gaussian with its moments."""
    left, middle, below = frame(figure, "A Gaussian goes in")
    x = np.linspace(*LIMITS, 400)
    below.fill_between(x, density(x, MEAN, STD), color=BLUE, alpha=0.35, linewidth=0)
    below.plot(x, density(x, MEAN, STD), color=BLUE)
    below.set_ylim(0, None)

    positive = np.linspace(0, 3.0, 300)
    left.fill_betweenx(positive, density(positive, MEAN, STD), color="0.75", linewidth=0)
    at_zero = hs.propagate(torch.relu, torch.tensor([MEAN]), STD**2)
    mean, std = at_zero.mean.item(), at_zero.var.sqrt().item()
    y = np.linspace(-1.3, 3.0, 400)
    left.plot(density(y, mean, std), y, color=BLUE)
    left.hlines(0, 0, 0.75, color="0.6", linewidth=4)
    left.set_xlim(0.8, 0)
    middle.axhspan(mean - std, mean + std, color=BLUE, alpha=0.12, linewidth=0)
    middle.axhline(mean, color=BLUE, linewidth=1)
    middle.text(-2.1, -0.3, f"mean {mean:.2f}, std {std:.2f}", color=BLUE, fontsize=9, va="center")
    middle.text(-2.1, 2.95, "gray: what comes out\nblue: what is passed on", fontsize=8.5, va="top")


def density(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    """The Gaussian density."""
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))


def draw_ratios(ax: Axes, ratios: dict[str, float]) -> Axes:
    """Predicted over true std after the layers of the demonstration's network."""
    places = range(len(ratios))
    ax.axhline(1, color="black", linewidth=1)
    ax.text(len(ratios) - 0.6, 1.015, "right", ha="right", va="bottom")
    ax.bar(places, list(ratios.values()), color=BLUE, width=0.65)
    for place, ratio in enumerate(ratios.values()):
        ax.text(place, ratio + 0.015, f"{ratio:.2f}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(places, list(ratios), rotation=35, ha="right", rotation_mode="anchor")
    ax.set(ylim=(0, 1.12), ylabel="predicted std / true std")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


@torch.inference_mode()
def measure_ratios(
    model: DigitNet, *, noise_std: float = 0.1, copies: int = 500
) -> dict[str, float]:
    """Mean predicted std over mean true std after each layer, for 50 held-out digits."""
    images = held_out_digits(50).images
    layers = with_layers(model)
    out = hs.propagate(layers, (images,), (noise_std**2,))
    noisy = sense(images.expand(copies, *images.shape), noise_std, torch.Generator().manual_seed(0))
    true = {
        name: output.unflatten(0, (copies, -1))
        for name, output in layers(noisy.flatten(0, 1)).items()
    }
    return {
        name: float(out.var[name].sqrt().mean() / true[name].std(dim=0).mean()) for name in true
    }


def with_layers(model: DigitNet) -> Callable[[Tensor], dict[str, Tensor]]:
    """A function that returns the outputs of the model's layers, by name."""
    watched = {
        "first conv": model.stem,
        "residual 1": model.block1,
        "second conv": model.widen,
        "residual 2": model.block2,
        "logits": model.classify,
    }

    def run(images: Tensor) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
            def keep(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
                if name == "logits":
                    seen["average"] = inputs[0]
                seen[name] = output

            return keep

        hooks = [layer.register_forward_hook(watch(name)) for name, layer in watched.items()]
        model(images)
        for hook in hooks:
            hook.remove()
        return seen

    return run


if __name__ == "__main__":
    main()
