"""Training through the variance: by the Gaussian likelihood, end to end, reproducibly.

`train_adf` trains a network through its propagation (Gast & Roth 2018), `train_heteroscedastic` one
with a variance head (Kendall & Gal 2017). Both change the model that they are given, keep it in
eval mode meanwhile, and draw every random number from the recipe's seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from howsure.fit.held_out import pairs_of
from howsure.methods.variance_head import HeteroscedasticModel, gaussian_loss, logit_loss
from howsure.moments.interpreter import propagate
from howsure.moments.rule import APPROXIMATE, Rule, sample
from howsure.moments.rules.normalization import batch_norm
from howsure.moments.value import Moments
from howsure.multipliers import (
    Multiply,
    as_placement,
    check_rates,
    draw_uniforms,
    find_sites,
    masks,
)
from howsure.noise.inputs import is_correlated, variance_of
from howsure.progress import in_eval_mode, progress
from howsure.settings import TASKS
from howsure.student import student_nll
from howsure.trees import TensorTree, as_call, batch_size


@dataclass(frozen=True)
class Recipe:
    """How to train."""

    epochs: int = 10  # rounds through the loader
    lr: float = 1e-2  # of stochastic gradient descent with momentum 0.9
    task: str = "regression"  # or "classification", for a model that returns logits
    # For `train_adf`: a variance added to the predicted one in the likelihood, which an output
    # without any noise needs. State it with the result. A head has its own floor.
    floor: float = 1e-3
    # Gradients longer than this are shortened to it. The likelihood's gradient grows as 1 / var**2,
    # so that one surprising target could undo all training.
    clip: float = 1.0
    rate: float = 0.0  # for `train_heteroscedastic`: dropout rate in training
    # For `train_adf`: "batch" normalizes with the statistics of each batch and keeps running ones,
    # for training from random weights; "running" keeps those of a trained network fixed.
    batch_norm: str = "batch"
    seed: int = 0  # of dropout masks and draws; the loader's shuffling is the loader's own
    show_progress: bool = True

    def __post_init__(self) -> None:
        """One clear sentence for each wrong setting."""
        for name, allowed in (("task", TASKS), ("batch_norm", ("batch", "running"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` must be one of {allowed}, not {getattr(self, name)!r}.")
        for name in ("epochs", "lr", "floor", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, not {getattr(self, name)!r}.")


def train_adf(
    model: nn.Module, noise: object, loader: Iterable[object], **settings: Any
) -> tuple[float, ...]:
    """Trains a model through moment propagation; returns the loss of every step.

    loss = mean of 1/2 log s + (target - mean)**2 / (2 s), with (mean, var) the propagated moments
    and s = var + floor. For classification they are those of the softmax, and the target is
    one-hot, as in the authors' `SoftmaxHeteroscedasticLoss`.

    Batch norm uses the batch's statistics, noise included: see `batch_statistics`. The model's own
    dropout is off.

    Args:
        model: Changed in place.
        noise: The sensor's noise, as in `Uncertain`; a number is a variance.
        loader: Batches (inputs, targets).
        **settings: See `Recipe`.

    Source: Gast & Roth 2018, section 4; Loquercio et al. 2020, baseline of Tables I to III.
    """
    if is_correlated(noise):
        raise ValueError(
            "`train_adf` carries variances alone, and the noise is correlated; give "
            "`noise.independent()`, which has the same variance, to train with that."
        )
    recipe = Recipe(**settings)
    rules = {F.batch_norm: batch_statistics} if recipe.batch_norm == "batch" else None

    def probabilities(*args: Any, **kwargs: Any) -> Tensor:
        return F.softmax(model(*args, **kwargs), dim=1)

    network = model if recipe.task == "regression" else probabilities

    def loss(x: object, target: Tensor, step: int) -> Tensor:
        out = propagate(network, x, variance_of(noise, x), rules=rules)
        mean, var = _only(out.mean), _only(out.var)
        wanted = _target_like(mean, target, recipe.task)
        return student_nll((wanted - mean).square(), var + recipe.floor, math.inf).mean()

    return _minimized(loss, model, loader, recipe)


def _normalize_by_batch(
    input: Moments,  # (batch, channels, *)
    running_mean: Tensor | None,  # (channels,)
    running_var: Tensor | None,  # (channels,)
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """As `batch_norm`, with the mean and the variance of a channel over the batch.

    The variance is Var[mean] + E[var], the total variance of what the layer would see. Gradients
    pass through both. Running statistics are kept as in torch. Without noise it is torch's batch
    norm in train mode.

    Assumes: the noise of one element does not move the statistics, which averages over the batch
    justify.

    Source: Ioffe & Szegedy 2015, Algorithm 1; the noise term is ours.
    """
    axes = [axis for axis in range(input.mean.dim()) if axis != 1]
    count = input.mean.numel() // input.mean.shape[1]
    if count < 2:
        raise ValueError(
            "Batch norm needs more than one value per channel to train; use larger batches, or "
            '`batch_norm="running"`.'
        )
    spread, mean = torch.var_mean(input.mean, axes, correction=0)
    noise = input.var.mean(axes)
    unbiased = spread * count / (count - 1) + noise
    for running, current in ((running_mean, mean), (running_var, unbiased)):
        if running is not None:
            # A layer with `momentum=None` hands over 0 outside train mode: torch's default.
            running.lerp_(current.detach().to(running.dtype), momentum or 0.1)
    return batch_norm(input, mean, spread + noise, weight, bias, False, momentum, eps)


batch_statistics = Rule(
    "batch_norm (batch statistics)",
    _normalize_by_batch,
    (F.batch_norm,),
    APPROXIMATE,
    sample((4, 3, 2, 2), torch.zeros(3), torch.ones(3)),
)


def train_heteroscedastic(
    model: HeteroscedasticModel, loader: Iterable[object], **settings: Any
) -> tuple[float, ...]:
    """Trains a model with a variance head by its likelihood; returns the loss of every step.

    Batch norm keeps the statistics of the trained network; dropout at `rate` is applied where
    `howsure.multipliers` puts it.

    Args:
        model: From `add_variance_head`; changed in place.
        loader: Batches (inputs, targets).
        **settings: See `Recipe`.

    Source: Kendall & Gal 2017, Eq. 8; for classification Eq. 12.
    """
    recipe = Recipe(**settings)

    def loss(x: object, target: Tensor, step: int) -> Tensor:
        args, kwargs = as_call(x)
        with _dropout(model, x, recipe, step):
            output, log_var = model(*args, **kwargs)
        mean, spread = _only(output), _only(log_var)
        if recipe.task == "regression":
            return gaussian_loss(mean, spread, _target_like(mean, target, recipe.task))
        generator = torch.Generator().manual_seed(recipe.seed + step)
        # Ten draws of the logits in every step.
        normal = torch.randn((10, *mean.shape), generator=generator).to(mean)
        return logit_loss(mean, spread, target.to(mean.device), normal)

    return _minimized(loss, model, loader, recipe)


@contextmanager
def _dropout(model: nn.Module, x: object, recipe: Recipe, step: int) -> Iterator[None]:
    """Masks for one training step, another one for each input."""
    if recipe.rate == 0:
        yield
        return
    sites = find_sites(model, x, as_placement("auto"))
    uniforms = draw_uniforms(sites, 1, recipe.seed + step, batch=batch_size(x))
    drawn = masks(uniforms, check_rates(recipe.rate, sites))
    with Multiply(model, sites, [None if mask is None else mask[0] for mask in drawn]):
        yield


def _minimized(
    loss: Callable[[object, Tensor, int], Tensor],
    model: nn.Module,
    loader: Iterable[object],
    recipe: Recipe,
) -> tuple[float, ...]:
    """The losses of all steps of gradient descent."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(
            "No parameter of the model has `requires_grad`; there is nothing to train."
        )
    optimizer = torch.optim.SGD(trained, lr=recipe.lr, momentum=0.9)
    losses: list[float] = []
    with in_eval_mode(model), torch.enable_grad():
        for _ in progress(range(recipe.epochs), recipe.show_progress, "train"):
            for x, target in pairs_of(loader):
                value = loss(x, target, len(losses))
                losses.append(float(value.detach()))
                if not math.isfinite(losses[-1]):
                    raise RuntimeError(
                        f"The loss is {losses[-1]} at step {len(losses) - 1}; lower `lr` or "
                        "`clip`, raise `floor`, and see whether inputs and targets are finite."
                    )
                optimizer.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(trained, recipe.clip)
                optimizer.step()
        optimizer.zero_grad()
    return tuple(losses)


def _only(output: object) -> Tensor:
    tensors = TensorTree(output).tensors
    if len(tensors) != 1:
        raise ValueError(
            f"The model has {len(tensors)} outputs; wrap it so that it returns the one to train."
        )
    return tensors[0]


def _target_like(mean: Tensor, target: Tensor, task: str) -> Tensor:
    """The target of every mean; labels become one-hot."""
    expected = mean.shape if task == "regression" else mean.shape[:1] + mean.shape[2:]
    if target.shape != expected:
        raise ValueError(
            f"The targets have shape {tuple(target.shape)}; outputs of shape {tuple(mean.shape)} "
            f"need targets of shape {tuple(expected)}."
        )
    target = target.to(mean.device)
    if task == "regression":
        return target.to(mean.dtype)
    return F.one_hot(target.long(), mean.shape[1]).movedim(-1, 1).to(mean.dtype)
