"""The methods that a table compares, each made, tuned and scored alike on the same network."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from howsure import metrics
from howsure.fit import Fit, FitResult
from howsure.methods import MethodName
from howsure.methods.variance_head import add_variance_head
from howsure.noise import NoiseLike
from howsure.settings import PredictionKind, Task
from howsure.uncertain import Ensemble, Uncertain
from howsure_lab.experiments.runs import RunFolder
from howsure_lab.experiments.tables import regression_scores
from howsure_lab.experiments.training import Pairs
from howsure_lab.training import train_adf, train_heteroscedastic


@dataclass(frozen=True)
class Contender:
    """A line of the table.

    Attributes:
        label: What the line says.
        method: The method of `Uncertain`.
        fit: What is found on held-out data: "dropout", the paper's rate, with a residual variance
            where the method has one; "auto", what `Uncertain(model, noise).fit(held_out)` gives, a
            posterior over masks or a temperature; or nothing.
        fit_residual_var: Add a residual variance; `None` for what the method does by itself.
        retrained: "adf" or "head": the network is trained further by that method's likelihood.
        prediction: "mean" over noise and masks as in the paper; `None` for the method's own.
        released: Rate and constant variance are not tuned: the rate of training, and the constant
            of the authors' code.
        members: How many networks, each fitted by itself; more than 1 is an ensemble.
    """

    label: str
    method: MethodName
    fit: Literal["dropout", "auto"] | None = "dropout"
    fit_residual_var: bool | None = None
    retrained: str = ""
    prediction: PredictionKind | None = "mean"
    released: bool = False
    members: int = 1


MEMBERS = 5  # of an ensemble; more gain little (Lakshminarayanan et al. 2017, figure 2)
CONTENDERS = {
    "constant": Contender("constant variance", "constant"),
    "gal_untuned": Contender("Gal: MC dropout, not tuned", "mc_dropout", fit=None, released=True),
    "gal": Contender("Gal: MC dropout, tuned residual_var", "mc_dropout"),
    "gast_untrained": Contender("Gast: ADF, untrained", "adf", fit=None),
    "gast": Contender("Gast: ADF, trained", "adf", fit=None, retrained="adf"),
    "kendall": Contender("Kendall: variance head", "heteroscedastic", retrained="head"),
    # Without a residual variance, which `fit` would add where the largest rate is not enough.
    "ours": Contender("the paper: sampled ADF", "sampled_adf", fit_residual_var=False),
    "ours_tau": Contender("the paper + residual_var", "sampled_adf", fit_residual_var=True),
    "noise_sampling": Contender("Monte Carlo", "noise_sampling", fit_residual_var=False),
    "gradients_dropout": Contender(
        "howsure: gradients + dropout rate",
        "gradients",
        fit_residual_var=True,
        prediction="network",
    ),
    "gradients": Contender("howsure: gradients + posterior", "auto", fit="auto", prediction=None),
    "ensemble": Contender("five networks, constant variance", "constant", members=MEMBERS),
    "ensemble_gradients": Contender(
        "five networks, each with howsure",
        "auto",
        fit="auto",
        prediction=None,
        members=MEMBERS,
    ),
}
RELEASED_VAR = 1e-4
_OF_POINTS = ("auto", "gradients")
# The same with a residual variance: left out where runs are short.
WITH_RESIDUAL = ("ours_tau", "gradients_dropout")
SINGLE = tuple(name for name, contender in CONTENDERS.items() if contender.members == 1)
LABELS = {
    **{name: contender.label for name, contender in CONTENDERS.items()},
    # A check that committed results have: the floor of the networks that later lines are about.
    "constant_again": "constant variance, networks below",
    # Of version 0.1, where results still have them.
    "adjoint": "howsure 0.1: adjoint",
    "adjoint_tau": "howsure 0.1: adjoint + residual_var",
}


@dataclass(frozen=True)
class Effort:
    """How much work goes into tuning and retraining; the same for every method.

    Attributes:
        samples: Monte-Carlo samples in use; 20 in the paper.
        tuning_samples: Monte-Carlo samples while the rate is searched.
        rates: The rates that are tried.
        epochs: Of retraining.
        lr: Learning rate of retraining.
        train_rate: Dropout rate while the variance head is trained, and of MC dropout that is
            not tuned.
        batch: Inputs per batch.
    """

    samples: int = 20
    tuning_samples: int = 20
    rates: tuple[float, ...] = (0.0, 0.005, 0.01, 0.03, 0.07, 0.15, 0.3)
    epochs: int = 5
    lr: float = 1e-3
    train_rate: float = 0.05
    batch: int = 32


@dataclass(frozen=True, eq=False)
class Bench:
    """A trained network with the noise that is assumed and the data for tuning.

    Attributes:
        model: The plain network, in eval mode.
        noise: The assumed variance of the inputs, or a `howsure.noise` object.
        train: What it was trained on; for retraining.
        validation: Held out, with the noise of deployment.
        effort: How much work is spent.
        seed: Of masks, draws and retraining.
        task: "regression" or "classification".
        others: Gives so many further networks, trained alike from other seeds; `None` where the
            network was given and there are no others.
    """

    model: nn.Module
    noise: NoiseLike
    train: Pairs
    validation: Pairs
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    task: Task = "regression"
    others: Callable[[int], Sequence[nn.Module]] | None = None


@dataclass(frozen=True, eq=False)
class Tuned:
    """A method ready for use, with what was found on the way."""

    sure: Uncertain | Ensemble
    record: dict[str, Any]


def tuned(contender: Contender, bench: Bench, folder: RunFolder) -> Tuned:
    """The contender on this network, tuned on the held-out data; retrained weights are kept."""
    if contender.members == 1:
        return Tuned(*_tuned(contender, bench, folder))
    if bench.others is None:
        raise ValueError(f"{contender.label!r} needs networks of several seeds; there is one.")
    networks = [bench.model, *bench.others(contender.members - 1)]
    # Each with a seed of its own: the masks and noisy points of members are independent.
    benches = [replace(bench, model=net, seed=bench.seed + k) for k, net in enumerate(networks)]
    found = [_tuned(contender, each, folder) for each in benches]
    members, records = zip(*found, strict=True)
    return Tuned(Ensemble(members), {"members": list(records)})


def _tuned(
    contender: Contender, bench: Bench, folder: RunFolder
) -> tuple[Uncertain, dict[str, object]]:
    """One network with the contender's method, and the record of its fit."""
    model, constant = _network(contender, bench, folder)
    sure = Uncertain(
        model,
        bench.noise if _uses_noise(contender) else None,
        contender.method,
        # The paper's number is one of samples; noisy points are as many as the method takes.
        samples=None if contender.method in _OF_POINTS else bench.effort.samples,
        seed=bench.seed,
        prediction=contender.prediction,
        task=bench.task,
        rate=bench.effort.train_rate if contender.released else None,
        residual_var=constant,
    )
    if contender.fit is None:
        return sure, {"residual_var": constant, "floor": constant}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = sure.fit(
            bench.validation.batches(bench.effort.batch),
            show_progress=False,
            **_fit_options(contender, bench.effort),
        )
    warned = {str(warning.message) for warning in caught}
    return sure, {**_record(fit), "notes": sorted(warned)}


