"""Draws docs/img/calibration_reliability.png and prints the table of docs/calibration.md.

Run from the repository: `.venv/bin/python docs/make_calibration_pictures.py`; a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure.calibrate import AffineVariance, Conformal, IsotonicQuantiles, VarianceScale
from howsure.files import write_atomically

# From the palette of Okabe and Ito; line styles and markers tell the curves apart without color.
STYLES = {
    "as predicted": ("#000000", "-", "o"),
    "VarianceScale": ("#E69F00", "--", "s"),
    "AffineVariance": ("#009E73", "-.", "^"),
    "IsotonicQuantiles": ("#CC79A7", ":", "D"),
    "Conformal": ("#0072B2", "-", "v"),
    "Affine, then Conformal": ("#56B4E9", "--", "P"),
}
PICTURE = Path(__file__).parent / "img" / "calibration_reliability.png"
LEVELS = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
NOISE_STD = 0.1


def main() -> None:
    """Draws the picture and prints the table."""
    sure = hs.Uncertain(trained(), noise=hs.noise.std(NOISE_STD), method="gradients")
    held_out, (x, y) = readings(500, 1), readings(5000, 2)
    before = sure(x)
    predictions = {"as predicted": before}
    for kind in (VarianceScale, AffineVariance, IsotonicQuantiles, Conformal):
        predictions[kind.__name__] = kind.fit_loader(sure, [held_out])(before)
    predictions["Affine, then Conformal"] = affine_then_conformal(sure, held_out)(before)
    print_table(predictions, y)
    figure = Figure(figsize=(11, 4.6), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    draw_reliability(left, predictions, y)
    draw_bands(right, sure, held_out)
    write_atomically(PICTURE, lambda file: figure.savefig(file, format="png"))


def truth(x: Tensor) -> Tensor:
    """What the network should have learned."""
    return torch.sin(3 * x) + 0.3 * x


def readings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy readings with targets that are themselves noisy and skewed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator) * 4 - 2
    skewed = -torch.log(torch.rand(n, 1, generator=generator)) - 1
    noisy = x + NOISE_STD * torch.randn(n, 1, generator=generator)
    return noisy, truth(x) + 0.15 * skewed


def trained() -> nn.Module:
    """A small network, trained on clean readings."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    x = torch.linspace(-2.5, 2.5, 400)[:, None]
    for _ in range(500):
        optimizer.zero_grad()
        (net(x) - truth(x)).square().mean().backward()
        optimizer.step()
    return net.eval()


def affine_then_conformal(
    sure: hs.Uncertain, held_out: tuple[Tensor, Tensor]
) -> Callable[[hs.Prediction], hs.Prediction]:
    """Both calibrators, the second with held-out data of its own."""
    affine = AffineVariance.fit_loader(sure, [held_out])
    conformal = Conformal.fit_loader(lambda x: affine(sure(x)), [readings(500, 4)])
    return lambda prediction: conformal(affine(prediction))


def covered(prediction: hs.Prediction, y: Tensor, level: float) -> float:
    """The share of targets inside the interval of a level."""
    low, high = prediction.interval(level)
    return float(((low <= y) & (y <= high)).double().mean())


def print_table(predictions: dict[str, hs.Prediction], y: Tensor) -> None:
    """Coverage and width of the 90 % interval, and the NLL of the variance."""
    print("| | 90 % interval covers | below / above | mean width | NLL of the variance |")
    print("|---|---|---|---|---|")
    for name, p in predictions.items():
        low, high = p.interval(0.9)
        below, above = (float(side.double().mean()) for side in (y < low, y > high))
        nll = float(hs.metrics.nll(p.mean, p.total_var, y))
        print(
            f"| {name} | {100 * covered(p, y, 0.9):.1f} % | {100 * below:.1f} / {100 * above:.1f} %"
            f" | {float((high - low).mean()):.2f} | {nll:.2f} |"
        )


def draw_reliability(ax: Axes, predictions: dict[str, hs.Prediction], y: Tensor) -> Axes:
    """Promised against observed coverage of central intervals."""
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for name, prediction in predictions.items():
        color, line, marker = STYLES[name]
        observed = [covered(prediction, y, float(level)) for level in LEVELS]
        ax.plot(LEVELS, observed, line, color=color, marker=marker, markersize=4, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="Reliability on new data")
    ax.set(xlabel="level of the interval", ylabel="share of targets inside")
    ax.legend(frameon=False, loc="upper left", fontsize=8.5)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def draw_bands(ax: Axes, sure: hs.Uncertain, held_out: tuple[Tensor, Tensor]) -> Axes:
    """90 % intervals before and after, over new readings."""
    grid = torch.linspace(-2.1, 2.1, 300)[:, None]
    before = sure(grid)
    after = affine_then_conformal(sure, held_out)(before)
    x, y = readings(300, 3)
    flat = grid[:, 0].numpy()
    low, high = (end[:, 0].numpy() for end in after.interval(0.9))
    ax.fill_between(
        flat, low, high, color="#56B4E9", alpha=0.4, linewidth=0, label="Affine, then Conformal"
    )
    low, high = (end[:, 0].numpy() for end in before.interval(0.9))
    ax.plot(flat, low, "k--", linewidth=1.2, label="as predicted")
    ax.plot(flat, high, "k--", linewidth=1.2)
    ax.scatter(x, y, s=6, color="0.35", linewidths=0, label="new readings", zorder=3)
    ax.set(xlabel="reading", ylabel="target", title="90 % intervals", ylim=(-1.8, 2.6))
    ax.legend(frameon=False, loc="upper left", fontsize=8.5)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


if __name__ == "__main__":
    main()
