"""A Kalman filter that takes the network's predicted variance as its measurement noise.

A line camera of 64 pixels sees a lamp on a moving vehicle; a network reads the lamp's position. For
a third of the way it is dark: the camera raises its gain and its noise is four times as strong. The
camera's datasheet gives the noise for every gain, howsure carries it through the network. Of two
filters one takes the predicted variance, calibrated on five runs; the other a constant, tuned for
the smallest error on the same five. Prints the errors of both, and of the variance as predicted,
their NEES with its 95 % band over fifty other runs, and draws it. Needs no data; takes about half a
minute. Needs filterpy: `pip install 'howsure[robotics]'`.

Run from the repository: `OMP_NUM_THREADS=1 .venv/bin/python examples/fusion.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from filterpy.kalman import KalmanFilter
from torch import Tensor, nn

import howsure as hs
from howsure.files import write_atomically

PIXELS = 64
BRIGHT, DARK = 0.05, 0.20  # std of the camera's noise; the lamp's brightness is 1
DT = 0.02  # s between frames
PUSH = 40.0  # std of the vehicle's acceleration, pixels / s**2
# Position (from the center) and velocity after a frame: a soft spring, a little friction, a push.
MOVE = np.array([[1 - 2 * DT**2, 0.995 * DT], [-2 * DT, 0.995]])
PUSHED = PUSH * np.array([DT**2, DT])
CENTER, SCALE = 32.0, 16.0  # the network's 0 and 1, in pixels
START = np.diag([1.0, 100.0])  # how far from the center, and how fast, a run may begin
TUNING, TESTS = 5, 50  # runs


class Run(NamedTuple):
    """A flight: true states, frames, and the std of the camera's noise in each."""

    states: np.ndarray  # (n, 2), position from the center and velocity
    frames: Tensor  # (n, 64)
    noise_std: Tensor  # (n,)


class Filtered(NamedTuple):
    """What a filter made of a run."""

    states: np.ndarray  # (n, 2)
    covariances: np.ndarray  # (n, 2, 2)


def photograph(position: Tensor, noise_std: Tensor, generator: torch.Generator) -> Tensor:
    """Frames of a lamp, 2.5 pixels wide, with noise: (n, 64)."""
    away = (torch.arange(PIXELS) - position[:, None]) / 2.5
    clean = torch.exp(-0.5 * away.square())
    return clean + noise_std[:, None] * torch.randn(clean.shape, generator=generator)


