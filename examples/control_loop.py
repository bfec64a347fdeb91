"""A network that says how sure it is, inside a control loop of 200 Hz.

A simulated quadrotor flies a lemniscate at 7 m/s. At every step the network predicts what the
controller's model misses, with its uncertainty; a gate decides whether to trust it. The loop runs
in real time: prints the latency of correction and control, the share of missed deadlines of 5 ms
and the processor time, which other programs on the machine do not lengthen, and draws a histogram.
Needs no data; trains its network first. Takes under a minute.

Run from the repository: `OMP_NUM_THREADS=1 .venv/bin/python examples/control_loop.py`
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import howsure as hs
from howsure.deploy.gate import Gate
from howsure.files import write_atomically
from howsure_lab.experiments.quadrotor.flight import (
    DT,
    Gains,
    Reference,
    Target,
    lemniscate,
    nose_of,
    planned_rate_change,
    rotor_command,
    start,
)
from howsure_lab.experiments.quadrotor.models import NOISE_STD, Siblings, absolute_error, read
from howsure_lab.experiments.quadrotor.physics import FULL_PHYSICS, joined, parts, step
from howsure_lab.experiments.quadrotor.preparation import Amount, collect
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, train_plain


@dataclass(frozen=True, eq=False)
class Corrector:
    """What runs in the loop: a prediction, and a gate on its variance."""

    predict: Any  # readings (1, 14) -> mean and variance, (1, 6)
    gate: Gate | None
    scale: torch.Tensor

    @torch.no_grad()
    def __call__(self, reading: np.ndarray) -> np.ndarray:
        mean, var = self.predict(torch.from_numpy(reading).float())
        if self.gate is not None:
            mean = self.gate.select(mean, var, 0.0)
        return (mean * self.scale).T.double().numpy()


def trained(seed: int = 0) -> tuple[nn.ModuleList, torch.Tensor, Pairs]:
    """Five networks, the size of their outputs, and held-out data."""
    raw = collect(Amount(random=16, held_out=4, seconds=8.0), seed)
    scale = raw.train.y.square().mean(0).sqrt()
    train, held_out = (Pairs(part.x, part.y / scale) for part in raw)
    siblings = made(lambda: Siblings(5, train), seed)
    assert isinstance(siblings, Siblings)
    train_plain(siblings, train, absolute_error, PlainRecipe(12, batch=256), seed)
    return nn.ModuleList(siblings.apart()).eval(), scale, held_out.every(500)


def correctors() -> dict[str, Corrector]:
    """The plain network, and four ways to know how sure it is."""
    networks, scale, held_out = trained()
    noise = torch.from_numpy(NOISE_STD).float().square()
    wrapped = {
        "one pass, sensor noise (adf)": hs.Uncertain(networks[0], noise, "adf"),
        "one pass, linearized (linear)": hs.Uncertain(networks[0], noise, "linear"),
        "five networks (ensemble)": hs.Uncertain(networks, method="ensemble"),
        "the paper, 20 samples (sampled_adf)": hs.Uncertain(
            networks[0], noise, "sampled_adf", rate=0.005, chunk=20
        ),
    }

    def plain(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = networks[0](x)
        return mean, torch.zeros_like(mean)

    found = {"plain network, no uncertainty": Corrector(plain, None, scale)}
    for name, sure in wrapped.items():

        def predict(x: torch.Tensor, sure: hs.Uncertain = sure) -> tuple[Any, Any]:
            prediction = sure(x)
            return prediction.mean, prediction.total_var

        held_out_var = sure.predict(held_out.batches(100), show_progress=False).total_var
        found[name] = Corrector(predict, Gate.fit(held_out_var), scale)
    return found


class Flown(NamedTuple):
    """What a loop took and reached."""

    latencies: np.ndarray  # (steps,), ms
    busy: np.ndarray  # (steps,), ms of processor time
    rmse: float  # m


def fly(correct: Corrector, steps: int) -> Flown:
    """Flies in real time."""
    flight, generator = lemniscate(7.0), np.random.default_rng(0)
    times = np.arange(steps).astype(np.float64) * DT
    plan, nose = flight.at(times), nose_of(flight.headings)
    changes = planned_rate_change(plan, nose, DT)
    state = joined(start(FULL_PHYSICS, Reference(*(part[0] for part in plan)), nose))
    latencies, busy, errors = np.empty((3, steps))
    correct(read(FULL_PHYSICS, state, generator))  # what is set up once is not in the loop
    gc.collect()
    gc.freeze()
    tick = time.perf_counter()
    for i in range(steps):
        tick = max(tick + DT, time.perf_counter())  # after a missed deadline the clock starts anew
        time.sleep(max(0.0, tick - time.perf_counter()))
        began, worked = time.perf_counter(), time.thread_time()
        correction = correct(read(FULL_PHYSICS, state, generator))
        target = Target(Reference(*(part[i] for part in plan)), changes[i], nose)
        command = rotor_command(FULL_PHYSICS, Gains(), parts(state), target, correction)
        latencies[i] = 1e3 * (time.perf_counter() - began)
        busy[i] = 1e3 * (time.thread_time() - worked)
        errors[i] = np.linalg.norm(state[:3] - plan.position[i])
        state = step(FULL_PHYSICS, state, command, DT)  # the world, which costs a robot nothing
    gc.unfreeze()
    return Flown(latencies, busy, float(np.sqrt((errors[steps // 5 :] ** 2).mean())))


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """The histograms, one above the other."""
    from howsure_lab.experiments.figures import COLORS, new_figure

    figure, axes = new_figure(len(found), 1, width=7, height=1.6 * len(found))
    largest = max(10.0, *(float(np.quantile(each, 0.995)) for each in found.values()))
    for index, (name, latencies) in enumerate(found.items()):
        ax = axes[index, 0]
        ax.hist(latencies.clip(0, largest), np.linspace(0, largest, 120), color=COLORS[4])
        ax.axvline(1e3 * DT, color=COLORS[5], linestyle="--")
        ax.set(xlim=(0, largest), ylabel="steps", yscale="log")
        ax.set_title(name, fontsize=9, loc="left")
    axes[-1, 0].set_xlabel("latency of correction and control, ms; dashed: the deadline")
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def main() -> None:
    parser = argparse.ArgumentParser(description="The uncertain network in a 200 Hz loop.")
    parser.add_argument("--steps", type=int, default=800, help="of every loop, 200 a second")
    parser.add_argument("--out", type=Path, default=Path("out/control_loop.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    latencies = {}
    print(f"{'':38}p50 ms  p99 ms   missed  busy p50  busy p99    RMSE")
    for name, correct in correctors().items():
        flown = fly(correct, options.steps)
        latencies[name] = flown.latencies
        p50, p99 = np.quantile(flown.latencies, [0.5, 0.99])
        busy50, busy99 = np.quantile(flown.busy, [0.5, 0.99])
        missed = 100 * (flown.latencies > 1e3 * DT).mean()
        times = f"{p50:6.2f} {p99:7.2f} {missed:6.1f} %  {busy50:8.2f}  {busy99:8.2f}"
        print(f"{name:38}{times}  {flown.rmse:.3f} m")
    try:
        draw(latencies, options.out)
        print(f"Histogram: {options.out}")
    except ImportError as error:
        print(error)


if __name__ == "__main__":
    main()
