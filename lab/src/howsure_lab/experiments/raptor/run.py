"""The std of the RAPTOR policy's motor commands by default settings, against Monte Carlo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure import noise
from howsure.auditing.measures import spearman
from howsure.prediction import Prediction
from howsure.uncertain import Uncertain
from howsure_lab.experiments.raptor.flight import DT, NOISE_STD, Plan, fly, histories
from howsure_lab.experiments.raptor.policy import Policy, Shipped, shipped
from howsure_lab.experiments.raptor.report import draw_figures, tables
from howsure_lab.experiments.runs import Options, Step, finished, open_folder, write_results

_AT_ONCE = 50  # samples of Monte Carlo in one call


@dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
        plan: The flight.
        length: Readings that carry noise; more than 20 change no std beyond sampling error.
        every: Steps between the points at which the std is measured.
        samples: Of Monte Carlo; 4,000 know a std to 1.1 %.
        noise_std: Of each sensor.
    """

    plan: Plan = field(default_factory=Plan)
    length: int = 20
    every: int = 10
    samples: int = 4000
    noise_std: dict[str, float] = field(default_factory=lambda: dict(NOISE_STD))

    @staticmethod
    def of(options: Options) -> Settings:
        """The settings for these options."""
        full = Settings()
        return replace(full, every=40, samples=500) if options.quick else full


def flight_of_seed(settings: Settings, found: Shipped, seed: int) -> dict[str, object]:
    """One flight, and the package's example, by default settings and by Monte Carlo."""
    flight = fly(found.policy, settings.plan, seed)
    cases = {"flight": flight.readings[:, None], "example": found.example}
    lines, series = [], {}
    for case, readings in cases.items():
        inputs = histories(found.policy, readings, settings.length, settings.every)
        given = {name: noise.std(std) for name, std in settings.noise_std.items()}
        p = Uncertain(found.policy, {**given, "memory": None}, seed=seed)(**inputs)
        truth = sampled_std(found.policy, inputs, settings, seed)
        lines.append({"seed": seed, "case": case, **scores(p, truth, settings.samples)})
        if case == "flight":
            series = _series(p, truth, settings)
    late = flight.distances[round(settings.plan.hover / DT) :]
    return {"lines": lines, "series": series, "rmse": float((late**2).mean() ** 0.5)}


@torch.no_grad()
def sampled_std(
    policy: Policy, inputs: Mapping[str, Tensor], settings: Settings, seed: int
) -> Tensor:  # (points, 4)
    """The std of the plain policy's commands with sampled noise."""
    generator = torch.Generator().manual_seed(1000 + seed)  # not the draws of the method
    total = square = torch.zeros(())
    center = policy(**inputs).double()
    for _ in range(settings.samples // _AT_ONCE):
        noisy = {name: each.expand(_AT_ONCE, *each.shape) for name, each in inputs.items()}
        for name, std in settings.noise_std.items():
            noisy[name] = noisy[name] + std * torch.randn(noisy[name].shape, generator=generator)
        found = policy(**{name: each.flatten(0, 1) for name, each in noisy.items()})
        moved = found.double().unflatten(0, (_AT_ONCE, -1)) - center
        total, square = total + moved.sum(0), square + moved.square().sum(0)
    count = settings.samples // _AT_ONCE * _AT_ONCE
    return ((square - total.square() / count) / (count - 1)).sqrt()


def scores(p: Prediction, truth: Tensor, samples: int) -> dict[str, Any]:
    """How far the predicted stds are from those of Monte Carlo, over all points and motors.

    `within` is the share of them within two standard errors: the prediction's own, which it
    states, and that of the truth.
    """
    assert p.std_error is not None
    std, own = p.std.double(), p.std_error.double()
    error = (own.square() + truth.square() / (2 * samples)).sqrt()
    ratio = std / truth
    budget = p.budget()
    shares = budget.variances.double().sum((1, 2))
    return {
        "method": p.method,
        "points": len(std),
        "mean_std": float(truth.mean()),
        "ratio": float(ratio.median()),
        "log_error": float(ratio.log().abs().mean()),
        "rank": float(spearman(std.flatten()[None], truth.flatten()[None])),
        "within": float(((std - truth).abs() <= 2 * error).double().mean()),
        "shares": dict(zip(budget.names, (shares / shares.sum()).tolist(), strict=True)),
    }


def _series(p: Prediction, truth: Tensor, settings: Settings) -> dict[str, object]:
    """What the picture shows, along the flight."""
    times = [DT * (settings.length + i * settings.every) for i in range(len(truth))]
    return {
        "time": [round(time, 3) for time in times],
        "command": _rounded(p.mean),
        "std": _rounded(p.std),
        "monte_carlo": _rounded(truth),
    }


def _rounded(values: Tensor) -> object:
    return values.double().numpy().round(5).tolist()


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    if options.data is not None:
        raise ValueError("The flights are simulated and take no `--data`; leave it out.")
    return measured(options, Settings.of(options), shipped())


def measured(options: Options, settings: Settings, found: Shipped) -> Path:
    """Measures a policy; returns the path of the table."""
    folder = open_folder(options, asdict(settings))
    steps = [
        Step(f"seed{seed}", partial(flight_of_seed, settings, found, seed))
        for seed in options.seed_list
    ]
    seeds: list[Mapping[str, Any]] = finished(steps, folder, options)
    draw_figures(seeds[0]["series"], folder.path)
    results = {
        "settings": asdict(settings),
        "rmse": [seed["rmse"] for seed in seeds],
        "lines": [line for seed in seeds for line in seed["lines"]],
    }
    return write_results(options, folder, results, tables(results))
