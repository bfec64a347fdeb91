"""Draws docs/img/plots_*.png, the pictures of docs/plots.md.

Run from the repository: `.venv/bin/python docs/make_plot_gallery.py`; it takes about a minute. Two
small networks are trained with a fixed seed; images come from the network of `howsure_lab.digits`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from howsure import plots
from howsure.files import write_atomically
from howsure_lab.digits.data import held_out_digits, sense
from howsure_lab.digits.model import load_trained

PICTURES = Path(__file__).parent / "img"
NOISE_STD = 0.15
METHODS = ("gradients", "sampled_adf", "adf")


def trained(model: nn.Module, x: Tensor, y: Tensor, *, steps: int = 1500) -> nn.Module:
    """The model after plain least squares; it knows nothing of noise or of howsure."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """A small network with two hidden layers."""
    layers = [nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, outputs))


class Curve:
    """A noisy curve, learned on two stretches with a gap between them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        x = torch.cat([torch.rand(150, 1) * 2.5 - 3, torch.rand(150, 1) * 2 + 1])
        self.net = trained(perceptron(1, 1), x, self.true(x) + 0.05 * torch.randn_like(x))
        self.clean = torch.rand(600, 1) * 6 - 3
        self.x = self.clean + NOISE_STD * torch.randn(600, 1)
        self.y = self.true(self.clean) + 0.05 * torch.randn(600, 1)
        self.sure = {name: self.fitted(name) for name in METHODS}
        self.predicted = {name: sure(self.x[300:]) for name, sure in self.sure.items()}
        self.target = self.y[300:]

    @staticmethod
    def true(x: Tensor) -> Tensor:
        """What the network learns."""
        return torch.sin(2 * x) + 0.3 * x

    def fitted(self, method: str) -> hs.Uncertain:
        """A method whose rate was found on the first half of the held-out data."""
        sure = hs.Uncertain(self.net, noise=NOISE_STD**2, method=method)
        if method != "adf":
            sure.fit([(self.x[:300], self.y[:300])], show_progress=False, fit_residual_var=False)
        return sure


def bands(curve: Curve, ax: Axes) -> None:
    """A line of inputs through the network."""
    x = torch.linspace(-3, 3, 200).unsqueeze(1)
    predicted = curve.sure["gradients"](x)
    plots.bands(x[:, 0], predicted, truth=(curve.clean[:150, 0], curve.y[:150]), ax=ax)


def reliability(curve: Curve, ax: Axes) -> None:
    """Three methods."""
    plots.reliability(curve.predicted, curve.target, ax=ax)


def sparsification(curve: Curve, ax: Axes) -> None:
    """One method alone, so that the area shows."""
    predicted = curve.predicted["gradients"]
    plots.sparsification((curve.target - predicted.mean).abs(), predicted.total_var, ax=ax)


def std_vs_error(curve: Curve, ax: Axes) -> None:
    """Three methods."""
    plots.std_vs_error(curve.predicted, curve.target, bins=8, ax=ax)


def noise_sweep(curve: Curve, ax: Axes) -> None:
    """The data std of three methods against Monte Carlo, at the same inputs."""
    levels, x = [0.02, 0.05, 0.1, 0.2, 0.4], curve.clean[:200]
    names = ("adf", "gradients", "linear")
    stds: dict[str, list[float]] = {name: [] for name in names}
    true = []
    for level in levels:
        for name in names:
            sure = hs.Uncertain(curve.net, noise=level**2, method=name, rate=0.0)
            stds[name].append(float(sure(x).data_var.mean().sqrt()))
        noisy = x + level * torch.randn(1000, *x.shape, generator=seeded())
        true.append(float(curve.net(noisy).var(0).mean().sqrt()))
    plots.noise_sweep(levels, stds, true, ax=ax)