def flown(seed: int, frames: int = 600) -> Run:
    """A vehicle on a soft spring that is pushed at random; the middle third is dark."""
    generator = torch.Generator().manual_seed(seed)
    pushes = torch.randn(frames, generator=generator).tolist()
    state = np.sqrt(np.diag(START)) * torch.randn(2, generator=generator).numpy()
    path = []
    for push in pushes:
        state = MOVE @ state + PUSHED * push
        path.append(state)
    states = np.array(path)
    dark = (torch.arange(frames) // (frames // 3)) == 1
    noise_std = torch.where(dark, DARK, BRIGHT)
    position = torch.tensor(CENTER + states[:, 0], dtype=torch.float32)
    return Run(states, photograph(position, noise_std, generator), noise_std)


def trained(steps: int = 3000) -> nn.Module:
    """The network that reads the position, trained in all light."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(PIXELS, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        position = 4 + 56 * torch.rand(128, generator=generator)
        noise_std = BRIGHT + (DARK - BRIGHT) * torch.rand(128, generator=generator)
        found = model(photograph(position, noise_std, generator))[:, 0]
        loss = (found - (position - CENTER) / SCALE).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval().requires_grad_(False)


def predicted(model: nn.Module, runs: list[Run]) -> hs.Prediction:
    """What the network reads in every frame of all runs, each with its own noise variance."""
    noise_var = torch.cat([run.noise_std for run in runs]).square()[:, None]
    return hs.Uncertain(model, noise_var, "gradients")(torch.cat([run.frames for run in runs]))


def calibrated(model: nn.Module, runs: list[Run]) -> hs.calibrate.AffineVariance:
    """What scales the variance, and adds what the network gets wrong without noise, too."""
    positions = torch.tensor(np.concatenate([run.states[:, 0] for run in runs]))
    return hs.calibrate.AffineVariance.fit(predicted(model, runs), positions[:, None] / SCALE)


def measured(prediction: hs.Prediction, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions from the center in pixels and their variances, each (runs, steps)."""
    mean, var = SCALE * prediction.mean, SCALE**2 * prediction.total_var
    return mean.double().numpy().reshape(runs, -1), var.double().numpy().reshape(runs, -1)


def filtered(mean: np.ndarray, var: np.ndarray) -> Filtered:
    """A Kalman filter that knows how the vehicle moves, with this measurement noise."""
    kalman = KalmanFilter(dim_x=2, dim_z=1)
    kalman.x, kalman.P = np.zeros((2, 1)), START.copy()
    kalman.F, kalman.Q, kalman.H = MOVE, np.outer(PUSHED, PUSHED), np.array([[1.0, 0.0]])
    states, covariances = [], []
    for reading, noise in zip(mean, var, strict=True):
        kalman.predict()
        kalman.update(reading, R=noise)
        states.append(kalman.x[:, 0].copy())
        covariances.append(kalman.P.copy())
    return Filtered(np.array(states), np.array(covariances))


def tuned_constant(readings: np.ndarray, runs: list[Run]) -> float:
    """The constant measurement variance with the smallest error of position on tuning runs."""

    def error(constant: float) -> float:
        found = [filtered(mean, np.full_like(mean, constant)).states for mean in readings]
        pairs = zip(found, runs, strict=True)
        return float(np.mean([(states[:, 0] - run.states[:, 0]) ** 2 for states, run in pairs]))

    return float(min(np.geomspace(1e-3, 3, 24), key=error))


def distances(runs: list[Run], found: list[Filtered]) -> Tensor:
    """The squared Mahalanobis distance of each state's error, (runs, steps)."""
    errors = np.stack([run.states - f.states for run, f in zip(runs, found, strict=True)])
    covariances = np.stack([f.covariances for f in found])
    return hs.metrics.squared_mahalanobis(torch.tensor(errors), torch.tensor(covariances))


def scores(name: str, runs: list[Run], found: list[Filtered], squared: Tensor) -> str:
    """A line of the table: RMSE of the position, mean NEES, and the share of steps in its band."""
    dark = (runs[0].noise_std == DARK).numpy()
    errors = np.stack([r.states[:, 0] - f.states[:, 0] for r, f in zip(runs, found, strict=True)])
    rmse = [np.sqrt((errors[:, part] ** 2).mean()) for part in (~dark, dark, slice(None))]
    nees = squared.mean(0).numpy()
    low, high = hs.metrics.chi_square_band(2, count=len(runs))
    inside = (low <= nees) & (nees <= high)
    cells = [f"{value:7.3f}" for value in (*rmse, nees[~dark].mean(), nees[dark].mean())]
    shares = [f"{100 * inside[part].mean():5.0f} %" for part in (~dark, dark)]
    return f"{name:30}{'  '.join((*cells, *shares))}"


def draw(runs: list[Run], nees: dict[str, Tensor], path: Path) -> None:
    """The NEES of both filters with its band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), dpi=100, layout="constrained")
    ax = figure.add_subplot()
    times = DT * np.arange(len(runs[0].states))
    dark = times[(runs[0].noise_std == DARK).numpy()]
    ax.axvspan(dark[0], dark[-1], color="0.93", label="dark: noise four times as strong", zorder=0)
    hs.plots.consistency(nees, 2, times=times, ax=ax)
    ax.set_xlabel("time, s")
    ax.set_ylim(0, 1.4 * ax.get_ylim()[1])  # room for the legend
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted variance as measurement noise.")
    parser.add_argument("--out", type=Path, default=Path("out/fusion.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = trained()
    tuning = [flown(seed) for seed in range(1, 1 + TUNING)]
    tests = [flown(seed) for seed in range(100, 100 + TESTS)]
    constant = tuned_constant(measured(predicted(model, tuning), TUNING)[0], tuning)
    raw = predicted(model, tests)
    mean, raw_var = measured(raw, TESTS)
    noises = {
        f"constant {constant:.2g}": np.full_like(mean, constant),
        "predicted variance": measured(calibrated(model, tuning)(raw), TESTS)[1],
        "the same, not calibrated": raw_var,
    }
    found = {
        name: [filtered(*each) for each in zip(mean, var, strict=True)]
        for name, var in noises.items()
    }
    nees = {name: distances(tests, runs) for name, runs in found.items()}
    low, high = hs.metrics.chi_square_band(2, count=TESTS)
    print(f"RMSE in pixels; NEES, 2 if consistent; steps inside its band, {low:.2f} to {high:.2f}")
    print(f"{'filter with':30}  light     dark      all    light     dark  light     dark")
    for name, runs in found.items():
        print(scores(name, tests, runs, nees[name]))
    draw(tests, {name: nees[name] for name in list(nees)[:2]}, options.out)
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
