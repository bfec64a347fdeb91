"""What the weights leave open: howsure's posterior over masks against laplace-torch's over weights.

Both are fitted to the same trained perceptron, and both get the same held-out rows: howsure in
`fit`, the peer for a factor on its variance and a residual variance that are best there. They are
posteriors over different things, so each is held against the errors on rows that neither has seen;
the peer's std also against Monte Carlo over its own posterior.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from models import trained
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import howsure as hs
from howsure.posterior.weights import best_weights
from speed.peer_calls import CannotRun, Std, declare_operators
from speed.peer_scores import DRAWS, Compared, Ours, Scores, against, row_by_row

_TRAIN, _HELD_OUT, _TEST = (4000, 1), (500, 2), (1000, 3)  # how many rows, and their seed
LAPLACE = ("laplace-torch, KFAC", "laplace-torch, last layer")


def made(_: str, count: int) -> Compared:
    """The ways; fitting them is not timed."""
    model = trained.mlp()
    ways: dict[str, Callable[[], Std]] = {"howsure, posterior": lambda: ours(model)}
    for way in LAPLACE:
        ways[way] = lambda way=way: Theirs(model, way)
    x = trained.vectors(count)

    def scores(_: str, std: Std) -> Scores:
        if not isinstance(std, Theirs):
            return on_unseen(model, lambda x: std(x).square())
        return {**on_unseen(model, std.total_var), **against(row_by_row(std, x), std.sampled(x))}

    return Compared(model, x, ways, scores)


def ours(model: nn.Module) -> Std:
    """howsure's posterior by `fit`, with the training inputs."""
    sure = hs.Uncertain(model)
    inputs = trained.vectors(*_TRAIN)
    sure.fit([trained.regression(*_HELD_OUT)], train_inputs=inputs, show_progress=False)
    return Ours(sure)


class Theirs:
    """The peer's linearized predictive."""

    def __init__(self, model: nn.Module, way: str) -> None:
        declare_operators()
        try:
            from uci_laplace import WAYS, fitted
        except ImportError as missing:
            raise CannotRun(str(missing)) from None
        own = copy.deepcopy(model).requires_grad_(True)
        self.found: Any = fitted(own, TensorDataset(*trained.regression(*_TRAIN)), WAYS[way])
        self.weights = self._tuned(model)

    def _tuned(self, model: nn.Module) -> Tensor:
        """The best residual variance and factor for the held-out rows."""
        x, y = trained.regression(*_HELD_OUT)
        with torch.inference_mode():
            error = (model(x) - y).double().square()[:, 0]
        return best_weights(error, self._terms(x), torch.full((2,), math.nan).double())

    def _terms(self, x: Tensor) -> Tensor:
        var = self(x).square()
        return torch.cat([torch.ones_like(var), var], 1).double()

    def __call__(self, x: Tensor) -> Tensor:
        """The std of the network itself, as the peer gives it."""
        return self.found(x)[1].flatten(1).sqrt().detach()

    def total_var(self, x: Tensor) -> Tensor:
        """What it leaves open, tuned."""
        return (self._terms(x) @ self.weights)[:, None]

    def sampled(self, x: Tensor) -> Tensor:
        """The std by Monte Carlo: networks with weights drawn from the peer's posterior."""
        torch.manual_seed(0)
        return self.found.predictive_samples(x, pred_type="nn", n_samples=DRAWS).std(0).detach()


def on_unseen(model: nn.Module, var: Callable[[Tensor], Tensor]) -> Scores:
    """Negative log-likelihood, and how often the 95 % interval holds the truth."""
    x, y = trained.regression(*_TEST)
    with torch.inference_mode():
        mean = model(x)
    found = torch.cat([var(rows) for rows in x.split(100)]).to(mean)
    inside = (y - mean).square() <= 1.959964**2 * found
    return {
        "nll": float(hs.metrics.nll(mean, found, y)),
        "coverage": float(inside.float().mean()),
    }
