"""Table S1 of the paper: the sensor's noise is not what was assumed; and the converse.

First part: 0.01 is assumed, the real variance is 0.01, 0.05 and 0.1. Second part: 0.01 is real, the
assumed one is swept. Everything is tuned on held-out images with real noise of 0.01: tuning on
clean ones does not reproduce the paper's table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure_lab.experiments import contenders
from howsure_lab.experiments.contenders import CONTENDERS, WITH_RESIDUAL, Effort, evaluated
from howsure_lab.experiments.figures import new_figure, save, styles_of
from howsure_lab.experiments.runs import Options
from howsure_lab.experiments.steering.data import Counts, SteeringData, rendered_data
from howsure_lab.experiments.steering.model import SMALL
from howsure_lab.experiments.steering.run import Settings, SteeringRun
from howsure_lab.experiments.tables import Column, method_table
from howsure_lab.experiments.training import PlainRecipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE = 0.01
_KEY = f"{REFERENCE:g}"
REAL = (REFERENCE, 0.05, 0.1)
# Beside the reference itself, which the first part has.
ASSUMED = (0.0001, 0.001, 0.05, 0.1)
PAPER = {
    "gal": ".67 / .35 / .03",
    "gast": ".74 / .37 / .04",
    "kendall": ".99 / .30 / -.11",
    "ours": ".95 / .41 / .12",
}
_SHOWN = 4.0  # range of log-likelihoods in the figure
_OWN, _MEAN = "gradients", "gradients_mean"
# What the default says if it predicts E[f(x + noise)], as the paper's method does.
_MEAN_LABEL = "howsure: posterior, mean under noise"
_CONTENDERS = {
    **CONTENDERS,
    _MEAN: replace(CONTENDERS[_OWN], label=_MEAN_LABEL, prediction="mean"),
}
LABELS = {**contenders.LABELS, _MEAN: _MEAN_LABEL}
_SWEPT = ("ours", _OWN)
_QUICK = ("constant", "gal", "gast", "kendall", *_SWEPT)
_METHODS = (*_QUICK, _MEAN, *WITH_RESIDUAL)


@dataclass(frozen=True)
class SensitivitySettings:
    """The steering network's settings, with the noise of this experiment, and the methods."""

    steering: Settings  # of the network and its data
    methods: tuple[str, ...] = _METHODS
    assumed: tuple[float, ...] = ASSUMED  # noise variances; everything is fitted anew for each

    @staticmethod
    def of(options: Options) -> SensitivitySettings:
        """The settings for these options: always small images, unless the data is real."""
        base = replace(Settings.of(options), noise_std=REFERENCE**0.5)
        if options.quick:
            if options.data is not None:
                base = replace(base, counts=Counts(40, 50, 16))
            return SensitivitySettings(base, _QUICK, (0.1,))
        if options.data is not None:
            few = tuple(name for name in _METHODS if name not in WITH_RESIDUAL)
            return SensitivitySettings(replace(base, counts=Counts(600, 64, 120)), few)
        full = replace(base, size=64, widths=SMALL, counts=Counts(3000, 200, 300))
        return SensitivitySettings(replace(full, recipe=PlainRecipe(12), effort=Effort()))


