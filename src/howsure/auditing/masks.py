"""Whether every input can have its own dropout masks, found by a trial.

Own masks make the inputs independent, which intervals over inputs rely on. They do not fit where
all inputs of a batch share what a layer gives, such as an embedding of positions; then one mask
must serve all inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from howsure.auditing.inputs import first_rows
from howsure.masks import DropoutMode, Site, draw_uniforms, masks
from howsure.methods.passes import Pass, no_gradients
from howsure.setup import Setup
from howsure.values.trees import batch_size, map_leaves


def fit_each_input(setup: Setup, x: object) -> bool:
    """Whether two inputs with their own masks give the same in a batch of two and of three."""
    three = _three_times_first(x)
    try:
        few, more = (_outputs(setup, first_rows(three, count), count) for count in (2, 3))
    except (RuntimeError, ValueError):
        return False
    pairs = zip(few, more, strict=True)
    return all(
        a.shape == b[:2].shape and torch.allclose(a, b[:2], rtol=1e-3, atol=1e-5) for a, b in pairs
    )


def _three_times_first(x: object) -> object:
    """The first input three times; axes of other lengths are not touched."""
    batch = batch_size(x)

    def leaf(item: object) -> object:
        if not isinstance(item, Tensor) or item.dim() == 0 or item.shape[0] != batch:
            return item
        return torch.cat([item[:1]] * 3)

    return map_leaves(leaf, x)


def _outputs(setup: Setup, x: object, count: int) -> tuple[Tensor, ...]:
    sites = setup.sites(x)
    drawn = [uniform[:, :count] for uniform in draw_uniforms(sites, 1, setup.seed, batch=3)]
    chosen = [None if mask is None else mask[0] for mask in masks(drawn, _half(setup, sites))]
    with no_gradients(), DropoutMode(setup.model, sites, chosen):
        return Pass(setup, x).plain()


def _half(setup: Setup, sites: tuple[Site, ...]) -> list[float]:
    """Half of the units are dropped where any are, so that a mixed-up mask shows."""
    return [0.5 if rate else 0.0 for rate in setup.rates(sites)]
