"""Table IV of the paper: how well a quadrotor keeps its path, corrected by a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from howsure_lab.experiments.quadrotor.preparation import Amount, Preparation, prepared
from howsure_lab.experiments.quadrotor.report import draw_figures, tables
from howsure_lab.experiments.quadrotor.trial import CASES, POLICIES, Trial, flown
from howsure_lab.experiments.runs import (
    Options,
    RunFolder,
    Step,
    finished,
    open_folder,
    write_results,
)
from howsure_lab.experiments.training import PlainRecipe

_EVERY = 8  # steps between kept points of a path: 25 a second


@dataclass(frozen=True)
class Settings:
    """What a quadrotor run depends on.

    Attributes:
        preparation: Data, networks, uncertainty.
        seconds: Of every test flight.
        settled: From when on the distance to the reference counts, s.
    """

    preparation: Preparation = field(default_factory=Preparation)
    seconds: float = 11.0
    settled: float = 1.0

    @staticmethod
    def of(options: Options) -> Settings:
        """The settings for these options."""
        full = Settings()
        if not options.quick:
            return full
        small = Preparation(Amount(random=20, seconds=10.0), PlainRecipe(20, batch=256))
        return replace(full, preparation=small, seconds=6.0)


def flight_of_seed(settings: Settings, folder: RunFolder, seed: int) -> dict[str, object]:
    """All policies in all cases, with the networks of one seed."""
    models, about = prepared(settings.preparation, seed, folder)
    trial = flown(models, CASES, settings.seconds, seed, tuple(POLICIES))
    lines = [
        {"seed": seed, "policy": policy, **_scores(trial, policy, settings.settled)}
        for policy in POLICIES
    ]
    return {"models": about, "lines": lines, "paths": _paths(trial)}


def _scores(trial: Trial, policy: str, settled: float) -> dict[str, object]:
    """Tracking RMSE of every case in m, and the network's mean share in the correction."""
    rmse, shares = trial.flight.rmse(settled), trial.shares.mean(0)
    index = {case.name: trial.index(policy, case) for case in trial.cases}
    return {
        "rmse": {name: float(rmse[i]) for name, i in index.items()},
        "share": {name: round(float(shares[i]), 4) for name, i in index.items()},
    }


def _paths(trial: Trial) -> dict[str, object]:
    """Thinned paths in the plane for the figures: of every case and policy."""
    found: dict[str, Any] = {}
    for case in trial.cases:
        first = trial.index(trial.policies[0], case)
        wanted = trial.flight.references[::_EVERY, :2, first]
        found[case.name] = {"reference": wanted.round(3).tolist()}
        for policy in trial.policies:
            i = trial.index(policy, case)
            found[case.name][policy] = {
                "path": trial.flight.states[::_EVERY, :2, i].round(3).tolist(),
                "std": trial.stds[::_EVERY, i].round(4).tolist(),
                "share": trial.shares[::_EVERY, i].round(3).tolist(),
            }
    return found


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    if options.data is not None:
        raise ValueError("The quadrotor is simulated and takes no `--data`; leave it out.")
    if options.methods is not None:
        raise ValueError("The quadrotor flies all policies at once; leave out `--methods`.")
    settings = Settings.of(options)
    folder = open_folder(options, asdict(settings))
    steps = [
        Step(f"seed{seed}", partial(flight_of_seed, settings, folder, seed))
        for seed in options.seed_list
    ]
    seeds = finished(steps, folder, options)
    draw_figures(seeds, folder.path)
    results = {"settings": asdict(settings), **_gathered(seeds)}
    return write_results(options, folder, results, tables(results))


def _gathered(seeds: list[Mapping[str, Any]]) -> dict[str, object]:
    return {
        "models": [seed["models"] for seed in seeds],
        "lines": [line for seed in seeds for line in seed["lines"]],
    }
