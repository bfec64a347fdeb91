"""Table S1 of the paper: the sensor's noise is not what was assumed; and the converse.

First part: 0.01 is assumed, the real variance is 0.01, 0.05 and 0.1. Second part: 0.01 is real, the
assumed one is swept. Everything is tuned on held-out images with real noise of 0.01: tuning on
clean ones does not reproduce the paper's table.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure_lab.experiments import contenders
from howsure_lab.experiments.contenders import CONTENDERS, WITH_RESIDUAL, Bench, Effort, evaluated
from howsure_lab.experiments.figures import new_figure, save, styles_of
from howsure_lab.experiments.runs import (
    PICTURE,
    Options,
    RunFolder,
    Step,
    finished,
    open_folder,
    write_results,
)
from howsure_lab.experiments.steering.data import Counts, SteeringData, rendered_data
from howsure_lab.experiments.steering.model import SMALL
from howsure_lab.experiments.steering.run import Settings, SteeringRun, find_weights
from howsure_lab.experiments.tables import Column, method_table
from howsure_lab.experiments.training import Pairs, PlainRecipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE = 0.01
REAL = (REFERENCE, 0.05, 0.1)
# Beside the reference itself, which the first part has.
ASSUMED = (0.0001, 0.001, 0.05, 0.1)
_FEW_ASSUMED = (0.1,)
PAPER = {
    "gal": ".67 / .35 / .03",
    "gast": ".74 / .37 / .04",
    "kendall": ".99 / .30 / -.11",
    "ours": ".95 / .41 / .12",
}
_SHOWN = 4.0  # range of log-likelihoods in the figure
_OWN, _MEAN = "gradients", "gradients_mean"
# What the default says if it predicts E[f(x + noise)], as the paper's method does.
_CONTENDERS = {
    **CONTENDERS,
    _MEAN: replace(
        CONTENDERS[_OWN], label="howsure: posterior, mean under noise", prediction="mean"
    ),
}
LABELS = {**contenders.LABELS, _MEAN: _CONTENDERS[_MEAN].label}
_SWEPT = ("ours", _OWN)
_QUICK = ("constant", "gal", "gast", "kendall", *_SWEPT)
_METHODS = (*_QUICK, _MEAN, *WITH_RESIDUAL)


@dataclass(frozen=True)
class SensitivitySettings:
    """The steering network's settings, with the noise of this experiment, and the methods.

    Attributes:
        steering: Of the network and its data.
        methods: The lines of the table.
        assumed: The noise variances of the second part; everything is fitted anew for each.
    """

    steering: Settings
    methods: tuple[str, ...] = _METHODS
    assumed: tuple[float, ...] = ASSUMED

    @staticmethod
    def of(options: Options) -> SensitivitySettings:
        """The settings for these options: always small images, unless the data is real."""
        base = replace(Settings.of(options), noise_std=REFERENCE**0.5)
        if options.quick:
            if options.data is not None:
                base = replace(base, counts=Counts(40, 50, 16))
            return SensitivitySettings(base, _QUICK, _FEW_ASSUMED)
        if options.data is not None:
            few = tuple(name for name in _METHODS if name not in WITH_RESIDUAL)
            return SensitivitySettings(replace(base, counts=Counts(600, 64, 120)), few)
        full = replace(base, size=64, widths=SMALL, counts=Counts(3000, 200, 300))
        return SensitivitySettings(replace(full, recipe=PlainRecipe(12), effort=Effort()))


class SensitivityRun(SteeringRun):
    """A steering run whose test images carry other noise than the held-out ones."""

    contenders = _CONTENDERS

    def __init__(self, options: Options, settings: SensitivitySettings, folder: RunFolder) -> None:
        super().__init__(options, settings.steering, folder)
        self.methods = settings.methods
        self.levels = settings.assumed

    def load_data(self) -> SteeringData:
        """Images with noise of variance 0.01; the tests by their real noise."""
        settings = self.settings
        if self.options.data is not None:
            clean = super().load_data()
            train = clean.train.with_noise(REFERENCE, 0)
            validation = clean.validation.with_noise(REFERENCE, 1)
        else:
            counts = replace(settings.counts, test=1)
            data = rendered_data(counts, settings.size, REFERENCE)
            train, validation = data.train, data.validation
            clean = rendered_data(Counts(1, 1, settings.counts.test), settings.size, 0.0)
        first: Pairs = next(iter(clean.tests.values()))
        tests = {f"{var:g}": first.with_noise(var, 7) for var in REAL}
        return SteeringData(train, validation, tests)

    def assumed(self, name: str, var: float, seed: int) -> dict[str, object]:
        """A method that assumes a noise which is not the real one."""
        bench: Bench = replace(self.bench(seed), noise=var)
        key = f"{REFERENCE:g}"
        return evaluated(name, bench, {key: self.data.tests[key]}, self.folder)

    def steps(self) -> list[Step]:
        """Both directions, seed by seed; what is neither trained nor retrained has one seed."""
        steps = []
        for seed in self.options.seed_list:
            for name in filter(partial(self.differs_by_seed, seed=seed), self.methods):
                steps.append(Step(f"real-seed{seed}-{name}", partial(self.method, name, seed)))
            swept = [name for name in _SWEPT if name in self.methods]
            for name in filter(partial(self.differs_by_seed, seed=seed), swept):
                for var in self.levels:
                    compute = partial(self.assumed, name, var, seed)
                    steps.append(Step(f"assumed{var:g}-seed{seed}-{name}", compute))
        return steps


def tables(results: Mapping[str, Any]) -> list[str]:
    """Log-likelihood by real noise, then by assumed noise."""
    real: dict[str, list[Any]] = {}
    for line in results["real"]:
        scores = {f"{float(var):g}": -line["scores"][var]["nll"] for var in line["scores"]}
        real.setdefault(line["method"], []).append(scores)
    assumed: dict[str, dict[int, dict[str, float]]] = {}
    for line in results["assumed"]:
        score = -line["scores"][f"{REFERENCE:g}"]["nll"]
        per_seed = assumed.setdefault(line["method"], {}).setdefault(line["seed"], {})
        per_seed[f"{line['assumed']:g}"] = score
    swept = {name: list(seeds.values()) for name, seeds in assumed.items()}
    levels = tuple(sorted({line["assumed"] for line in results["assumed"]}))
    return [
        f"### Real noise changes, {REFERENCE:g} is assumed\n",
        method_table(real, _columns(REAL), labels=LABELS, paper=PAPER),
        f"### Assumed noise changes, {REFERENCE:g} is real\n",
        method_table(swept, _columns(levels), labels=LABELS),
        "Log-likelihood, higher is better, with the constant -1/2 log 2 pi. Noise is a variance of "
        "gray values from 0 to 1. Everything is tuned on held-out images with real noise of "
        f"{REFERENCE:g}.\n",
    ]


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: log-likelihood against real noise, and against assumed noise."""
    real: dict[str, dict[float, list[float]]] = {}
    for line in results["real"]:
        for var, scores in line["scores"].items():
            real.setdefault(line["method"], {}).setdefault(float(var), []).append(-scores["nll"])
    assumed: dict[str, dict[float, list[float]]] = {}
    for line in results["assumed"]:
        score = -line["scores"][f"{REFERENCE:g}"]["nll"]
        assumed.setdefault(line["method"], {}).setdefault(line["assumed"], []).append(score)
    figure, axes = new_figure(1, 2, width=11, height=4.2)
    styles = styles_of(real)
    _draw_curves(axes[0, 0], real, styles)
    _draw_curves(axes[0, 1], assumed, styles)
    assumption = f"assumed variance; real {REFERENCE:g}"
    axes[0, 0].set(xlabel=f"real noise variance; assumed {REFERENCE:g}", ylabel="log-likelihood")
    axes[0, 0].set_xticks(REAL)
    axes[0, 1].set(xlabel=assumption, xscale="log")
    # Beside the axes: inside, some line always runs through it.
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right", frameon=False)
    return save(figure, path)


