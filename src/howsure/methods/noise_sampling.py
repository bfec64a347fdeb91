"""Brute force: noise and masks sampled through the plain network. Right in the limit.

Each mask t sees two independent noises. data_var = 1/T sum_t (y_t1 - y_t2)**2 / 2 is unbiased for
the variance that the noise causes at fixed weights, and model_var = total - data_var.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsure.dropout import DropoutMode
from howsure.methods.combine import prediction, zeros_like_each
from howsure.methods.passes import Pass, no_gradients
from howsure.methods.sampling import has_active_sites, masks_of
from howsure.methods.setup import Setup
from howsure.noise import sample_of
from howsure.prediction import Prediction


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with its sampled variances; `samples` passes, paired if there are masks."""
    generator = torch.Generator().manual_seed(setup.seed)
    with no_gradients():
        if setup.rate is None or not has_active_sites(setup, x):
            run, first = _noisy_passes(setup, x, setup.samples, generator)
            means = [output.mean(0) for output in first]
            data = [output.var(0, correction=1) for output in first]
            return prediction(setup, run, means, data, zeros_like_each(data), samples=first[0])
        pairs = max(setup.samples // 2, 1)
        run, first = _noisy_passes(setup, x, pairs, generator, with_masks=True)
        _, second = _noisy_passes(setup, x, pairs, generator, with_masks=True)
        both = [torch.cat(pair) for pair in zip(first, second, strict=True)]
        means = [output.mean(0) for output in both]
        data, model = _split(first, second, both)
        return prediction(setup, run, means, data, model, samples=both[0])


def _split(
    first: list[Tensor], second: list[Tensor], both: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    data = [(a - b).square().mean(0) / 2 for a, b in zip(first, second, strict=True)]
    total = [output.var(0, correction=1) for output in both]
    # The difference of two estimates can be negative by chance; a variance is not.
    model = [(t - d).clamp(min=0) for t, d in zip(total, data, strict=True)]
    return data, model


def _noisy_passes(
    setup: Setup, x: Any, count: int, generator: torch.Generator, *, with_masks: bool = False
) -> tuple[Pass, list[Tensor]]:
    """Outputs of `count` plain passes, each with its own noise and, if asked, its own mask."""
    if count < 2:
        raise ValueError(
            "`samples` is too small for a variance; use at least 2, or 4 with dropout."
        )
    sites = setup.sites(x) if with_masks else ()
    drawn = masks_of(setup, sites, x) if with_masks else []
    rows, run = [], Pass(setup, x)
    for index in range(count):
        run = Pass(setup, sample_of(setup.noise, x, generator))
        chosen = [None if mask is None else mask[index] for mask in drawn]
        with DropoutMode(setup.model, sites, chosen):
            rows.append(run.plain())
    return run, [torch.stack(column) for column in zip(*rows, strict=True)]
