"""UCI regression: a small network trained as usual, then asked how sure it is."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure_lab.experiments import contenders
from howsure_lab.experiments.contenders import CONTENDERS, Bench, Effort, predicted, tuned
from howsure_lab.experiments.figures import Panel, draw_dots
from howsure_lab.experiments.runs import Options, Run
from howsure_lab.experiments.tables import (
    READING,
    REGRESSION,
    by_method,
    method_table,
    regression_scores,
)
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, trained_once
from howsure_lab.experiments.uci.data import DataSet, Split, diabetes, read_all, split

_PEER = "laplace"
LABELS = {**contenders.LABELS, _PEER: "laplace-torch (last layer)"}


def _laplace(bench: Bench, test: Pairs) -> tuple[Tensor, Tensor]:
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
    """What a UCI run depends on."""

    # Assumed for every standardized feature: the data sets do not state theirs.
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
        nn.Linear(features, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1)
    )


class UciRun(Run):
    """The parts of a run: one per data set, split and method."""

    def line(self, data: DataSet, k: int, name: str) -> dict[str, Any]:
        """One method on one split, in the units of the data."""
        parts = split(data, k)
        bench = self.bench(data, k, parts)
        record: dict[str, object] = {}
        if name == _PEER:
            mean, var = _laplace(bench, parts.test)
        else:
            found = tuned(CONTENDERS[name], bench, self)
            record = found.record
            p = predicted(found, parts.test, bench.effort.batch)
            mean, var = p.mean, p.total_var
        scores = regression_scores(
            mean * parts.scale + parts.center,
            var * parts.scale**2,
            parts.test.y * parts.scale + parts.center,
        )
        return {"data": data.name, "split": k, "method": name, "fit": record, "scores": scores}

    def bench(self, data: DataSet, k: int, parts: Split) -> Bench:
        """The network of a split with its data."""

        def plain(seed: int) -> nn.Module:
            model = made(partial(network, data.x.shape[1]), seed)
            how = parts.train, F.mse_loss, self.settings.recipe
            return trained_once(self, f"{data.name}-split{k}-seed{seed}-plain", model, *how, seed)

        noise_var, effort = self.settings.noise_std**2, self.settings.effort
        given = plain(k), noise_var, parts.train, parts.validation, effort, k
        return Bench(*given, others=plain, name=f"{data.name}-")

    def steps(self) -> dict[str, Callable[[], object]]:
        """One step for every data set, method and split: as many as seeds, 2 in quick runs."""
        given = self.options.data
        peers = [_PEER] if importlib.util.find_spec("laplace") else []
        methods = self.options.chosen([*CONTENDERS, *peers])
        wanted = self.options.seeds or (2 if self.options.quick else None)
        return {
            f"{data.name}-split{k}-{name}": partial(self.line, data, k, name)
            for data in (read_all(given) if given is not None else (diabetes(),))
            for k in range(len(data.splits))[:wanted]
            for name in methods
        }


def tables(results: Mapping[str, Any]) -> list[str]:
    """One table per data set: mean and spread over splits."""
    parts = []
    for name, lines in by_method(results["lines"], lambda line: line, "data").items():
        runs = by_method(lines, lambda line: line["scores"])
        splits = max(len(scores) for scores in runs.values())
        parts += [f"### {name}, {splits} splits\n", method_table(runs, REGRESSION, labels=LABELS)]
    return [*parts, f"{READING} In the units of the data.\n"]


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: NLL beside that of a constant variance, by data set."""
    lines, panels = results["lines"], []
    floors = {
        (line["data"], line["split"], line.get("added")): line["scores"]["nll"]
        for line in lines
        if line["method"] in ("constant", "constant_again")
    }
    for name in dict.fromkeys(line["data"] for line in lines):
        above: dict[str, list[float]] = {}
        for line in (line for line in lines if line["data"] == name):
            # Lines that were added later are about the same networks unless they have a floor.
            first = floors.get((name, line["split"], None))
            floor = floors.get((name, line["split"], line.get("added")), first)
            if floor is not None:
                above.setdefault(line["method"], []).append(line["scores"]["nll"] - floor)
        if above:
            panels.append(Panel(name, "NLL above that of a constant", above, 0.0))
    return draw_dots(panels, path, LABELS)


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    work = UciRun(options, UciSettings.of(options))
    return work.report({"lines": work.finished(work.steps())}, tables, draw)
