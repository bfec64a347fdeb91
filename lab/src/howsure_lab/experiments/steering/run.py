"""Table I of the paper: how sure a network is of the steering angle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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
    member_seeds,
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
from howsure_lab.experiments.steering.data import (
    Counts,
    SteeringData,
    real_data,
    rendered_data,
    split_drives,
)
from howsure_lab.experiments.steering.model import FULL, SMALL, DroNet, load_weights
from howsure_lab.experiments.steering.report import draw, draw_figures, tables
from howsure_lab.experiments.training import PlainRecipe, made, train_plain

_BATCH = 64
# One line per kind of method.
_QUICK = ("constant", "gal", "gast", "kendall", "ours", "gradients", "ensemble")
_WEIGHTS = ("dronet_torch.pt", "model_weights.h5")


@dataclass(frozen=True)
class Settings:
    """What a steering run depends on.

    Attributes:
        size: Width and height of the images.
        widths: Channels of the network.
        counts: Images per part.
        noise_std: Of the camera, in gray values from 0 to 1; assumed, and added to rendered roads.
        recipe: Training of the plain network.
        effort: Tuning and retraining.
        methods: The lines of the table.
    """

    size: int = 100
    widths: tuple[int, ...] = FULL
    counts: Counts = field(default_factory=lambda: Counts(3000, 200, 150))
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


class SteeringRun:
    """The parts of a run; data and networks are made when a part needs them."""

    contenders: ClassVar[Mapping[str, Contender]] = CONTENDERS

    def __init__(self, options: Options, settings: Settings, folder: RunFolder) -> None:
        self.options = options
        self.settings = settings
        self.folder = folder
        self._networks: dict[int, nn.Module] = {}

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
            seed = 0
        if seed not in self._networks:
            self._networks[seed] = self._made(seed)
        return self._networks[seed]

    def _made(self, seed: int) -> nn.Module:
        settings = self.settings
        if self.options.data is not None:
            return load_weights(find_weights(self.options.data))
        model = made(lambda: DroNet(settings.size, settings.widths), seed)

        def train(model: nn.Module) -> None:
            train_plain(model, self.data.train, F.mse_loss, settings.recipe, seed)

        self.folder.trained(f"seed{seed}-plain", model, train)
        return model.requires_grad_(False)

    def bench(self, seed: int) -> Bench:
        """The network of a seed with its data."""
        data = self.data
        bench = Bench(
            self.network(seed),
            self.settings.noise_std**2,
            data.train,
            data.validation,
            self.settings.effort,
            seed,
        )
        others = partial(self.other_networks, seed)
        return bench if self.options.data is not None else replace(bench, others=others)

    def other_networks(self, seed: int, count: int) -> list[nn.Module]:
        """Further networks for an ensemble with that of this seed."""
        return [self.network(each) for each in member_seeds(seed, count)]

    def method(self, name: str, seed: int) -> dict[str, Any]:
        """One line of the table for one seed."""
        return evaluated(name, self.bench(seed), self.data.tests, self.folder, self.contenders)

    def plain(self) -> dict[str, Any]:
        """The plain network on the whole test drive, or on the test scenes."""
        model = self.network(0)
        if self.options.data is None:
            tests = self.data.tests.items()
            return {test: _point_scores(_outputs(model, x), y) for test, (x, y) in tests}
        drive = split_drives(self.options.data).test
        parts = torch.arange(len(drive)).split(_BATCH)
        mean = torch.cat([_outputs(model, drive.images(part)) for part in parts])
        return {"whole test drive": _point_scores(mean, drive.angles)}

    def steps(self) -> list[Step]:
        """All parts, seed by seed; what is neither trained nor retrained has one seed."""
        steps = [Step("plain", self.plain)]
        for seed in self.options.seed_list:
            for name in self.settings.methods:
                if self.differs_by_seed(name, seed):
                    steps.append(Step(f"seed{seed}-{name}", partial(self.method, name, seed)))
        return steps

    def differs_by_seed(self, name: str, seed: int) -> bool:
        """Whether this seed has a result of its own: it is the first, or something was trained."""
        return seed == 0 or self.options.data is None or bool(self.contenders[name].retrained)


@torch.inference_mode()
def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(_BATCH)])


def _point_scores(mean: Tensor, y: Tensor) -> dict[str, float]:
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
    settings = Settings.of(options)
    settings = replace(settings, methods=options.chosen(settings.methods))
    if options.data is not None:
        find_weights(options.data)  # a missing file is better known before an hour's work
    folder = open_folder(options, asdict(settings))
    work = SteeringRun(options, settings, folder)
    plain, *lines = finished(work.steps(), folder, options)
    draw_figures(lines, work.data, folder.path)
    kept = [{key: value for key, value in line.items() if key != "predictions"} for line in lines]
    results = {"settings": asdict(settings), "plain": plain, "lines": kept}
    draw(results, folder.path / PICTURE)
    return write_results(options, folder, results, tables(results))