class SensitivityRun(SteeringRun):
    """A steering run whose test images carry other noise than the held-out ones."""

    contenders = _CONTENDERS

    def __init__(self, options: Options, settings: SensitivitySettings) -> None:
        super().__init__(options, settings)
        self.settings = settings.steering
        self.methods, self.levels = settings.methods, settings.assumed

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
        first = next(iter(clean.tests.values()))
        tests = {f"{var:g}": first.with_noise(var, 7) for var in REAL}
        return SteeringData(train, validation, tests)

    def assumed(self, name: str, var: float, seed: int) -> dict[str, object]:
        """A method that assumes a noise which is not the real one."""
        bench = replace(self.bench(seed), noise=var)
        return evaluated(name, bench, {_KEY: self.data.tests[_KEY]}, self)

    def steps(self) -> dict[str, Callable[[], object]]:
        """Both directions, seed by seed; what is neither trained nor retrained has one seed."""
        steps: dict[str, Callable[[], object]] = {}
        for seed in self.options.seed_list:
            for name in self.methods_of(seed, self.methods):
                steps[f"real-seed{seed}-{name}"] = partial(self.method, name, seed)
            for name in self.methods_of(seed, [name for name in _SWEPT if name in self.methods]):
                for var in self.levels:
                    compute = partial(self.assumed, name, var, seed)
                    steps[f"assumed{var:g}-seed{seed}-{name}"] = compute
        return steps


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    work = SensitivityRun(options, options.narrowed(SensitivitySettings.of(options)))
    steps = work.steps()
    real, assumed = [], []
    for name, line in zip(steps, work.finished(steps), strict=True):
        del line["predictions"]
        if name.startswith("real"):
            real.append(line)
        else:
            assumed.append({**line, "assumed": float(name.split("-seed")[0][len("assumed") :])})
    assumed += [
        {**line, "scores": {_KEY: line["scores"][_KEY]}, "assumed": REFERENCE}
        for line in real
        if line["method"] in _SWEPT
    ]
    return work.report({"real": real, "assumed": assumed}, tables, draw)


Curves = dict[str, dict[float, list[float]]]  # log-likelihoods by method and noise, one per seed


def _curves(results: Mapping[str, Any]) -> tuple[Curves, Curves]:
    """What changes with the real noise, and with the assumed one."""
    real: Curves = {}
    for line in results["real"]:
        points = real.setdefault(line["method"], {})
        for var, scores in line["scores"].items():
            points.setdefault(float(var), []).append(-scores["nll"])
    assumed: Curves = {}
    for line in results["assumed"]:
        points = assumed.setdefault(line["method"], {})
        points.setdefault(line["assumed"], []).append(-line["scores"][_KEY]["nll"])
    return real, assumed


def tables(results: Mapping[str, Any]) -> list[str]:
    """Log-likelihood by real noise, then by assumed noise."""
    real, assumed = _curves(results)
    levels = sorted({line["assumed"] for line in results["assumed"]})
    return [
        f"### Real noise changes, {REFERENCE:g} is assumed\n",
        _table(real, REAL, PAPER),
        f"### Assumed noise changes, {REFERENCE:g} is real\n",
        _table(assumed, levels),
        "Log-likelihood, higher is better, with the constant -1/2 log 2 pi. Noise is a variance of "
        "gray values from 0 to 1. Everything is tuned on held-out images with real noise of "
        f"{REFERENCE:g}.\n",
    ]


def _table(curves: Curves, levels: Sequence[float], paper: Mapping[str, str] | None = None) -> str:
    keys = {level: f"{level:g}" for level in levels}
    runs = {
        name: [
            {keys[level]: value for level, value in zip(points, seed, strict=True)}
            for seed in zip(*points.values(), strict=True)
        ]
        for name, points in curves.items()
    }
    return method_table(runs, [Column(k, k, 2) for k in keys.values()], labels=LABELS, paper=paper)


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: log-likelihood against real noise, and against assumed noise."""
    real, assumed = _curves(results)
    figure, axes = new_figure(1, 2, width=11, height=4.2)
    left, right = axes[0]
    styles = styles_of(real)
    _draw_curves(left, real, styles)
    _draw_curves(right, assumed, styles)
    left.set(xlabel=f"real noise variance; assumed {_KEY}", ylabel="log-likelihood", xticks=REAL)
    right.set(xlabel=f"assumed variance; real {_KEY}", xscale="log")
    # Beside the axes: inside, some line always runs through it.
    figure.legend(*left.get_legend_handles_labels(), loc="outside right", frameon=False)
    return save(figure, path)


def _draw_curves(ax: Axes, curves: Curves, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Mean over seeds; the lowest lines leave the axes, which end where the others do."""
    means = []
    for name, points in curves.items():
        levels = sorted(points)
        curve = [statistics.fmean(points[level]) for level in levels]
        ax.plot(levels, curve, marker="o", markersize=4, label=LABELS[name], **styles[name])
        means += curve
    lowest, _ = ax.get_ylim()
    # Lines that were asked for alone need not have a sweep.
    ax.set_ylim(bottom=max(lowest, max(means, default=_SHOWN) - _SHOWN))
    ax.grid(color="0.92")
