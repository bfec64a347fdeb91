"""Table III of the paper: how sure a network is of what it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure import metrics, noise
from howsure.fit.dropout import ONE_HOT_FLOOR
from howsure.prediction import Prediction, entropy
from howsure_lab.experiments import contenders
from howsure_lab.experiments.contenders import CONTENDERS, WITH_RESIDUAL, Bench, Effort, tuned
from howsure_lab.experiments.figures import Panel, draw_dots
from howsure_lab.experiments.recognition.data import (
    Counts,
    RecognitionData,
    cifar_data,
    digit_data,
    normalized,
    read_cifar,
)
from howsure_lab.experiments.recognition.resnets import STD, CifarResNet, load_pretrained
from howsure_lab.experiments.runs import Options, Run
from howsure_lab.experiments.tables import Column, by_method, method_table
from howsure_lab.experiments.training import PlainRecipe, made, trained_once

# Of class probabilities' variances in the NLL, as in tuning.
FLOOR = ONE_HOT_FLOOR
# A class of probability 0 would cost infinitely much.
PROBABILITY_FLOOR = 1e-12

CLASSIFICATION = (
    Column("accuracy", "accuracy %", 2),
    Column("one_hot_nll", "per-class NLL", 2),
    Column("categorical_nll", "categorical NLL"),
    Column("brier", "Brier", 4),
    Column("ece", "ECE"),
    Column("errors_entropy", "errors: entropy"),
    Column("errors_std", "errors: std"),
)
READING = (
    "per-class NLL: Gaussian NLL of the one-hot label, mean over classes, without 1/2 log 2 pi; "
    f"variances below {FLOOR:g} are raised to it. Brier: mean over classes. errors: AUROC of "
    "finding misclassified images, by the entropy of the mean probabilities and by the std of the "
    "winning class. Further columns: AUROC of finding images of nothing, by the entropy."
)


def classification_scores(found: Prediction, target: Tensor) -> dict[str, float]:
    """All metrics of predicted class probabilities."""
    mean, var = found.mean, found.total_var
    winner = mean.argmax(1)
    winner_var = var.gather(1, winner[:, None]).squeeze(1)
    wrong = winner != target

    def finds_errors(uncertainty: Tensor) -> float:
        """AUROC of errors; NaN if there are none, or nothing else."""
        if bool(wrong.all()) or not bool(wrong.any()):
            return float("nan")
        return float(metrics.misclassification_auroc(uncertainty, mean, target))

    return {
        "accuracy": 100 * float(metrics.accuracy(mean, target)),
        "one_hot_nll": float(metrics.one_hot_nll(mean, var, target, floor=FLOOR)),
        "categorical_nll": float(metrics.categorical_nll(mean, target, floor=PROBABILITY_FLOOR)),
        "brier": float(metrics.brier(mean, target)),
        "ece": float(metrics.ece(mean, target)),
        "errors_entropy": finds_errors(entropy(mean)),
        "errors_std": finds_errors(winner_var),
        "count": len(target),
    }


# For classes the default finds a temperature for each input. A constant variance leaves the mean
# probabilities to the network itself.
LABELS = {
    **contenders.LABELS,
    "constant": "softmax, constant variance",
    "constant_again": "softmax, networks below",
    "gradients": "howsure: gradients + temperature",
    "ensemble": "five networks",
}
PAPER = {"gal": "93.2 / 4.79", "gast": "93.7 / 15.2", "ours": "94.0 / 2.65"}
# One line per kind of method.
_QUICK = ("constant", "gal", "gast", "kendall", "ours", "gradients", "ensemble")
_WEIGHTS = "resnet20*.th"


@dataclass(frozen=True)
class Settings:
    """What a recognition run depends on; `noise_std` is in gray values from 0 to 1."""

    counts: Counts = field(default_factory=lambda: Counts(300, 600))
    noise_std: float = 0.1
    recipe: PlainRecipe = field(default_factory=lambda: PlainRecipe(30, lr=1e-2))
    effort: Effort = field(default_factory=lambda: Effort(epochs=5, tuning_samples=50))
    methods: tuple[str, ...] = tuple(name for name in CONTENDERS if name not in WITH_RESIDUAL)

    @staticmethod
    def of(options: Options) -> Settings:
        """The settings for these options."""
        few = (0.0, 0.003, 0.01, 0.03, 0.1)
        if options.data is not None:
            effort = Effort(epochs=1, tuning_samples=50, batch=25)
            # A pretrained network is enough: nothing is trained.
            untrained = tuple(
                name
                for name in Settings().methods
                if not CONTENDERS[name].retrained and CONTENDERS[name].members == 1
            )
            real = Settings(Counts(200, 1000), 2 / 255, effort=effort, methods=untrained)
            # A temperature asks for 50 held-out images.
            few_images = replace(real, counts=Counts(50, 75))
            quick = Effort(rates=few, tuning_samples=10, batch=25)
            return replace(few_images, effort=quick) if options.quick else real
        if not options.quick:
            return Settings()
        small = replace(Settings(), counts=Counts(100, 40), recipe=PlainRecipe(6, lr=1e-2))
        return replace(small, effort=Effort(rates=few, epochs=2), methods=_QUICK)


class RecognitionRun(Run):
    """The parts of a run; data and networks are made when a part needs them."""

    def __init__(self, options: Options, settings: Settings) -> None:
        if options.data is not None:
            find_weights(options.data)  # a missing file is better known before an hour's work
        super().__init__(options, settings)

    @cached_property
    def data(self) -> RecognitionData:
        """Digits, or CIFAR-10."""
        if self.options.data is not None:
            return cifar_data(read_cifar(self.options.data), self.settings.counts)
        return digit_data(self.settings.counts, self.settings.noise_std)

    def network(self, seed: int) -> nn.Module:
        """The pretrained ResNet-20, or a ResNet-8 for digits trained from this seed."""
        if self.options.data is not None:
            return load_pretrained(find_weights(self.options.data), 20)
        model = made(lambda: CifarResNet(8, channels=1, widths=(8, 16, 32)), seed)
        plain = self.data.train, F.cross_entropy, self.settings.recipe
        return trained_once(self, f"seed{seed}-plain", model, *plain, seed)

    def bench(self, seed: int) -> Bench:
        """The network of a seed with its data and noise."""
        std, effort = self.settings.noise_std, self.settings.effort
        real = self.options.data is not None
        level = noise.gray_levels(std * 255, normalize_std=STD) if real else std**2
        data = self.data.train, self.data.validation
        others = None if real else self.network
        model = self.network(seed)
        return Bench(model, level, *data, effort, seed, "classification", others=others)

    def method(self, name: str, seed: int) -> dict[str, Any]:
        """One line of the table for one seed."""
        bench, data = self.bench(seed), self.data
        found = tuned(CONTENDERS[name], bench, self)

        def predict(x: Tensor) -> Prediction:
            return found.sure.predict(x.split(bench.effort.batch), show_progress=False)

        tested = predict(data.test.x)
        scores = classification_scores(tested, data.test.y)
        inside, few = entropy(tested.mean), max(len(data.test.y) // 2, 1)
        for kind, images in data.strange.items():
            outside = entropy(predict(images[:few]).mean)
            scores[f"strange_{kind}"] = float(metrics.out_of_distribution_auroc(inside, outside))
        return {"method": name, "seed": seed, "fit": found.record, "scores": scores}

    def plain(self) -> dict[str, float]:
        """The plain network: accuracy on the whole test set, and its softmax entropy."""
        model, test = self.network(0), self.data.test
        found = _probabilities(model, test.x)
        zero = torch.zeros_like(found)
        result = classification_scores(Prediction(found, zero, zero), test.y)
        del result["one_hot_nll"], result["errors_std"]  # of a variance, which it does not have
        if self.options.data is not None and not self.options.quick:
            cifar = read_cifar(self.options.data)
            whole = _probabilities(model, normalized(cifar.test_x))
            accuracy = 100 * float(metrics.accuracy(whole, cifar.test_y))
            result["accuracy_whole_test_set"] = accuracy
        return result

    def steps(self) -> dict[str, Callable[[], object]]:
        """All parts; a pretrained network has one seed."""
        lines = {
            f"seed{seed}-{name}": partial(self.method, name, seed)
            for seed in (self.options.seed_list if self.options.data is None else (0,))
            for name in self.settings.methods
        }
        return {"plain": self.plain, **lines}


@torch.inference_mode()
def _probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([F.softmax(model(part), 1) for part in x.split(250)])


def find_weights(folder: Path) -> Path:
    """The checkpoint of ResNet-20 in a folder or below it."""
    for path in sorted(folder.glob(f"**/{_WEIGHTS}")):
        return path
    raise FileNotFoundError(f"There is no checkpoint `{_WEIGHTS}` in `{folder}`.")


def tables(results: Mapping[str, Any]) -> list[str]:
    """The table and how to read it."""
    lines = results["lines"]
    kinds = [key for key in lines[0]["scores"] if key.startswith("strange_")]
    columns = [*CLASSIFICATION, *(Column(k, k.removeprefix("strange_"), 3) for k in kinds)]
    runs = by_method(lines, lambda line: line["scores"])
    # A network without errors has no score for finding them.
    known = {key: value for key, value in results["plain"].items() if value is not None}
    plain = ", ".join(f"{key} {value:.4g}" for key, value in known.items())
    return [
        method_table(runs, columns, labels=LABELS, paper=PAPER),
        f"{READING} The paper's column: accuracy / per-class NLL, ResNet-18 on CIFAR-10.\n",
        f"The plain network: {plain}.\n",
    ]


_DRAWN = {
    "categorical_nll": "categorical NLL",
    "ece": "calibration error (ECE)",
    "errors_entropy": "AUROC of errors, by entropy",
}


def draw(results: Mapping[str, Any], path: Path) -> Path:
    """Writes the picture of a run: likelihood, calibration and errors found, by method."""
    panels = []
    for key, words in _DRAWN.items():
        values = by_method(results["lines"], lambda line, key=key: line["scores"][key])
        panels.append(Panel("", words, values, lower_is_better=key != "errors_entropy"))
    return draw_dots(panels, path, LABELS)


def run(options: Options) -> Path:
    """Runs the experiment; returns the path of its table."""
    work = RecognitionRun(options, options.narrowed(Settings.of(options)))
    plain, *lines = work.finished(work.steps())
    return work.report({"plain": plain, "lines": lines}, tables, draw)
