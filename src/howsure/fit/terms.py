"""The variance of held-out predictions as a function of the rates, from one pass over the data.

The model variance is sum_l c_l M_l(x) over the dropout sites l, with the odds c = p / (1 - p); M_l
depends on them only beyond first order. D(x) is the sensor's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.fit.objectives import check_targets, gaussian
from howsure.methods import Method, adf, gradients
from howsure.methods.passes import Pass, no_gradients
from howsure.prediction import Budget, Prediction
from howsure.probe import probe_model
from howsure.problem import Sources
from howsure.setup import Setup

# Random numbers that an input should see at least, and blocks of points at the most.
_ELEMENTS = 2**10
_MOST_BLOCKS = 8


@dataclass(frozen=True, eq=False)
class Terms:
    """Squared errors and the parts of the variance, all (inputs, outputs) in double precision.

    Attributes:
        error: Squared errors at the odds at which the pass was made.
        data: The sensor's variance D.
        by_site: Variance per odds of every dropout site, M: (sites, ...).
        odds: The odds of the pass, (sites,).
    """

    error: Tensor
    data: Tensor
    by_site: Tensor
    odds: Tensor

    def model_var(self, odds: Tensor) -> Tensor:  # (sites,)
        """sum_l c_l M_l."""
        return torch.tensordot(odds, self.by_site, 1)

    def total_var(self, odds: Tensor, noise_scale: Tensor | float = 1.0) -> Tensor:
        """The model's variance and the sensor's, without residual_var."""
        return self.model_var(odds) + noise_scale * self.data

    @staticmethod
    def joined(parts: list[Terms]) -> Terms:
        """All inputs of several batches."""
        error, data = (torch.cat([getattr(p, name) for p in parts]) for name in ("error", "data"))
        return Terms(error, data, torch.cat([part.by_site for part in parts], 1), parts[0].odds)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A batch of held-out data with what does not depend on the rates.

    Attributes:
        x: The inputs.
        target: Their targets.
        plain: The plain network's output.
        diagonal: Mean and variance of the propagated noise, for diagonal methods.
    """

    x: object
    target: Tensor
    plain: Tensor
    diagonal: Prediction | None

    @classmethod
    def of(cls, setup: Setup, method: Method, x: object, target: Tensor) -> HeldOut:
        """A batch, with one plain pass and for a diagonal method one of Gaussians."""
        with no_gradients():
            outputs = Pass(setup, x).plain()
        if len(outputs) != 1:
            raise ValueError(
                f"The model has {len(outputs)} outputs; wrap it so that it returns the one to "
                "fit on."
            )
        still = setup.with_(rate=None, residual_var=0.0)
        diagonal = adf.METHOD(still, x) if method.is_diagonal else None
        return cls(x, target, outputs[0].clone(), diagonal)


def terms_of(setup: Setup, method: Method, batch: HeldOut) -> Terms:
    """The terms of one batch, at the setup's rates."""
    # Masks alone: the method has no sensor noise, or propagates it without correlations.
    seen = setup.with_(noise=None) if method.draws_masks else setup
    # Own points for every input: errors average over the held-out data.
    own = seen.with_(samples=points_for(seen, batch.x), tolerance=None, shared_masks=False)
    found = gradients.METHOD(own, batch.x)
    if found.sources is None:
        raise ValueError(f'The rate has no closed form here: {found.notes[0]} Use `search="grid"`.')
    mean, data = _rows(found.mean), _rows(found.data_var)
    if batch.diagonal is not None:
        mean = mean + _rows(batch.diagonal.mean - batch.plain)
        data = _rows(batch.diagonal.data_var)
    error = _squared_error(mean.reshape(batch.plain.shape), batch.target)
    odds, by_site = _by_site(setup, batch.x, found.sources)
    # A call that is one input has all its outputs in one row.
    by_site = by_site.reshape(len(by_site), *data.shape)
    # The search is a matter of few numbers, on the CPU, whatever device the network is on.
    return Terms(_rows(error).double().cpu(), data.double().cpu(), by_site, odds)


def _rows(values: Tensor) -> Tensor:  # (inputs, outputs)
    """One row for each input; a single number for each is one output."""
    return values.reshape(len(values), -1)


def points_for(setup: Setup, x: object) -> int:
    """One block for large networks; more where inner products average over few summands."""
    sources = Sources.of(setup, x, setup.once(probe_model, x).layout)
    blocks = max(1, min(_MOST_BLOCKS, _ELEMENTS // max(1, sources.elements)))
    return blocks * sources.design.points


def _squared_error(mean: Tensor, target: Tensor) -> Tensor:
    prediction = Prediction(mean, torch.ones_like(mean), torch.zeros_like(mean))
    check_targets(prediction, target, "gaussian")
    return gaussian(prediction, target).error.detach()


def _by_site(setup: Setup, x: object, budget: Budget) -> tuple[Tensor, Tensor]:
    """The odds of every site, (sites,), and its variance per odds, (sites, inputs, outputs)."""
    sites = setup.sites(x)
    odds = odds_of(torch.tensor(setup.rates(sites), dtype=torch.float64))
    variances = budget.variances.double().cpu()
    rows = zip(budget.names, budget.kinds, variances, strict=True)
    known = {name: var for name, kind, var in rows if kind == "dropout"}
    nothing = torch.zeros_like(variances[0])
    by_site = torch.stack([known.get(site.name, nothing) for site in sites])
    return odds, by_site / torch.where(odds > 0, odds, 1.0)[:, None, None]


def odds_of(rate: Tensor) -> Tensor:
    """c = p / (1 - p), the variance of a mask with mean 1."""
    return rate / (1 - rate)


def rate_of(odds: Tensor) -> Tensor:
    """p = c / (1 + c)."""
    return odds / (1 + odds)
