"""The methods that a table compares, each made and tuned in the same way on the same network."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from howsure.fit import Fit
from howsure.fit.training import train_adf, train_heteroscedastic
from howsure.methods import MethodName
from howsure.methods.variance_head import add_variance_head
from howsure.setup import PredictionKind
from howsure.uncertain import Uncertain
from howsure_lab.experiments.folder import RunFolder
from howsure_lab.experiments.pairs import Pairs


@dataclass(frozen=True)
class Contender:
    """A line of the table.

    Attributes:
        label: What the line says.
        method: The method of `Uncertain`.
        fit: Find its rate and residual variance on held-out data.
        fit_residual_var: Add a residual variance; `None` for what the method does by itself.
        retrained: "adf" or "head": the network is trained further by that method's likelihood.
        prediction: "mean" over noise and masks as in the paper, "network" for the plain output.
        released: Rate and constant variance are not tuned: the rate of training, and the constant
            of the authors' code.
    """

    label: str
    method: MethodName
    fit: bool = True
    fit_residual_var: bool | None = None
    retrained: str = ""
    prediction: PredictionKind = "mean"
    released: bool = False


CONTENDERS = {
    "constant": Contender("constant variance", "constant"),
    "gal_untuned": Contender("Gal: MC dropout, not tuned", "mc_dropout", fit=False, released=True),
    "gal": Contender("Gal: MC dropout, tuned residual_var", "mc_dropout"),
    "gast_untrained": Contender("Gast: ADF, untrained", "adf", fit=False),
    "gast": Contender("Gast: ADF, trained", "adf", fit=False, retrained="adf"),
    "kendall": Contender("Kendall: variance head", "heteroscedastic", retrained="head"),
    "ours": Contender("the paper: sampled ADF", "sampled_adf"),
    "ours_tau": Contender("the paper + residual_var", "sampled_adf", fit_residual_var=True),
    "gradients": Contender("howsure gradients", "gradients", prediction="network"),
    "gradients_residual": Contender(
        "howsure gradients + residual_var",
        "gradients",
        fit_residual_var=True,
        prediction="network",
    ),
    "noise_sampling": Contender("Monte Carlo", "noise_sampling"),
}
RELEASED_VAR = 1e-4
# With a residual variance of their own: left out where runs are short.
WITH_RESIDUAL = ("ours_tau", "gradients_residual")
LABELS = {
    **{name: contender.label for name, contender in CONTENDERS.items()},
    # Methods of version 0.1, which older results contain.
    "adjoint": "howsure adjoint",
    "adjoint_tau": "howsure adjoint + residual_var",
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
    """

    model: nn.Module
    noise: Any
    train: Pairs
    validation: Pairs
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    task: str = "regression"


@dataclass(frozen=True, eq=False)
class Tuned:
    """A method ready for use, with what was found on the way."""

    sure: Uncertain
    record: dict[str, Any]


def tuned(contender: Contender, bench: Bench, folder: RunFolder) -> Tuned:
    """The contender on this network, tuned on the held-out data; retrained weights are kept."""
    model, constant = _network(contender, bench, folder)
    sure = Uncertain(
        model,
        bench.noise if _uses_noise(contender) else None,
        contender.method,
        # The paper's number is one of samples; noisy points are as many as the method takes.
        samples=None if contender.method == "gradients" else bench.effort.samples,
        seed=bench.seed,
        prediction=contender.prediction,
        task=bench.task,
        rate=bench.effort.train_rate if contender.released else None,
        residual_var=constant,
    )
    record: dict[str, Any] = {"residual_var": constant, "floor": constant}
    if contender.fit:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = sure.fit(
                bench.validation.batches(bench.effort.batch),
                model="dropout",
                rates=bench.effort.rates,
                samples=bench.effort.tuning_samples,
                fit_residual_var=contender.fit_residual_var,
                show_progress=False,
            )
        assert isinstance(fit, Fit)
        record = {
            "rate": fit.rate,
            "residual_var": fit.residual_var,
            "validation_nll": fit.best_nll,
        }
        record["notes"] = sorted({str(warning.message) for warning in caught})
    return Tuned(sure, record)


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


def with_samples(sure: Uncertain, samples: int | None) -> Uncertain:
    """The same method with another number of samples; `None` for its own."""
    changed = Uncertain(sure.model)
    changed.method = sure.method
    changed.setup = replace(sure.setup, samples=samples)
    return changed
