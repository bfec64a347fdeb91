"""The std of the RAPTOR policy's motor commands by default settings, against Monte Carlo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from howsure_lab.experiments.runs import Options, Run

_AT_ONCE = 50  # samples of Monte Carlo in one call


@dataclass(frozen=True)
class Settings:
    """What a run depends on."""

    plan: Plan = field(default_factory=Plan)  # the flight
    length: int = 20  # readings that carry noise; more change no std beyond sampling error
    every: int = 10  # steps between the points at which the std is measured
    samples: int = 4000  # of Monte Carlo; 4,000 know a std to 1.1 %
    noise_std: dict[str, float] = field(default_factory=lambda: dict(NOISE_STD))  # by sensor

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
            times = [DT * (settings.length + i * settings.every) for i in range(len(truth))]
            drawn = {"command": p.mean, "std": p.std, "monte_carlo": truth}
            series = {name: v.double().numpy().round(5).tolist() for name, v in drawn.items()}
            series = {"time": [round(time, 3) for time in times], **series}
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


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    if options.data is not None:
        raise ValueError("The flights are simulated and take no `--data`; leave it out.")
    return measured(options, Settings.of(options), shipped())


def measured(options: Options, settings: Settings, found: Shipped) -> Path:
    """Measures a policy; returns the path of the table."""
    work = Run(options, settings)
    seeds = work.finished(
        {
            f"seed{seed}": partial(flight_of_seed, settings, found, seed)
            for seed in options.seed_list
        }
    )
    draw_figures(seeds[0]["series"], work.path)
    rmse = [seed["rmse"] for seed in seeds]
    lines = [line for seed in seeds for line in seed["lines"]]
    return work.report({"rmse": rmse, "lines": lines}, tables)
