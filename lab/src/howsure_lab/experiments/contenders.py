"""The methods that a table compares, each made, tuned and scored alike on the same network."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from howsure import metrics
from howsure.fit import Fit
from howsure.methods import MethodName
from howsure.methods.variance_head import add_variance_head
from howsure.noise import NoiseLike
from howsure.prediction import Prediction
from howsure.settings import PredictionKind, Task
from howsure.uncertain import Ensemble, Uncertain
from howsure_lab.experiments.runs import RunFolder
from howsure_lab.experiments.tables import regression_scores
from howsure_lab.experiments.training import Pairs
from howsure_lab.training import train_adf, train_heteroscedastic


@dataclass(frozen=True)
class Contender:
    """A line of the table."""

    label: str
    method: MethodName
    # What is found on held-out data: "dropout", the paper's rate, with a residual variance where
    # the method has one; "auto", what `Uncertain(model, noise).fit(held_out)` gives, a posterior
    # over masks or a temperature; or nothing.
    fit: Literal["dropout", "auto"] | None = "dropout"
    fit_residual_var: bool | None = None  # `None` for what the method does by itself
    retrained: str = ""  # "adf" or "head": trained further by that method's likelihood
    prediction: PredictionKind | None = "mean"  # as in the paper; `None` for the method's own
    released: bool = False  # not tuned: the rate of training, the constant of the authors' code
    members: int = 1  # networks, each fitted by itself; more than 1 is an ensemble


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
        "five networks, each with howsure", "auto", fit="auto", prediction=None, members=MEMBERS
    ),
}
RELEASED_VAR = 1e-4
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
    """How much work goes into tuning and retraining; the same for every method."""

    samples: int = 20  # of Monte Carlo in use; 20 in the paper
    tuning_samples: int = 20  # of Monte Carlo while the rate is searched
    rates: tuple[float, ...] = (0.0, 0.005, 0.01, 0.03, 0.07, 0.15, 0.3)  # that are tried
    epochs: int = 5  # of retraining
    lr: float = 1e-3  # of retraining
    train_rate: float = 0.05  # while the variance head is trained; of MC dropout not tuned
    batch: int = 32


@dataclass(frozen=True, eq=False)
class Bench:
    """A trained network with the noise that is assumed and the data for tuning."""

    model: nn.Module  # the plain network, in eval mode
    noise: NoiseLike  # assumed: the variance of the inputs, or a `howsure.noise` object
    train: Pairs  # what it was trained on; for retraining
    validation: Pairs  # held out, with the noise of deployment
    effort: Effort = field(default_factory=Effort)
    seed: int = 0  # of masks, draws and retraining
    task: Task = "regression"
    others: Callable[[int], nn.Module] | None = None  # networks trained alike from other seeds
    name: str = ""  # before the names of retrained weights


@dataclass(frozen=True, eq=False)
class Tuned:
    """A method ready for use, with what was found on the way."""

    sure: Uncertain | Ensemble
    record: dict[str, Any]


def tuned(contender: Contender, bench: Bench, folder: RunFolder) -> Tuned:
    """The contender on this network, tuned on the held-out data; retrained weights are kept."""
    if contender.members > 1:
        return _ensemble(contender, bench, folder)
    model, constant = _network(contender, bench, folder)
    uses_noise = contender.method not in ("constant", "mc_dropout", "heteroscedastic")
    sure = Uncertain(
        model,
        bench.noise if uses_noise else None,
        contender.method,
        # The paper's number is one of samples; noisy points are as many as the method takes.
        samples=None if contender.method in ("auto", "gradients") else bench.effort.samples,
        seed=bench.seed,
        prediction=contender.prediction,
        task=bench.task,
        rate=bench.effort.train_rate if contender.released else None,
        residual_var=constant,
    )
    if contender.fit is None:
        return Tuned(sure, {"residual_var": constant, "floor": constant})
    options: dict[str, Any] = {}
    if contender.fit == "dropout":
        options = {
            "model": "dropout",
            "rates": bench.effort.rates,
            "samples": bench.effort.tuning_samples,
            "fit_residual_var": contender.fit_residual_var,
        }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        held_out = bench.validation.batches(bench.effort.batch)
        fit = sure.fit(held_out, show_progress=False, **options)
    if isinstance(fit, Fit):
        found = {"rate": fit.rate, "residual_var": fit.residual_var}
        record = {**found, "validation_nll": fit.best_nll}
    else:
        record = {"validation_nll": fit.nll, **fit.to_dict()}
    return Tuned(sure, {**record, "notes": sorted({str(warning.message) for warning in caught})})


def _ensemble(contender: Contender, bench: Bench, folder: RunFolder) -> Tuned:
    """Networks of this seed and those that follow, each tuned by itself.

    Each has its seed's masks and noisy points, which are independent of the others'. Ensembles of
    neighboring seeds share members: their mean is as it should be, their spread over seeds is
    smaller than that of separate ones.
    """
    if bench.others is None:
        raise ValueError(f"{contender.label!r} needs networks of several seeds; there is one.")
    seeds = range(bench.seed + 1, bench.seed + contender.members)
    benches = [bench, *(replace(bench, model=bench.others(seed), seed=seed) for seed in seeds)]
    found = [tuned(replace(contender, members=1), each, folder) for each in benches]
    return Tuned(Ensemble([each.sure for each in found]), {"members": [e.record for e in found]})


def _network(contender: Contender, bench: Bench, folder: RunFolder) -> tuple[nn.Module, float]:
    """The network that the contender runs on, and the constant variance of its likelihood."""
    if not contender.retrained:
        return bench.model, RELEASED_VAR if contender.released else 0.0
    error = squared_error(bench)
    effort = bench.effort
    settings: dict[str, Any] = {
        "epochs": effort.epochs,
        "lr": effort.lr,
        "seed": bench.seed,
        "task": bench.task,
        "show_progress": False,
    }
    loader = bench.train.shuffled(effort.batch, bench.seed)
    if contender.retrained == "head":
        floor = 0.0
        network = add_variance_head(bench.model, bench.train.x[:2], initial_var=error)
        settings["rate"] = effort.train_rate
        train = partial(train_heteroscedastic, network, loader, **settings)
    else:
        # A tenth of the squared error: a network that propagates too little has to find the rest.
        floor = 0.1 * error
        network = copy.deepcopy(bench.model)
        settings |= {"floor": floor, "batch_norm": "running"}
        train = partial(train_adf, network, bench.noise, loader, **settings)
    network.requires_grad_(True)
    name = f"{bench.name}seed{bench.seed}-{contender.retrained}"
    folder.trained(name, network, lambda _: train())
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


def predicted(made: Tuned, pairs: Pairs, batch: int) -> Prediction:
    """The predictions for all inputs."""
    return made.sure.predict(pairs.batches(batch), show_progress=False)


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
    for test, p in found.items():
        scores[test] = regression_scores(p.mean, p.total_var, tests[test].y)
        if test != familiar:
            inside, outside = found[familiar].total_var, p.total_var
            scores[test]["ood_auroc"] = float(metrics.out_of_distribution_auroc(inside, outside))
    return {
        "method": name,
        "seed": bench.seed,
        "fit": made.record,
        "scores": scores,
        "seconds_per_input": seconds / sum(len(pairs.y) for pairs in tests.values()),
        "predictions": {
            test: {"mean": _short(p.mean), "var": _short(p.total_var)} for test, p in found.items()
        },
    }


def _short(values: Tensor) -> list[float]:
    """The values with six digits: enough for a figure."""
    return [float(f"{value:.6g}") for value in values.flatten().tolist()]
