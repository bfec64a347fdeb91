"""The Laplace approximation of `laplace-torch` as a peer, where it is installed."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import torch

from howsure_lab.experiments.contenders import Bench
from howsure_lab.experiments.pairs import Pairs

LABEL = "laplace-torch (last layer)"


def is_installed() -> bool:
    """Whether `laplace` can be imported."""
    return importlib.util.find_spec("laplace") is not None


def predict(bench: Bench, test: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of its predictions, noise included; tuned by the marginal likelihood."""
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
