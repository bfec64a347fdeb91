"""UCI regression: a small network trained as usual, then asked how sure it is."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure_lab.experiments import contenders
from howsure_lab.experiments.contenders import (
    CONTENDERS,
    Bench,
    Effort,
    member_seeds,
    predicted,
    tuned,
)
from howsure_lab.experiments.figures import Panel, draw_dots
from howsure_lab.experiments.runs import (
    PICTURE,
    Options,
    RunFolder,
    Step,
    finished,
    open_folder,
    write_results,
)
from howsure_lab.experiments.tables import READING, REGRESSION, method_table, regression_scores
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, train_plain
from howsure_lab.experiments.uci.data import DataSet, Split, diabetes, read_all, split

_HIDDEN = 50
_PEER = "laplace"
LABELS = {**contenders.LABELS, _PEER: "laplace-torch (last layer)"}


def _laplace(bench: Bench, test: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance by laplace-torch, noise included; tuned by the marginal likelihood."""
    from laplace import Laplace  # pyright: ignore[reportMissingImports]

    model = copy.deepcopy(bench.model).requires_grad_(True)
    found: Any = Laplace(model, "regression", subset_of_weights="last_layer")
    found.fit(bench.train.shuffled(bench.effort.batch, bench.seed))
    # The training error understates the noise; the held-out error is what howsure gets as well.
    with torch.no_grad():
        error = (bench.model(bench.validation.x) - bench.validation.y).square().mean()
    found.sigma_noise = error.sqrt()
    found.optimize_prior_precision()
    mean, var = found(test.x)
    return mean.detach(), (var.squeeze(-1) + error).detach()


@dataclass(frozen=True)
class UciSettings:
    """What a UCI run depends on.

    Attributes:
        noise_std: Assumed for every standardized feature: the data sets do not state theirs.
        recipe: Training of the plain network.
        effort: Tuning and retraining.
    """

    noise_std: float = 0.05
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(40, lr=3e-3, decay=1e-2))
    effort: Effort = field(default_factory=lambda: Effort(epochs=20, tuning_samples=50))

    @staticmethod
    def of(options: Options) -> UciSettings:
        """The settings for these options."""
        full = UciSettings()
        return replace(full, effort=Effort(epochs=5)) if options.quick else full


def network(features: int) -> nn.Module:
    """Two hidden layers of 50."""
    return nn.Sequential(
        nn.Linear(features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(),
        nn.Linear(_HIDDEN, 1),
    )  # fmt: skip


class UciRun:
    """The parts of a run: one per data set, split and method."""

    def __init__(self, options: Options, settings: UciSettings, folder: RunFolder) -> None:
        self.options = options
        self.settings = settings
        self.folder = folder
        self.sets = read_all(options.data) if options.data is not None else (diabetes(),)
        known = (*CONTENDERS, *([_PEER] if importlib.util.find_spec("laplace") else []))
        self.methods = options.chosen(known)

    def splits_of(self, data: DataSet) -> range:
        """Which splits: as many as seeds were asked for, else 2 in quick runs and all others."""
        wanted = self.options.seeds or (2 if self.options.quick else len(data.splits))
        return range(min(wanted, len(data.splits)))

    def line(self, data: DataSet, k: int, name: str) -> dict[str, Any]:
        """One method on one split, in the units of the data."""
        parts = split(data, k)
        bench = self.bench(data, k, parts)
        record: dict[str, object] = {}
        if name == _PEER:
            mean, var = _laplace(bench, parts.test)
        else:
            folder = _Named(self.folder, data.name)
            found = tuned(CONTENDERS[name], bench, folder)
            record = found.record
            mean, var = predicted(found, parts.test, self.settings.effort.batch)
        scores = _in_units(parts, mean, var)
        return {"data": data.name, "split": k, "method": name, "fit": record, "scores": scores}

    def bench(self, data: DataSet, k: int, parts: Split) -> Bench:
        """The network of a split with its data."""

        def others(count: int) -> list[nn.Module]:
            return [self.trained(data, k, seed, parts) for seed in member_seeds(k, count)]

        noise_var, effort = self.settings.noise_std**2, self.settings.effort
        model = self.trained(data, k, k, parts)
        return Bench(model, noise_var, parts.train, parts.validation, effort, k, others=others)

    def trained(self, data: DataSet, k: int, seed: int, parts: Split) -> nn.Module:
        """A network of this seed, trained as usual on the training rows of split k."""
        model = made(partial(network, data.x.shape[1]), seed)

        def train(model: nn.Module) -> None:
            train_plain(model, parts.train, F.mse_loss, self.settings.recipe, seed)

        self.folder.trained(f"{data.name}-split{k}-seed{seed}-plain", model, train)
        return model.requires_grad_(False)

    def steps(self) -> list[Step]:
        """One step for every data set, split and method."""
        return [
            Step(f"{data.name}-split{k}-{name}", partial(self.line, data, k, name))
            for data in self.sets
            for k in self.splits_of(data)
            for name in self.methods
        ]


class _Named(RunFolder):
    """The same folder, with a data set's name before the names of weights."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self.path, self.parts, self.name = folder.path, folder.parts, name

    def trained(self, name: str, model: nn.Module, train: Callable[[nn.Module], object]) -> None:
        """Keeps the trained model in the folder, under this data set's name."""
        super().trained(f"{self.name}-{name}", model, train)


def _in_units(parts: Split, mean: Tensor, var: Tensor) -> dict[str, float]:
    """Scores in the units of the data."""
    y = parts.test.y * parts.scale + parts.center
    return regression_scores(mean * parts.scale + parts.center, var * parts.scale**2, y)


def tables(results: Mapping[str, Any]) -> list[str]:
    """One table per data set: mean and spread over splits."""
    found = []
    for name in dict.fromkeys(line["data"] for line in results["lines"]):
        runs: dict[str, list[Any]] = {}
        for line in results["lines"]:
            if line["data"] == name:
                runs.setdefault(line["method"], []).append(line["scores"])
        splits = max(len(scores) for scores in runs.values())
        found += [f"### {name}, {splits} splits\n", method_table(runs, REGRESSION, labels=LABELS)]
    return [*found, f"{READING} In the units of the data.\n"]


_FLOORS = ("constant", "constant_again")


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: NLL beside that of a constant variance, by data set."""
    lines, panels = results["lines"], []
    floors = {_network(line): line["scores"]["nll"] for line in lines if line["method"] in _FLOORS}
    for name in dict.fromkeys(line["data"] for line in lines):
        found: dict[str, list[float]] = {}
        for line in (line for line in lines if line["data"] == name):
            # Lines that were added later are about the same networks unless they have a floor.
            floor = floors.get(_network(line), floors.get((name, line["split"], None)))
            if floor is not None:
                found.setdefault(line["method"], []).append(line["scores"]["nll"] - floor)
        if found:
            panels.append(Panel(name, "NLL above that of a constant", found, 0.0))
    return draw_dots(panels, path, LABELS)


def _network(line: Mapping[str, Any]) -> tuple[str, int, int | None]:
    """Which network a line is about: data set, split, and the run that added it."""
    return line["data"], line["split"], line.get("added")


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    settings = UciSettings.of(options)
    folder = open_folder(options, asdict(settings))
    work = UciRun(options, settings, folder)
    lines = finished(work.steps(), folder, options)
    results = {"settings": asdict(settings), "lines": lines}
    draw(results, folder.path / PICTURE)
    return write_results(options, folder, results, tables(results))