def nll_vs_samples(curve: Curve, ax: Axes) -> None:
    """Sampling with more and more samples, repeated, beside a method that needs none."""
    counts = [5, 10, 20, 50, 100]
    rate = curve.sure["sampled_adf"].setup.rate

    def nll(method: str, samples: int, seed: int) -> float:
        options: dict[str, Any] = {"method": method, "rate": rate, "samples": samples}
        sure = hs.Uncertain(curve.net, noise=NOISE_STD**2, seed=seed, **options)
        p = sure(curve.x[300:])
        return float(hs.metrics.nll(p.mean, p.total_var, curve.target))

    repeats = [[nll("sampled_adf", t, seed) for seed in range(8)] for t in counts]
    single = {"gradients": nll("gradients", 20, 0)}
    plots.nll_vs_samples(counts, {"sampled_adf": repeats}, single_pass=single, ax=ax)


def rate_search(curve: Curve, ax: Axes) -> None:
    """The search of the paper's method."""
    if fit := curve.sure["sampled_adf"].last_fit:
        plots.rate_search(fit, ax=ax)


class Beacons:
    """Where am I? A network that locates itself by its distances to four beacons."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.places = torch.tensor([[0.0, 0.0], [4.0, 0.0], [4.0, 3.0], [0.0, 3.0]])
        points = torch.rand(2000, 2) * torch.tensor([3.0, 3.0])  # the right quarter is unknown
        self.net = trained(perceptron(4, 2), self.distances(points), points)
        angle = torch.linspace(0, 2 * torch.pi, 80)
        self.path = torch.stack([2 + 1.7 * angle.cos(), 1.5 + 1.1 * (2 * angle).sin()], 1)
        noise = 0.04 * torch.randn(80, 4)
        sure = hs.Uncertain(self.net, noise=0.04**2, method="gradients", rate=0.02)
        self.predicted = sure(self.distances(self.path) + noise)
        self.gate = hs.Gate.fit(self.predicted.total_var[self.path[:, 0] < 3], k=1.5)

    def distances(self, points: Tensor) -> Tensor:
        """From each point to each beacon."""
        return torch.cdist(points, self.places)


def trajectory(beacons: Beacons, ax: Axes) -> None:
    """A figure of eight, whose right end the network has never seen."""
    p = beacons.predicted
    trusted = beacons.gate(p.total_var)
    plots.trajectory(p.mean, p.covariance, truth=beacons.path, trusted=trusted, ax=ax)


def budget_bars(beacons: Beacons, ax: Axes) -> None:
    """Both coordinates at three places of the path."""
    plots.budget_bars(beacons.predicted.budget(), inputs=[0, 20, 40], ax=ax)


class Digits:
    """The network of `howsure_lab.digits` with noisy digits."""

    def __init__(self) -> None:
        self.digits = held_out_digits(200)
        self.images = sense(self.digits.images, 0.1, seeded())
        net = load_trained().requires_grad_(False)
        asked = {"task": "classification", "prediction": "mean", "rate": 0.01}
        sure = hs.Uncertain(net, noise=0.1**2, method="gradients", **asked)
        self.predicted = sure(self.images)
        self.says = self.predicted.mean.argmax(1)
        self.sure = hs.Uncertain(net, noise=0.1**2, method="gradients", rate=0.0)
        self.least = int(self.predicted.entropy.argmax())


def confidence(digits: Digits, ax: Axes) -> None:
    """The probabilities of two readings of the same network."""
    plain = digits.sure.model(digits.images).softmax(1)
    both = {"mean over the noise": digits.predicted.mean, "plain softmax": plain}
    plots.confidence(both, digits.digits.labels, bins=8, ax=ax)


def heatmap(digits: Digits, ax: Axes, *, overlay: bool = False) -> None:
    """Which pixels make the network doubt its answer."""
    i = digits.least
    budget = digits.sure(digits.images[i : i + 1]).budget()
    heat = budget.heatmap()[0, int(digits.says[i])]
    plots.heatmap(digits.images[i], heat, overlay=overlay, label="variance of the logit", ax=ax)


def heatmap_overlay(digits: Digits, ax: Axes) -> None:
    """The same, laid over the image."""
    heatmap(digits, ax, overlay=True)


def gallery(digits: Digits, axes: Any) -> None:
    """The surest and the least sure digits, by entropy."""
    captions = [f"says {int(k)}" for k in digits.says]
    correct = digits.says == digits.digits.labels
    uncertainty = digits.predicted.entropy
    plots.gallery(
        digits.images, uncertainty, captions=captions, correct=correct, label="entropy", axes=axes
    )


class LucasKanade(nn.Module):
    """Optical flow from two images by least squares in windows; nothing to train."""

    def forward(
        self,
        pair: Tensor,  # (batch, 2, H, W)
    ) -> Tensor:  # (batch, 2, H, W)
        """How far the first image moves to become the second."""
        middle = pair.mean(1)
        down, right = torch.gradient(middle, dim=(1, 2))
        later = pair[:, 1] - pair[:, 0]

        def window(a: Tensor, b: Tensor) -> Tensor:
            return F.avg_pool2d((a * b).unsqueeze(1), 9, 1, 4).squeeze(1)

        xx, yy = window(right, right) + 1e-5, window(down, down) + 1e-5
        xy, xt, yt = window(right, down), window(right, later), window(down, later)
        determinant = xx * yy - xy * xy
        return torch.stack([xy * yt - yy * xt, xy * xt - xx * yt], 1) / determinant.unsqueeze(1)


def flow_arrows(_: None, ax: Axes) -> None:
    """A turning pattern whose texture fades to the right."""
    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(64.0), indexing="ij")

    def pattern(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 + 0.4 * torch.sin(x / 2.2) * torch.cos(y / 2.6) * torch.sigmoid((44 - x) / 9)

    right, down = 0.02 * (y - 24), -0.02 * (x - 32)
    pair = torch.stack([pattern(x, y), pattern(x - right, y - down)]).unsqueeze(0)
    sure = hs.Uncertain(LucasKanade().eval(), noise=0.01**2, method="noise_sampling", samples=60)
    p = sure(pair)
    plots.flow_arrows(pair[0, 0], p.mean[0], p.total_var[0], every=4, ax=ax)


def seeded() -> torch.Generator:
    """The same random numbers every time."""
    return torch.Generator().manual_seed(0)


def save(figure: Figure, name: str) -> None:
    """Writes one picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(PICTURES / f"plots_{name}.png", lambda file: file.write(buffer.getvalue()))
    print(f"Wrote img/plots_{name}.png")


