"""Table IV of the paper: how well a quadrotor keeps its path, corrected by a network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from howsure_lab.experiments.quadrotor.preparation import Amount, Preparation, prepared
from howsure_lab.experiments.quadrotor.report import draw_figures, tables
from howsure_lab.experiments.quadrotor.trial import CASES, POLICIES, flown
from howsure_lab.experiments.runs import Options, Run, RunFolder
from howsure_lab.experiments.training import PlainRecipe

_EVERY = 8  # steps between kept points of a path: 25 a second


@dataclass(frozen=True)
class Settings:
    """What a quadrotor run depends on."""

    preparation: Preparation = field(default_factory=Preparation)  # data, networks, uncertainty
    seconds: float = 11.0  # of every test flight
    settled: float = 1.0  # from when on the distance to the reference counts, s

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
    trial = flown(models, settings.seconds, seed)
    rmse, shares = trial.flight.rmse(settings.settled), trial.shares.mean(0)
    lines, paths = [], {}
    for k, policy in enumerate(POLICIES):
        index = {case.name: k * len(CASES) + j for j, case in enumerate(CASES)}
        lines.append(
            {
                "seed": seed,
                "policy": policy,
                "rmse": {name: float(rmse[i]) for name, i in index.items()},
                "share": {name: round(float(shares[i]), 4) for name, i in index.items()},
            }
        )
        # Thinned paths in the plane for the figures: of every case and policy.
        for name, i in index.items():
            wanted = trial.flight.references[::_EVERY, :2, i].round(3).tolist()
            paths.setdefault(name, {"reference": wanted})[policy] = {
                "path": trial.flight.states[::_EVERY, :2, i].round(3).tolist(),
                "std": trial.stds[::_EVERY, i].round(4).tolist(),
                "share": trial.shares[::_EVERY, i].round(3).tolist(),
            }
    return {"models": about, "lines": lines, "paths": paths}


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    if options.data is not None:
        raise ValueError("The quadrotor is simulated and takes no `--data`; leave it out.")
    if options.methods is not None:
        raise ValueError("The quadrotor flies all policies at once; leave out `--methods`.")
    settings = Settings.of(options)
    work = Run(options, settings)
    fly = partial(flight_of_seed, settings, work)
    seeds = work.finished({f"seed{seed}": partial(fly, seed) for seed in options.seed_list})
    draw_figures(seeds, work.path)
    models = [seed["models"] for seed in seeds]
    lines = [line for seed in seeds for line in seed["lines"]]
    return work.report({"models": models, "lines": lines}, tables)
