"""Table I of the paper: how sure a network is of the steering angle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure import metrics
from howsure_lab.experiments.contenders import (
    CONTENDERS,
    SINGLE,
    Bench,
    Contender,
    Effort,
    evaluated,
)
from howsure_lab.experiments.runs import Options, Run
from howsure_lab.experiments.steering.data import (
    Counts,
    SteeringData,
    real_data,
    rendered_data,
    split_drives,
)
from howsure_lab.experiments.steering.model import FULL, SMALL, DroNet, load_weights
from howsure_lab.experiments.steering.report import draw, draw_figures, tables
from howsure_lab.experiments.training import PlainRecipe, made, trained_once

# One line per kind of method.
_QUICK = ("constant", "gal", "gast", "kendall", "ours", "gradients", "ensemble")
_WEIGHTS = ("dronet_torch.pt", "model_weights.h5")


@dataclass(frozen=True)
class Settings:
    """What a steering run depends on."""

    size: int = 100  # width and height of the images
    widths: tuple[int, ...] = FULL  # channels of the network
    counts: Counts = field(default_factory=lambda: Counts(3000, 200, 150))
    # Of the camera, in gray values from 0 to 1; assumed, and added to rendered roads.
    noise_std: float = 8 / 255
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(12, lr=2e-3))
    effort: Effort = field(default_factory=lambda: Effort(epochs=2, batch=16))
    methods: tuple[str, ...] = tuple(CONTENDERS)

    @staticmethod
    def of(options: Options) -> Settings:
        """The settings for these options."""
        full = Settings()
        few = (0.0, 0.003, 0.01, 0.03, 0.1)
        if options.data is not None:
            # "2 grayscale levels" in the paper.
            real = replace(
                full, size=200, counts=Counts(1500, 200, 450), noise_std=2 / 255, methods=SINGLE
            )
            if not options.quick:
                return real
            effort = Effort(rates=few, tuning_samples=10, epochs=1, batch=8)
            methods = tuple(name for name in _QUICK if name in SINGLE and name != "gast")
            # A posterior asks for 50 held-out images.
            return replace(real, counts=Counts(80, 50, 48), effort=effort, methods=methods)
        if not options.quick:
            return full
        effort = Effort(rates=few, tuning_samples=10, epochs=1, batch=32)
        small = replace(full, size=64, widths=SMALL, counts=Counts(400, 50, 20), methods=_QUICK)
        return replace(small, recipe=PlainRecipe(8), effort=effort)


class SteeringRun(Run):
    """The parts of a run; data and networks are made when a part needs them."""

    contenders: ClassVar[Mapping[str, Contender]] = CONTENDERS

    def __init__(self, options: Options, settings: Any) -> None:
        if options.data is not None:
            find_weights(options.data)  # a missing file is better known before an hour's work
        super().__init__(options, settings)

    @cached_property
    def data(self) -> SteeringData:
        """What `load_data` gives, once."""
        return self.load_data()

    def load_data(self) -> SteeringData:
        """Rendered, or read from the drives."""
        settings = self.settings
        if self.options.data is not None:
            return real_data(split_drives(self.options.data), settings.counts)
        return rendered_data(settings.counts, settings.size, settings.noise_std**2)

    def network(self, seed: int) -> nn.Module:
        """The plain network: the authors' for real drives, else trained from this seed."""
        if self.options.data is not None:
            return load_weights(find_weights(self.options.data))
        model = made(lambda: DroNet(self.settings.size, self.settings.widths), seed)
        plain = self.data.train, F.mse_loss, self.settings.recipe
        return trained_once(self, f"seed{seed}-plain", model, *plain, seed)

    def bench(self, seed: int) -> Bench:
        """The network of a seed with its data."""
        noise_var, effort = self.settings.noise_std**2, self.settings.effort
        data = self.data.train, self.data.validation
        others = self.network if self.options.data is None else None
        return Bench(self.network(seed), noise_var, *data, effort, seed, others=others)

    def method(self, name: str, seed: int) -> dict[str, Any]:
        """One line of the table for one seed."""
        return evaluated(name, self.bench(seed), self.data.tests, self, self.contenders)

    def methods_of(self, seed: int, methods: Sequence[str]) -> list[str]:
        """Those with a result of this seed: the first seed's, and wherever something is trained."""
        given = seed > 0 and self.options.data is not None
        return [name for name in methods if not given or self.contenders[name].retrained]

    def plain(self) -> dict[str, Any]:
        """The plain network on the whole test drive, or on the test scenes."""
        model = self.network(0)
        if self.options.data is None:
            return {test: _point_scores(model, [x], y) for test, (x, y) in self.data.tests.items()}
        drive = split_drives(self.options.data).test
        frames = map(drive.images, torch.arange(len(drive)).split(64))
        return {"whole test drive": _point_scores(model, frames, drive.angles)}

    def steps(self) -> dict[str, Callable[[], object]]:
        """All parts, seed by seed; what is neither trained nor retrained has one seed."""
        lines = {
            f"seed{seed}-{name}": partial(self.method, name, seed)
            for seed in self.options.seed_list
            for name in self.methods_of(seed, self.settings.methods)
        }
        return {"plain": self.plain, **lines}


@torch.inference_mode()
def _point_scores(model: nn.Module, images: Iterable[Tensor], y: Tensor) -> dict[str, float]:
    mean = torch.cat([model(part) for each in images for part in each.split(64)])
    eva = float(metrics.explained_variance(mean, y))
    return {"rmse": float(metrics.rmse(mean, y)), "eva": eva, "count": len(y)}


def find_weights(folder: Path) -> Path:
    """The authors' DroNet in a folder or below it: torch weights first, else Keras."""
    for name in _WEIGHTS:
        for path in sorted(folder.glob(f"**/{name}")):
            return path
    raise FileNotFoundError(
        f"There are no weights of DroNet in `{folder}`: looked for {list(_WEIGHTS)}."
    )


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    work = SteeringRun(options, options.narrowed(Settings.of(options)))
    plain, *lines = work.finished(work.steps())
    draw_figures(lines, work.data, work.path)
    for line in lines:
        del line["predictions"]
    return work.report({"plain": plain, "lines": lines}, tables, draw)
