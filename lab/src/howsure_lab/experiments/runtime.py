"""Figure 7 of the paper: likelihood and time against the number of samples T.

Each method is tuned once; then only T changes. Methods without samples are lines. Time is the
best of several repetitions, which other work on the machine disturbs least, for one image at a time
as on a robot; and relative to a plain forward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from howsure_lab.experiments.contenders import CONTENDERS, LABELS, tuned, with_samples
from howsure_lab.experiments.figures import new_figure, save, styles_of
from howsure_lab.experiments.runs import Options
from howsure_lab.experiments.steering.data import Counts
from howsure_lab.experiments.steering.run import Settings, SteeringRun
from howsure_lab.experiments.tables import (
    Column,
    by_method,
    cells,
    markdown,
    number,
    regression_scores,
)

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
        bench, tests = self.bench(seed), next(iter(self.data.tests.values()))
        made = tuned(CONTENDERS[name], bench, self)
        image, points = tests.x[:1], []
        with torch.inference_mode():
            plain = _seconds(partial(bench.model, image))
        most = 50 if self.options.quick else max(SAMPLES)
        counts = [t for t in SAMPLES if _LEAST.get(name, 1) <= t <= most]
        for samples in [1] if name in _SINGLE else counts:
            sure = with_samples(made, None if name in _SINGLE else samples)
            found = sure.predict(tests.batches(bench.effort.batch), show_progress=False)
            scores = regression_scores(found.mean, found.total_var, tests.y)
            seconds = _seconds(partial(sure, image))
            timing = {"seconds": seconds, "ratio": seconds / plain}
            points.append({"samples": samples, **timing, **scores})
        about = {"method": name, "seed": seed, "fit": made.record}
        return {**about, "plain_seconds": plain, "points": points}

    def steps(self) -> dict[str, Callable[[], object]]:
        """One part per method and seed; what is not trained has one seed."""
        methods = self.options.chosen((*_SINGLE, *_SAMPLED))
        return {
            f"seed{seed}-curve-{name}": partial(self.curve, name, seed)
            for seed in self.options.seed_list
            for name in self.methods_of(seed, methods)
        }


def _seconds(call: Callable[[], object]) -> float:
    """The shortest time of a call, after one that does not count."""
    call()
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    settings = Settings.of(options)
    if options.data is not None and not options.quick:
        # Fewer real frames: each takes 187 predictions a method.
        settings = replace(settings, counts=Counts(1, 64, 120))
    work = RuntimeRun(options, settings)
    curves = work.finished(work.steps())
    draw(curves, work.path / "runtime.png")
    return work.report({"curves": curves}, tables)


def _points(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """The points of every method, each a tuple over seeds."""
    seeds = by_method(curves, lambda curve: curve["points"])
    return {name: list(zip(*points, strict=True)) for name, points in seeds.items()}


def _mean(seeds: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(point[key] for point in seeds)


def tables(results: Mapping[str, Any]) -> list[str]:
    """NLL and time, one line per method and T."""
    columns = (Column("nll", "NLL", 2), Column("rmse", "RMSE", 3))
    rows = []
    for name, points in _points(results["curves"]).items():
        for seeds in points:
            samples = "-" if len(points) == 1 else str(seeds[0]["samples"])
            times = 1e3 * _mean(seeds, "seconds"), _mean(seeds, "ratio")
            row = [LABELS[name], samples, *cells(seeds, columns)]
            rows.append([*row, *(number(each, 1) for each in times)])
    headings = ["method", "T", *(each.heading for each in columns), "ms per image", "plain passes"]
    return [
        markdown(headings, rows),
        "NLL includes 1/2 log 2 pi. Time: best of 7, one image; plain passes: relative to one "
        "forward pass of the network itself; means over seeds. The paper reports a plateau at "
        "T = 20 and about 10 Hz on an RTX 2080.\n",
    ]


def draw(curves: Sequence[Mapping[str, Any]], path: Path) -> None:
    """NLL and time against T; single-pass methods as horizontal lines and points."""
    figure, axes = new_figure(1, 2, width=11, height=4.2)
    likelihood, cost = axes[0]
    by_name = _points(curves)
    styles = styles_of(by_name)
    shown = []
    for name, points in by_name.items():
        # Without training, ADF's variance is far too small: its NLL would hide all else.
        if name == "gast_untrained":
            continue
        style = {"label": LABELS[name], **styles[name]}
        for ax, key in ((likelihood, "nll"), (cost, "ratio")):
            values = [_mean(seeds, key) for seeds in points]
            if len(points) == 1:
                ax.axhline(values[0], **{"linewidth": 1, **style})
            else:
                ax.plot([seeds[0]["samples"] for seeds in points], values, marker="o", **style)
            ax.set(xscale="log", xlabel="samples T")
            ax.set_xticks(SAMPLES, [str(t) for t in SAMPLES])
            ax.minorticks_off()
            shown += values if ax is likelihood else []
    likelihood.set_ylabel("NLL")
    # Too few samples have an NLL beside which all others look the same: the axis ends before.
    if shown and max(shown) - min(shown) > _SHOWN:
        likelihood.set_ylim(min(shown) - 0.05 * _SHOWN, min(shown) + _SHOWN)
        likelihood.set_ylabel(f"NLL (up to {number(max(shown), 0)})")
    cost.set(ylabel="time, in plain forward passes", yscale="log")
    likelihood.legend(frameon=False, fontsize=8)
    save(figure, path)
