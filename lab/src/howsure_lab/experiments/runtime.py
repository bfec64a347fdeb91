"""Figure 7 of the paper: likelihood and time against the number of samples T.

Each method is tuned once; then only T changes. Methods without samples are lines. Time is the
best of several repetitions, which other work on the machine disturbs least, for one image at a time
as on a robot; and relative to a plain forward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure_lab.experiments.contenders import CONTENDERS, LABELS, tuned, with_samples
from howsure_lab.experiments.figures import new_figure, save, styles_of
from howsure_lab.experiments.runs import (
    Options,
    RunFolder,
    Step,
    finished,
    open_folder,
    write_results,
)
from howsure_lab.experiments.steering.data import Counts
from howsure_lab.experiments.steering.run import Settings, SteeringRun, find_weights
from howsure_lab.experiments.tables import Column, markdown, number, regression_scores, summaries

SAMPLES = (2, 5, 10, 20, 50, 100)
_SAMPLED = ("gal", "ours", "noise_sampling")
_SINGLE = ("constant", "gast_untrained", "gradients")
_LEAST = {"noise_sampling": 5}  # it needs pairs of samples
_REPEATS = 7
_SHOWN = 2.5  # range of NLL in the figure


class RuntimeRun(SteeringRun):
    """A steering run that changes T."""

    def curve(self, name: str, seed: int) -> dict[str, Any]:
        """A method's likelihood and time at every T, or at its one point."""
        tests = next(iter(self.data.tests.values()))
        made = tuned(CONTENDERS[name], self.bench(seed), self.folder)
        image, points = tests.x[:1], []
        plain = _seconds(lambda: _forward(self.network(seed), image))
        for samples in self._samples(name):
            sure = with_samples(made, None if name in _SINGLE else samples)
            found = sure.predict(tests.batches(self.settings.effort.batch), show_progress=False)
            scores = regression_scores(found.mean, found.total_var, tests.y)
            seconds = _seconds(partial(sure, image))
            timing = {"seconds": seconds, "ratio": seconds / plain}
            points.append({"samples": samples, **timing, **scores})
        about = {"method": name, "seed": seed, "fit": made.record}
        return {**about, "plain_seconds": plain, "points": points}

    def _samples(self, name: str) -> tuple[int, ...]:
        if name in _SINGLE:
            return (1,)
        most = 50 if self.options.quick else max(SAMPLES)
        return tuple(t for t in SAMPLES if _LEAST.get(name, 1) <= t <= most)

    def steps(self) -> list[Step]:
        """One part per method and seed; what is not trained has one seed."""
        return [
            Step(f"seed{seed}-curve-{name}", partial(self.curve, name, seed))
            for seed in self.options.seed_list
            for name in self.options.chosen((*_SINGLE, *_SAMPLED))
            if self.differs_by_seed(name, seed)
        ]


@torch.inference_mode()
def _forward(model: torch.nn.Module, x: Tensor) -> None:
    model(x)


def _seconds(call: Callable[[], object]) -> float:
    """The shortest time of a call, after one that does not count."""
    call()
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def _by_method(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Mapping[str, object]]]]:
    """The points of every method, each a list over seeds."""
    points: dict[str, list[Any]] = {}
    for curve in curves:
        points.setdefault(curve["method"], []).append(curve["points"])
    return {name: [list(each) for each in zip(*own, strict=True)] for name, own in points.items()}


def _mean(seeds: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(point[key] for point in seeds)


def tables(results: Mapping[str, Any]) -> list[str]:
    """NLL and time, one line per method and T."""
    columns = (Column("nll", "NLL", 2), Column("rmse", "RMSE", 3))
    rows = []
    for name, points in _by_method(results["curves"]).items():
        for seeds in points:
            found = summaries(seeds, ("nll", "rmse"))
            cells = [found[column.key].text(column.digits) for column in columns]
            times = 1e3 * _mean(seeds, "seconds"), _mean(seeds, "ratio")
            samples = "-" if len(points) == 1 else str(seeds[0]["samples"])
            rows.append([LABELS[name], samples, *cells, *(number(each, 1) for each in times)])
    headings = ["method", "T", *(each.heading for each in columns), "ms per image", "plain passes"]
    return [
        markdown(headings, rows),
        "NLL includes 1/2 log 2 pi. Time: best of 7, one image; plain passes: relative to one "
        "forward pass of the network itself; means over seeds. The paper reports a plateau at "
        "T = 20 and about 10 Hz on an RTX 2080.\n",
    ]


def draw(curves: Sequence[Mapping[str, object]], path: Path) -> None:
    """NLL and time against T; single-pass methods as horizontal lines and points."""
    figure, axes = new_figure(1, 2, width=11, height=4.2)
    by_method = _by_method(curves)
    styles = styles_of(by_method)
    for name, points in by_method.items():
        # Without training, ADF's variance is far too small: its NLL would hide all else.
        if name == "gast_untrained":
            continue
        style = {"label": LABELS[name], **styles[name]}
        for ax, key in ((axes[0, 0], "nll"), (axes[0, 1], "ratio")):
            values = [_mean(seeds, key) for seeds in points]
            if len(points) == 1:
                ax.axhline(values[0], **{"linewidth": 1, **style})
            else:
                ax.plot([seeds[0]["samples"] for seeds in points], values, marker="o", **style)
            ax.set(xscale="log", xlabel="samples T")
            ax.set_xticks(SAMPLES, [str(t) for t in SAMPLES])
            ax.minorticks_off()
    _cut_off(axes[0, 0])
    axes[0, 1].set(ylabel="time, in plain forward passes", yscale="log")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(figure, path)


def _cut_off(ax: Any) -> None:
    """Too few samples have an NLL beside which all others look the same: the axis ends before."""
    values = [float(value) for line in ax.get_lines() for value in line.get_ydata()]
    lowest, highest = min(values), max(values)
    ax.set_ylabel("NLL")
    if highest - lowest > _SHOWN:
        ax.set_ylim(lowest - 0.05 * _SHOWN, lowest + _SHOWN)
        ax.set_ylabel(f"NLL (up to {number(highest, 0)})")


def _settings(options: Options) -> Settings:
    """The steering run's settings, with fewer real frames: each takes 187 predictions a method."""
    settings = Settings.of(options)
    if options.data is None or options.quick:
        return settings
    return replace(settings, counts=Counts(1, 64, 120))


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    settings = _settings(options)
    if options.data is not None:
        find_weights(options.data)
    folder: RunFolder = open_folder(options, asdict(settings))
    curves = finished(RuntimeRun(options, settings, folder).steps(), folder, options)
    draw(curves, folder.path / "runtime.png")
    results = {"settings": asdict(settings), "curves": curves}
    return write_results(options, folder, results, tables(results))
