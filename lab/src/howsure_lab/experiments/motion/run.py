"""Table II of the paper: how sure a network is of where an object moves next."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from howsure import metrics
from howsure.calibrate import AffineVariance
from howsure.uncertain import Uncertain
from howsure_lab.experiments.contenders import CONTENDERS, SINGLE, Bench, Effort, Tuned, tuned
from howsure_lab.experiments.motion.data import (
    Counts,
    MotionData,
    ObjectPairs,
    joined,
    rendered_data,
)
from howsure_lab.experiments.motion.model import SMALL, FlowNetS, multi_scale_loss
from howsure_lab.experiments.motion.report import (
    AFFINE,
    EACH,
    Field,
    compared,
    draw,
    draw_arrows,
    object_scores,
    tables,
    told_apart,
)
from howsure_lab.experiments.motion.videos import (
    Objects,
    find_videos,
    fold_of,
    read_objects,
    real_data,
)
from howsure_lab.experiments.runs import (
    PICTURE,
    Options,
    RunFolder,
    Step,
    finished,
    open_folder,
    write_results,
)
from howsure_lab.experiments.tables import FLOOR
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, train_plain


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
    found = [_at_rate(bench, rate) for rate in bench.effort.rates if rate > 0]
    return min(found, key=lambda each: each.record["validation_nll"])


def _at_rate(bench: Bench, rate: float) -> Tuned:
    sure = Uncertain(
        bench.model,
        bench.noise,
        "sampled_adf",
        rate=rate,
        samples=bench.effort.samples,
        seed=bench.seed,
    )
    batches = bench.validation.batches(bench.effort.batch)
    raw = sure.predict(batches, show_progress=False)
    target = torch.cat([y for _, y in batches])
    fitted = AffineVariance.fit(raw, target)
    sure.calibrators = (fitted,)
    total = fitted(raw).total_var
    nll = float(metrics.nll(raw.mean, total, target, floor=FLOOR))
    found = {"scale": float(fitted.scale), "residual_var": float(fitted.residual_var)}
    return Tuned(sure, {"rate": rate, **found, "validation_nll": nll})


_RATE = 0.1  # of dropout in the comparison of dense methods and in the figure
_SAMPLED = 6  # objects for Monte Carlo
# Five networks take too long to train.
_METHODS = (EACH, *(name for name in SINGLE if name != "gradients_dropout"), AFFINE)
_MADE_HERE = {AFFINE: affine, EACH: constant_each}
# The default takes a backward pass for each of an object's 32 numbers.
_QUICK = tuple(name for name in _METHODS if name != "gradients")


@dataclass(frozen=True)
class Settings:
    """What a motion run depends on.

    Attributes:
        shape: Height and width of the images.
        widths: Channels of the network.
        counts: Objects per part; for real videos those of the videos.
        scenes: Rendered scenes on which the network is trained before real videos.
        noise_std: Of the camera, in gray values from 0 to 1; assumed, and added to rendered scenes.
        recipe: Training of the plain network.
        effort: Tuning and retraining.
        methods: The lines of the table.
        passes: Of Monte Carlo.
    """

    shape: tuple[int, int] = (96, 96)
    widths: tuple[int, ...] = SMALL
    counts: Counts = field(default_factory=lambda: Counts(2000, 100, 100))
    scenes: int = 0
    noise_std: float = 8 / 255
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(10, batch=16, lr=2e-3))
    effort: Effort = field(
        default_factory=lambda: Effort(
            rates=(0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5), epochs=2, lr=3e-3, batch=20
        )
    )
    methods: tuple[str, ...] = _METHODS
    passes: int = 2000

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


class MotionRun:
    """The parts of a run; data and networks are made when a part needs them."""

    def __init__(self, options: Options, settings: Settings, folder: RunFolder) -> None:
        self.options = options
        self.settings = settings
        self.folder = folder
        self._data: dict[int, MotionData] = {}
        self._networks: dict[int, nn.Module] = {}

    @cached_property
    def objects(self) -> dict[str, Objects]:
        """The objects of all real videos."""
        assert self.options.data is not None
        return read_objects(self.options.data, *self.settings.shape)

    def data(self, seed: int) -> MotionData:
        """Rendered scenes, the same for all seeds; of real videos the fold of this seed."""
        settings = self.settings
        key = 0 if self.options.data is None else seed
        if key not in self._data:
            if self.options.data is None:
                self._data[key] = rendered_data(
                    settings.counts, settings.shape[0], settings.noise_std**2
                )
            else:
                fold = fold_of(sorted(self.objects), seed)
                self._data = {key: real_data(self.objects, fold, settings.counts)}
        return self._data[key]

    def network(self, seed: int) -> nn.Module:
        """The plain network, trained from this seed; for real videos on scenes first."""
        if seed not in self._networks:
            model = made(lambda: FlowNetS(self.settings.widths), seed)
            if self.options.data is not None:
                self.folder.trained(f"seed{seed}-scenes", model, partial(self._on_scenes, seed))
                model.requires_grad_(True)
            train = partial(self._trained, self.data(seed).train, seed)
            self.folder.trained(f"seed{seed}-plain", model, train)
            self._networks[seed] = model.requires_grad_(False)
        return self._networks[seed]

    @cached_property
    def scenes(self) -> ObjectPairs:
        """Rendered scenes for training before real videos."""
        counts = Counts(self.settings.scenes, 2, 1)
        return rendered_data(counts, self.settings.shape[0], self.settings.noise_std**2).train

    def _on_scenes(self, seed: int, model: nn.Module) -> None:
        self._trained(self.scenes, seed, model)

    def _trained(self, pairs: ObjectPairs, seed: int, model: nn.Module) -> None:
        # Whole fields with their masks, where `ObjectPairs` would ask for points.
        train_plain(model, Pairs(*pairs), multi_scale_loss, self.settings.recipe, seed)

    @property
    def noise(self) -> Tensor:
        """The variance of both frames; the mask has none, and points are no measurement."""
        var = self.settings.noise_std**2
        return torch.tensor([var, var, 0.0]).view(1, 3, 1, 1)

    def bench(self, seed: int) -> Bench:
        """The network of a seed with its data."""
        data, effort = self.data(seed), self.settings.effort
        noise = (self.noise, None)
        return Bench(self.network(seed), noise, data.train, data.validation, effort, seed)

    def method(self, name: str, seed: int) -> dict[str, Any]:
        """One line of the table for one seed."""
        bench, tests = self.bench(seed), self.data(seed).tests
        make = _MADE_HERE.get(name)
        ready = make(bench) if make else tuned(CONTENDERS[name], bench, self.folder)
        means, variances = {}, {}
        for kind, pairs in tests.items():
            batches = pairs.batches(bench.effort.batch)
            prediction = ready.sure.predict(batches, show_progress=False)
            means[kind], variances[kind] = prediction.mean, prediction.total_var
        kinds = {k: object_scores(means[k], variances[k], tests[k].target) for k in tests}
        apart = told_apart(variances)
        for kind, auroc in apart.items():
            kinds[kind]["auroc"] = auroc
        main = list(tests)[:2]
        target = torch.cat([tests[kind].target for kind in main])
        mean, var = (torch.cat([found[kind] for kind in main]) for found in (means, variances))
        together = {**object_scores(mean, var, target), "auroc": apart[main[1]]}
        scores = {"all": together, "kinds": kinds}
        return {"method": name, "seed": seed, "fit": ready.record, "scores": scores}

    def field(self) -> Field:
        """The first seed's network as a predictor of whole fields."""
        return Field(self.network(0), self.noise, _RATE)

    def dense(self) -> list[dict[str, object]]:
        """The dense methods against Monte Carlo, on a few objects of both kinds."""
        tests = list(self.data(0).tests.values())[:2]
        few = [ObjectPairs(*(each[: _SAMPLED // 2] for each in pairs)) for pairs in tests]
        return compared(self.field(), joined(few), self.settings.passes)

    def steps(self) -> list[Step]:
        """All parts, seed by seed."""
        lines = [
            Step(f"seed{seed}-{name}", partial(self.method, name, seed))
            for seed in self.options.seed_list
            for name in self.settings.methods
        ]
        return [Step("dense", self.dense), *lines]


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    settings = Settings.of(options)
    settings = replace(settings, methods=options.chosen(settings.methods))
    flow = None if options.data is None else flow_source(options.data)
    folder = open_folder(options, asdict(settings))
    work = MotionRun(options, settings, folder)
    dense, *lines = finished(work.steps(), folder, options)
    draw_arrows(work.field(), work.data(0).tests, folder.path / "arrows.png")
    results = {"settings": asdict(settings), "flow": flow, "dense": dense, "lines": lines}
    draw(results, folder.path / PICTURE)
    return write_results(options, folder, results, tables(results))


def flow_source(folder: Path) -> str:
    """Where the true flow comes from; missing videos are better known before an hour's work."""
    videos = find_videos(folder)
    given = all(path.is_file() for video in videos for path in video.flows)
    return "read from .flo files" if given else "computed by OpenCV's DIS"
