"""Table II of the paper: how sure a network is of where an object moves next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from howsure import metrics
from howsure.calibrate import AffineVariance
from howsure.uncertain import Uncertain
from howsure_lab.experiments.contenders import (
    CONTENDERS,
    SINGLE,
    Bench,
    Effort,
    Tuned,
    predicted,
    tuned,
)
from howsure_lab.experiments.motion import report, videos
from howsure_lab.experiments.motion.data import Counts, MotionData, ObjectPairs, rendered_data
from howsure_lab.experiments.motion.model import SMALL, FlowNetS, multi_scale_loss
from howsure_lab.experiments.runs import Options, Run
from howsure_lab.experiments.tables import FLOOR
from howsure_lab.experiments.training import Pairs, PlainRecipe, joined, made, trained_once


def constant_each(bench: Bench) -> Tuned:
    """The plain prediction, with the mean squared error of each component of the flow.

    Objects move more sideways than up and down, and one constant for both components is beaten by
    two. A method that has a variance for each output must be held against these.
    """
    batches = bench.validation.batches(bench.effort.batch)
    with torch.inference_mode():
        errors = torch.cat([(bench.model(*x) - y).square() for x, y in batches])
    var = errors.mean((0, 2, 3), keepdim=True)[0].clone()
    sure = Uncertain(bench.model, None, "constant", residual_var=var, seed=bench.seed)
    return Tuned(sure, {"residual_var": var.flatten().tolist()})


def affine(bench: Bench) -> Tuned:
    """The paper's method with the rate, the factor and the constant that suit held-out data best.

    The paper's rate has to serve two ends: it orders inputs by how unsure the network is, and it
    has to make up for everything that dropout does not know, at the price of a worse mean. Here
    residual_var + scale * var has the right size, and a rate that orders well is enough.
    """
    batches = bench.validation.batches(bench.effort.batch)
    target = torch.cat([y for _, y in batches])

    def at(rate: float) -> Tuned:
        how: dict[str, Any] = {"samples": bench.effort.samples, "seed": bench.seed}
        sure = Uncertain(bench.model, bench.noise, "sampled_adf", rate=rate, **how)
        raw = sure.predict(batches, show_progress=False)
        fitted = AffineVariance.fit(raw, target)
        sure.calibrators = (fitted,)
        nll = float(metrics.nll(raw.mean, fitted(raw).total_var, target, floor=FLOOR))
        found = {"scale": float(fitted.scale), "residual_var": float(fitted.residual_var)}
        return Tuned(sure, {"rate": rate, **found, "validation_nll": nll})

    found = [at(rate) for rate in bench.effort.rates if rate > 0]
    return min(found, key=lambda each: each.record["validation_nll"])


_RATE = 0.1  # of dropout in the comparison of dense methods and in the figure
_SAMPLED = 6  # objects for Monte Carlo
# Five networks take too long to train.
_METHODS = (report.EACH, *(name for name in SINGLE if name != "gradients_dropout"), report.AFFINE)
# The default takes a backward pass for each of an object's 32 numbers.
_QUICK = tuple(name for name in _METHODS if name != "gradients")


@dataclass(frozen=True)
class Settings:
    """What a motion run depends on."""

    shape: tuple[int, int] = (96, 96)  # height and width of the images
    widths: tuple[int, ...] = SMALL  # channels of the network
    # Objects per part; for real videos those of the videos.
    counts: Counts = field(default_factory=lambda: Counts(2000, 100, 100))
    scenes: int = 0  # rendered scenes on which the network is trained before real videos
    # Of the camera, in gray values from 0 to 1; assumed, and added to rendered scenes.
    noise_std: float = 8 / 255
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(10, batch=16, lr=2e-3))
    effort: Effort = field(
        default_factory=lambda: Effort(
            rates=(0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5), epochs=2, lr=3e-3, batch=20
        )
    )
    methods: tuple[str, ...] = _METHODS
    passes: int = 2000  # of Monte Carlo

    @staticmethod
    def of(options: Options) -> Settings:
        """The settings for these options."""
        full = Settings()
        quick = Effort(
            rates=(0.0, 0.03, 0.1, 0.3, 0.5), tuning_samples=10, epochs=1, lr=3e-3, batch=20
        )
        if options.data is not None:
            # "2 pixels" in the paper.
            real = replace(full, shape=(96, 160), noise_std=2 / 255, scenes=2000)
            # A posterior asks for 50 held-out objects.
            real = replace(real, counts=Counts(400, 50, 120), passes=1000)
            few = replace(real, shape=(64, 112), counts=Counts(120, 50, 30), scenes=1000)
            few = replace(few, recipe=replace(full.recipe, epochs=8), effort=quick, passes=400)
            return few if options.quick else real
        small = replace(full, shape=(64, 64), counts=Counts(1000, 40, 40), passes=1000)
        small = replace(small, recipe=replace(full.recipe, epochs=8), effort=quick)
        return replace(small, methods=_QUICK) if options.quick else full


class MotionRun(Run):
    """The parts of a run; data and networks are made when a part needs them."""

    _fold: tuple[int | None, Any] = None, None  # the last one that was made, and its data

    @cached_property
    def objects(self) -> dict[str, videos.Objects]:
        """The objects of all real videos."""
        assert self.options.data is not None
        return videos.read_objects(self.options.data, *self.settings.shape)

    @cached_property
    def scenes(self) -> MotionData:
        """Rendered scenes, the same for all seeds; before real videos only for training."""
        settings = self.settings
        counts = Counts(settings.scenes, 2, 1) if self.options.data else settings.counts
        return rendered_data(counts, settings.shape[0], settings.noise_std**2)

    def data(self, seed: int) -> MotionData:
        """Rendered scenes; of real videos the fold of this seed."""
        if self.options.data is None:
            return self.scenes
        if self._fold[0] != seed:
            fold = videos.fold_of(sorted(self.objects), seed)
            self._fold = seed, videos.real_data(self.objects, fold, self.settings.counts)
        return self._fold[1]

    def network(self, seed: int) -> nn.Module:
        """The plain network, trained from this seed; for real videos on scenes first."""
        model = made(lambda: FlowNetS(self.settings.widths), seed)

        def train(name: str, pairs: ObjectPairs) -> nn.Module:
            # Whole fields with their masks, where `ObjectPairs` would ask for points.
            how = Pairs(*pairs), multi_scale_loss, self.settings.recipe
            return trained_once(self, f"seed{seed}-{name}", model, *how, seed)

        if self.options.data is not None:
            train("scenes", self.scenes.train).requires_grad_(True)
        return train("plain", self.data(seed).train)

    @property
    def noise(self) -> Tensor:
        """The variance of both frames; the mask has none, and points are no measurement."""
        var = self.settings.noise_std**2
        return torch.tensor([var, var, 0.0]).view(1, 3, 1, 1)

    def method(self, name: str, seed: int) -> dict[str, Any]:
        """One line of the table for one seed."""
        data, effort = self.data(seed), self.settings.effort
        network, noise = self.network(seed), (self.noise, None)
        bench = Bench(network, noise, data.train, data.validation, effort, seed)
        make = {report.AFFINE: affine, report.EACH: constant_each}.get(name)
        ready = make(bench) if make else tuned(CONTENDERS[name], bench, self)
        found = {kind: predicted(ready, data.tests[kind], effort.batch) for kind in data.tests}
        target = {kind: pairs.target for kind, pairs in data.tests.items()}
        kinds = {k: report.object_scores(p.mean, p.total_var, target[k]) for k, p in found.items()}
        apart = report.told_apart({kind: p.total_var for kind, p in found.items()})
        for kind, auroc in apart.items():
            kinds[kind]["auroc"] = auroc
        main = list(found)[:2]
        together = report.object_scores(
            torch.cat([found[kind].mean for kind in main]),
            torch.cat([found[kind].total_var for kind in main]),
            torch.cat([target[kind] for kind in main]),
        )
        scores = {"all": {**together, "auroc": apart[main[1]]}, "kinds": kinds}
        return {"method": name, "seed": seed, "fit": ready.record, "scores": scores}

    def field(self) -> report.Field:
        """The first seed's network as a predictor of whole fields."""
        return report.Field(self.network(0), self.noise, _RATE)

    def dense(self) -> list[dict[str, object]]:
        """The dense methods against Monte Carlo, on a few objects of both kinds."""
        tests = list(self.data(0).tests.values())[:2]
        few = [pairs.at(slice(_SAMPLED // 2)) for pairs in tests]
        return report.compared(self.field(), joined(few), self.settings.passes)

    def steps(self) -> dict[str, Callable[[], object]]:
        """All parts, seed by seed."""
        lines = {
            f"seed{seed}-{name}": partial(self.method, name, seed)
            for seed in self.options.seed_list
            for name in self.settings.methods
        }
        return {"dense": self.dense, **lines}


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    settings = options.narrowed(Settings.of(options))
    # Missing videos are better known before an hour's work.
    flow = None if options.data is None else flow_source(options.data)
    work = MotionRun(options, settings)
    dense, *lines = work.finished(work.steps())
    report.draw_arrows(work.field(), work.data(0).tests, work.path / "arrows.png")
    return work.report({"flow": flow, "dense": dense, "lines": lines}, report.tables, report.draw)


def flow_source(folder: Path) -> str:
    """Where the true flow comes from."""
    given = all(path.is_file() for video in videos.find_videos(folder) for path in video.flows)
    return "read from .flo files" if given else "computed by OpenCV's DIS"