SIZES = {
    "reliability": (4.6, 4.2),
    "confidence": (4.6, 4.2),
    "std_vs_error": (4.6, 4.2),
    "noise_sweep": (4.8, 4.6),
    "budget_bars": (7.2, 3.6),
    "heatmap": (7.0, 3.2),
    "heatmap_overlay": (4.4, 3.4),
    "flow_arrows": (6.4, 4.2),
    "trajectory": (6.4, 4.2),
}


def main() -> None:
    """Draws every picture, and four of them in the dark theme."""
    curve, beacons, digits = Curve(), Beacons(), Digits()
    jobs: list[tuple[Callable[[Any, Any], None], Any]] = [
        *((draw, curve) for draw in (bands, reliability, sparsification, std_vs_error)),
        *((draw, curve) for draw in (noise_sweep, nll_vs_samples, rate_search)),
        *((draw, beacons) for draw in (trajectory, budget_bars)),
        *((draw, digits) for draw in (confidence, heatmap, heatmap_overlay)),
        (flow_arrows, None),
    ]
    for draw, example in jobs:
        name = draw.__name__
        figure = Figure(figsize=SIZES.get(name, (5.6, 3.8)), dpi=100, layout="constrained")
        draw(example, figure.add_subplot())
        save(figure, name)
    figure = Figure(figsize=(9.2, 3.9), dpi=100, layout="constrained")
    gallery(digits, figure.subplots(2, 6))
    save(figure, "gallery")
    with plots.style(dark=True):
        figure = Figure(figsize=(11, 8), dpi=90, layout="constrained")
        axes = figure.subplots(2, 2)
        bands(curve, axes[0, 0])
        reliability(curve, axes[0, 1])
        trajectory(beacons, axes[1, 0])
        budget_bars(beacons, axes[1, 1])
        save(figure, "dark")


if __name__ == "__main__":
    main()