def _draw_curves(
    ax: Axes,
    curves: Mapping[str, Mapping[float, Sequence[float]]],  # by method and noise, one per seed
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    """Mean over seeds; the lowest lines leave the axes, which end where the others do."""
    for name, points in curves.items():
        levels = sorted(points)
        curve = [statistics.fmean(points[level]) for level in levels]
        ax.plot(levels, curve, marker="o", markersize=4, label=LABELS[name], **styles[name])
    means = [statistics.fmean(each) for points in curves.values() for each in points.values()]
    lowest, _ = ax.get_ylim()
    # Lines that were asked for alone need not have a sweep.
    ax.set_ylim(bottom=max(lowest, max(means, default=_SHOWN) - _SHOWN))
    ax.grid(color="0.92")


def _columns(levels: tuple[float, ...]) -> list[Column]:
    return [Column(f"{level:g}", f"{level:g}", 2) for level in levels]


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    settings = SensitivitySettings.of(options)
    settings = replace(settings, methods=options.chosen(settings.methods))
    if options.data is not None:
        find_weights(options.data)
    folder = open_folder(options, asdict(settings))
    work = SensitivityRun(options, settings, folder)
    steps = work.steps()
    found = finished(steps, folder, options)
    results: dict[str, Any] = {"settings": asdict(settings), "real": [], "assumed": []}
    key = f"{REFERENCE:g}"
    for step, line in zip(steps, found, strict=True):
        kept = {key: value for key, value in line.items() if key != "predictions"}
        kind = "real" if step.name.startswith("real") else "assumed"
        if kind == "assumed":
            kept["assumed"] = float(step.name.split("-seed")[0].removeprefix("assumed"))
        results[kind].append(kept)
    results["assumed"] += [
        {**line, "scores": {key: line["scores"][key]}, "assumed": REFERENCE}
        for line in results["real"]
        if line["method"] in _SWEPT
    ]
    draw(results, folder.path / PICTURE)
    return write_results(options, folder, results, tables(results))