def _fit_options(contender: Contender, effort: Effort) -> dict[str, Any]:
    if contender.fit == "auto":
        return {}
    return {
        "model": "dropout",
        "rates": effort.rates,
        "samples": effort.tuning_samples,
        "fit_residual_var": contender.fit_residual_var,
    }


def _record(fit: FitResult) -> dict[str, object]:
    """What was found, as plain data."""
    if not isinstance(fit, Fit):
        return {"validation_nll": fit.nll, **fit.to_dict()}
    return {"rate": fit.rate, "residual_var": fit.residual_var, "validation_nll": fit.best_nll}


def member_seeds(seed: int, count: int) -> range:
    """The seeds of the further networks of an ensemble: those that follow.

    Ensembles of neighboring seeds share members: their mean is as it should be, their spread
    over seeds is smaller than that of separate ones.
    """
    return range(seed + 1, seed + 1 + count)


def _uses_noise(contender: Contender) -> bool:
    return contender.method not in ("constant", "mc_dropout", "heteroscedastic")


def _network(contender: Contender, bench: Bench, folder: RunFolder) -> tuple[nn.Module, float]:
    """The network that the contender runs on, and the constant variance of its likelihood."""
    if not contender.retrained:
        return bench.model, RELEASED_VAR if contender.released else 0.0
    error = squared_error(bench)
    effort = bench.effort
    name = f"seed{bench.seed}-{contender.retrained}"
    settings: dict[str, Any] = {
        "epochs": effort.epochs,
        "lr": effort.lr,
        "seed": bench.seed,
        "task": bench.task,
        "show_progress": False,
    }
    loader = bench.train.shuffled(effort.batch, bench.seed)
    if contender.retrained == "head":
        head = add_variance_head(bench.model, bench.train.x[:2], initial_var=error)
        head.requires_grad_(True)
        settings["rate"] = effort.train_rate
        folder.trained(name, head, lambda model: train_heteroscedastic(head, loader, **settings))
        return head.requires_grad_(False), 0.0
    # A tenth of the squared error: a network that propagates too little has to find the rest.
    floor = 0.1 * error
    network = copy.deepcopy(bench.model).requires_grad_(True)
    settings |= {"floor": floor, "batch_norm": "running"}
    folder.trained(name, network, lambda model: train_adf(model, bench.noise, loader, **settings))
    return network.requires_grad_(False), floor


