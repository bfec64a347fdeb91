"""A Kalman filter that takes the network's predicted variance as its measurement noise.

A line camera of 64 pixels sees a lamp on a moving vehicle; a network reads the lamp's position. For
a third of the way it is dark: the camera raises its gain and its noise is four times as strong. The
camera's datasheet gives the noise for every gain, howsure carries it through the network. One
filter takes the predicted variance, the other a constant that was tuned on another run with the
same dark stretch. Prints the errors of both, draws a picture. Needs no data; takes under a minute.

Run from the repository: `OMP_NUM_THREADS=1 .venv/bin/python examples/fusion.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import howsure as hs
from howsure.values.files import write_atomically

PIXELS = 64
BRIGHT, DARK = 0.05, 0.20  # std of the camera's noise; the lamp's brightness is 1
DT = 0.02  # s between frames
PUSH = 40.0  # std of the vehicle's acceleration, pixels / s**2
# Position (from the centre) and velocity after a frame: a soft spring, a little friction, a push.
MOVE = np.array([[1 - 2 * DT**2, 0.995 * DT], [-2 * DT, 0.995]])
PUSHED = PUSH * np.array([DT**2, DT])
CENTRE = 32.0


class Run(NamedTuple):
    """A flight: true positions, frames, and the std of the camera's noise in each."""

    position: Tensor  # (n,)
    frames: Tensor  # (n, 64)
    noise_std: Tensor  # (n,)


def photograph(position: Tensor, noise_std: Tensor, generator: torch.Generator) -> Tensor:
    """Frames of a lamp, 2.5 pixels wide, with noise: (n, 64)."""
    away = (torch.arange(PIXELS) - position[:, None]) / 2.5
    clean = torch.exp(-0.5 * away.square())
    return clean + noise_std[:, None] * torch.randn(clean.shape, generator=generator)


def flown(seed: int, frames: int = 600) -> Run:
    """A vehicle on a soft spring that is pushed at random; the middle third is dark."""
    generator = torch.Generator().manual_seed(seed)
    pushes = torch.randn(frames, generator=generator).tolist()
    state, path = np.zeros(2), []
    for push in pushes:
        state = MOVE @ state + PUSHED * push
        path.append(CENTRE + state[0])
    dark = (torch.arange(frames) // (frames // 3)) == 1
    noise_std = torch.where(dark, DARK, BRIGHT)
    true = torch.tensor(path, dtype=torch.float32)
    return Run(true, photograph(true, noise_std, generator), noise_std)


def trained(steps: int = 3000) -> nn.Module:
    """The network that reads the position, trained in all light."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(PIXELS, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for _ in range(steps):
        position = 4 + 56 * torch.rand(128, generator=generator)
        noise_std = BRIGHT + (DARK - BRIGHT) * torch.rand(128, generator=generator)
        found = model(photograph(position, noise_std, generator))[:, 0]
        loss = (found - (position - 32) / 16).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval().requires_grad_(False)


def measured(
    model: nn.Module, run: Run, residual_var: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Position and variance for every frame, in pixels; each frame has its own noise variance."""
    sure = hs.Uncertain(
        model, run.noise_std.square()[:, None], "gradients", residual_var=residual_var
    )
    found = sure(run.frames)
    return (CENTRE + 16 * found.mean[:, 0]).numpy(), (256 * found.total_var[:, 0]).numpy()


def residual_variance(model: nn.Module, run: Run) -> float:
    """What the network gets wrong in good light beyond the camera's noise, as a variance."""
    mean, var = measured(model, run)
    bright = (run.noise_std == BRIGHT).numpy()
    missing = ((mean - run.position.numpy()) ** 2 - var)[bright].mean()
    return max(0.0, float(missing)) / 256


def filtered(mean: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position and its variance by a Kalman filter that knows how the vehicle moves."""
    state, spread = np.array([mean[0] - CENTRE, 0.0]), np.diag([var[0], 100.0])
    positions, variances = [], []
    for reading, noise in zip(mean - CENTRE, var, strict=True):
        state, spread = MOVE @ state, MOVE @ spread @ MOVE.T + np.outer(PUSHED, PUSHED)
        gain = spread[:, 0] / (spread[0, 0] + noise)
        state = state + gain * (reading - state[0])
        spread = spread - np.outer(gain, spread[0])
        positions.append(CENTRE + state[0])
        variances.append(spread[0, 0])
    return np.array(positions), np.array(variances)


def tuned_constant(mean: np.ndarray, true: np.ndarray) -> float:
    """The constant measurement variance with the smallest error on a tuning run."""
    tried = np.geomspace(1e-3, 30, 60)
    errors = [((filtered(mean, np.full_like(mean, v))[0] - true) ** 2).mean() for v in tried]
    return float(tried[int(np.argmin(errors))])


def scores(name: str, run: Run, found: tuple[np.ndarray, np.ndarray]) -> str:
    """A line of the table: RMSE in light and dark, and squared error over claimed variance."""
    squared = (found[0] - run.position.numpy()) ** 2
    dark = (run.noise_std == DARK).numpy()
    parts = [np.sqrt(squared[part].mean()) for part in (~dark, dark, slice(None))]
    honest = [(squared / found[1])[part].mean() for part in (~dark, dark)]
    cells = "  ".join(f"{value:7.3f}" for value in (*parts, *honest))
    return f"{name:30}{cells}"


def draw(run: Run, lines: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """The errors of both filters with the stds that they claim."""
    from howsure_lab.experiments.figures import COLOURS, new_figure

    figure, axes = new_figure(len(lines), 1, width=8, height=2.4 * len(lines))
    times = DT * np.arange(len(run.position))
    dark = times[(run.noise_std == DARK).numpy()]
    for index, (name, (mean, var)) in enumerate(lines.items()):
        ax, reach = axes[index, 0], 2 * np.sqrt(var)
        ax.axvspan(dark[0], dark[-1], color="0.9", label="dark")
        ax.fill_between(times, -reach, reach, color=COLOURS[2], alpha=0.5, label="claimed 2 std")
        ax.plot(times, mean - run.position.numpy(), color=COLOURS[5], linewidth=1, label="error")
        ax.set(ylabel="pixels", ylim=(-1.5, 1.5))
        ax.set_title(name, fontsize=10, loc="left")
    axes[0, 0].legend(loc="upper left", fontsize=8, ncols=3)
    axes[-1, 0].set_xlabel("time, s")
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted variance as measurement noise.")
    parser.add_argument("--out", type=Path, default=Path("out/fusion.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = trained()
    tuning, test = flown(1), flown(2)
    residual_var = residual_variance(model, tuning)
    constant = tuned_constant(measured(model, tuning)[0], tuning.position.numpy())
    mean, var = measured(model, test, residual_var)
    lines = {
        "network alone": (mean, var),
        f"filter, constant {constant:.2g}": filtered(mean, np.full_like(mean, constant)),
        "filter, predicted variance": filtered(mean, var),
    }
    print("RMSE in pixels, and squared error over claimed variance, of which 1 is honest")
    print(f"{'':30}  light     dark      all    light     dark")
    for name, found in lines.items():
        print(scores(name, test, found))
    try:
        draw(test, {name: lines[name] for name in list(lines)[1:]}, options.out)
        print(f"Picture: {options.out}")
    except ImportError as error:
        print(error)


if __name__ == "__main__":
    main()
