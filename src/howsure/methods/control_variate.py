"""Brute force with the adjoint's linear prediction as control variate.

The same draws go through the network f and through its linear prediction L = sum g (draw - mean),
whose variance V is known. With b = cov(f, L) / var(L) over the draws, the variance is
s_f**2 + b**2 (V - s_L**2): right in the limit like any sampling, and as precise as three times as
many samples where the noise is small. Masks see two noises each, as in `noise_sampling`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsure.dropout import DropoutMode, Site
from howsure.methods.adjoint import shaped
from howsure.methods.analysis import Analysis, analyse, noisy_inputs
from howsure.methods.combine import prediction
from howsure.methods.passes import Pass, no_gradients
from howsure.methods.sampling import masks_of
from howsure.methods.setup import Setup
from howsure.noise import sample_of
from howsure.prediction import Prediction
from howsure.sites import MASK, SENSOR


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with its sampled variances, corrected by the linear prediction's."""
    found = analyse(setup.with_(outputs=None), x)
    data_var, model_var = found.by_kind(SENSOR), found.by_kind(MASK)
    masked = MASK in found.kinds
    draws = Draws(setup, x, found)
    with no_gradients():
        if not masked:
            f, linear = draws.taken(setup.samples)
            mean, data = _mean(f, linear), _variance(f, linear, data_var)
            model = torch.zeros_like(data)
        else:
            pairs = max(setup.samples // 2, 2)
            (f1, linear1), (f2, linear2) = draws.taken(pairs), draws.taken(pairs)
            both, lines = torch.cat([f1, f2]), torch.cat([linear1, linear2])
            mean = _mean(both, lines)
            # Half the squared difference is the noise's doing, at the same mask.
            half, half_linear = (f1 - f2) / 2**0.5, (linear1 - linear2) / 2**0.5
            data = _variance(half, half_linear, data_var, centred=True)
            model = (_variance(both, lines, data_var + model_var) - data).clamp(min=0)
        return prediction(setup, found.run, *(shaped(found, each) for each in (mean, data, model)))


class Draws:
    """Draws of noise and masks, through the network and through its linear prediction."""

    def __init__(self, setup: Setup, x: Any, found: Analysis) -> None:
        self.setup, self.x, self.found = setup, x, found
        self.generator = torch.Generator().manual_seed(setup.seed)
        masked = MASK in found.kinds
        self.sites: tuple[Site, ...] = setup.sites(x) if masked else ()
        self.masks = masks_of(setup, self.sites, x) if masked else []

    def taken(self, count: int) -> tuple[Tensor, Tensor]:
        """Outputs of the network and of the linear prediction, (count, batch, outputs) each."""
        if count < 2:
            raise ValueError("`samples` is too small for a variance; use at least 2.")
        pairs = [self._one(index) for index in range(count)]
        outputs, lines = zip(*pairs, strict=True)
        return torch.stack(outputs), torch.stack(lines)

    def _one(self, index: int) -> tuple[Tensor, Tensor]:
        noisy = sample_of(self.setup.noise, self.x, self.generator)
        masks = [None if mask is None else mask[index] for mask in self.masks]
        with DropoutMode(self.setup.model, self.sites, masks):
            outputs = Pass(self.setup, noisy).plain()
        flat = torch.cat([out.reshape(out.shape[0], -1) for out in outputs], 1)
        return flat, self._linear(noisy, masks)

    def _linear(self, noisy: Any, masks: list[Tensor | None]) -> Tensor:
        """sum over sources and units of g (draw - mean), (batch, outputs)."""
        variance = self.setup.variance(self.x)
        before = (tensor for _, tensor in noisy_inputs(self.x, variance))
        after = (tensor for _, tensor in noisy_inputs(noisy, variance))
        moved = {f"{SENSOR}{i}": b - a for i, (a, b) in enumerate(zip(before, after, strict=True))}
        for site, mask in zip(self.sites, masks, strict=True):
            if mask is not None:
                moved[MASK + site.name] = mask - 1
        total = torch.zeros_like(self.found.mean)
        for index, (name, kind) in enumerate(zip(self.found.names, self.found.kinds, strict=True)):
            key = MASK + name if kind == MASK else f"{SENSOR}{index}"
            total = total + _contracted(self.found.reading.slopes[index], moved[key])
        return total


def _contracted(slope: Tensor, move: Tensor) -> Tensor:
    """sum over units of slope (batch, outputs, *units) times move ([batch,] *units)."""
    units = slope.dim() - 2
    batch = move.shape[:1] if move.dim() > 0 and move.shape[0] == slope.shape[0] else ()
    own = move.shape[len(batch) :]
    if len(own) > units:
        batch, own = (), move.shape
    move = move.reshape(*(batch or (1,)), 1, *(1,) * (units - len(own)), *own)
    return (slope * move.to(slope.dtype)).flatten(2).sum(-1)


def _slope(f: Tensor, linear: Tensor) -> Tensor:
    """b = cov(f, L) / var(L) over the draws in front."""
    f, linear = f - f.mean(0), linear - linear.mean(0)
    square = linear.square().sum(0)
    return (f * linear).sum(0) / torch.where(square > 0, square, torch.ones_like(square))


def _mean(f: Tensor, linear: Tensor) -> Tensor:
    return f.mean(0) - _slope(f, linear) * linear.mean(0)


def _variance(f: Tensor, linear: Tensor, known: Tensor, *, centred: bool = False) -> Tensor:
    """s_f**2 + b**2 (V - s_L**2), at least the part that L does not explain."""
    slope = _slope(f, linear)
    if centred:
        drawn, of_linear = f.square().mean(0), linear.square().mean(0)
    else:
        drawn, of_linear = f.var(0, correction=1), linear.var(0, correction=1)
    return (drawn + slope.square() * (known - of_linear)).clamp(min=0)