@torch.inference_mode()
def squared_error(bench: Bench) -> float:
    """Mean squared error of the plain network on the held-out data; of class probabilities 0.1."""
    if bench.task == "classification":
        return 0.1
    batches = bench.validation.batches(bench.effort.batch)
    return float(torch.cat([(bench.model(x) - y).square() for x, y in batches]).mean())


def with_samples(made: Tuned, samples: int | None) -> Uncertain:
    """The same method with another number of samples; `None` for its own."""
    if not isinstance(made.sure, Uncertain):
        raise TypeError("An ensemble has no number of samples; its members have.")
    changed = Uncertain(made.sure.model)
    changed.method = made.sure.method
    changed.setup = replace(made.sure.setup, samples=samples)
    return changed


_DIGITS = 6  # of kept predictions: enough for a figure


def evaluated(
    name: str,
    bench: Bench,
    tests: Mapping[str, Pairs],
    folder: RunFolder,
    contenders: Mapping[str, Contender] = CONTENDERS,
) -> dict[str, object]:
    """Scores of a contender on every test set; the first one is the familiar condition."""
    made = tuned(contenders[name], bench, folder)
    started = time.perf_counter()
    found = {test: predicted(made, pairs, bench.effort.batch) for test, pairs in tests.items()}
    seconds = time.perf_counter() - started
    familiar = next(iter(tests))
    scores = {}
    for test, (mean, var) in found.items():
        scores[test] = regression_scores(mean, var, tests[test].y)
        if test != familiar:
            scores[test]["ood_auroc"] = _told_apart(found[familiar][1], var)
    count = sum(len(pairs.y) for pairs in tests.values())
    return {
        "method": name,
        "seed": bench.seed,
        "fit": made.record,
        "scores": scores,
        "seconds_per_input": seconds / count,
        "predictions": {test: _kept(*moments) for test, moments in found.items()},
    }


def predicted(made: Tuned, pairs: Pairs, batch: int) -> tuple[Tensor, Tensor]:
    """Mean and total variance for all inputs."""
    prediction = made.sure.predict(pairs.batches(batch), show_progress=False)
    return prediction.mean, prediction.total_var


def _kept(mean: Tensor, var: Tensor) -> dict[str, list[float]]:
    return {"mean": rounded(mean), "var": rounded(var)}


def rounded(values: Tensor) -> list[float]:
    """The values as numbers with few digits."""
    return [float(f"{value:.{_DIGITS}g}") for value in values.flatten().tolist()]


def _told_apart(inside: Tensor, outside: Tensor) -> float:
    """AUROC of the predicted variance for telling a held-out condition from the familiar one."""
    both = torch.cat([inside.flatten(), outside.flatten()])
    if bool((both == both[0]).all()):
        return 0.5
    return float(metrics.out_of_distribution_auroc(inside, outside))
