"""What is audited: a setup and inputs, the outputs that are compared, and the plain network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from howsure.auditing.inputs import any_noise, first_rows, full_variance, rows_of
from howsure.methods.passes import Pass, no_gradients
from howsure.multipliers import Multiply, Site, draw_uniforms, masks
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.trees import TensorTree, batch_size, map_leaves

# Pairs of input and output that are compared; of dense outputs a random choice is.
MOST_PAIRS = 2048
# Input elements that run together: activations and gradients take some thousand times as much.
_ELEMENTS = 2**16


@dataclass(frozen=True, eq=False)
class Case:
    """One batch of inputs, with noise, dropout or both.

    Attributes:
        setup: Model, noise and rate; the noise is a variance for every element of the inputs.
        x: The inputs.
        inputs: How many.
        outputs: How many outputs each has.
        chosen: The outputs that are compared, as flat indices.
        plain: The plain network's outputs, (inputs, chosen).
        rounding: Relative rounding error of the outputs' type.
    """

    setup: Setup
    x: object
    inputs: int
    outputs: int
    chosen: Tensor
    plain: Tensor
    rounding: float

    @property
    def noisy(self) -> bool:
        """Whether the inputs have noise."""
        return self.setup.noise is not None

    @property
    def dropped(self) -> bool:
        """Whether the model has dropout."""
        return self.setup.rate is not None

    def pieces(self) -> Iterator[tuple[Setup, object]]:
        """The inputs in pieces that fit the memory of every method, each with its setup."""
        elements = sum(tensor.numel() for tensor in TensorTree(self.x).tensors)
        rows = max(1, _ELEMENTS * self.inputs // max(1, elements))
        for start in range(0, self.inputs, rows):
            some = slice(start, start + rows)
            noise = rows_of(self.setup.noise, self.inputs, some)
            yield self.setup.with_(noise=noise), rows_of(self.x, self.inputs, some)

    def picked(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:  # (batch, chosen)
        """The compared outputs out of all tensors of an output."""
        return _flat(self.setup, tensors)[:, self.chosen]

    def compared(self, prediction: Prediction, name: str) -> Tensor:  # (batch, chosen)
        """A field of a prediction at the compared outputs."""
        return self.picked(TensorTree(getattr(prediction, name)).tensors).detach()


def case_of(setup: Setup, x: object, seed: int) -> Case:
    """The case; an error if there is nothing to audit or the network itself fails."""
    setup.check_eval_mode()
    if setup.batch_dim != 0:
        raise ValueError(
            "An audit compares inputs, which must be on the first axis (`batch_dim=0`), not on "
            f"`batch_dim={setup.batch_dim}`; wrap the model in one that moves the axis."
        )
    setup = setup.with_(noise=_noise(setup, x), rate=_rate(setup, x))
    if setup.noise is None and setup.rate is None:
        raise ValueError(
            "There is nothing to audit: the noise is 0 and no dropout rate is given. Give the "
            "sensor's `noise` (a number is a variance), a dropout `rate`, or both."
        )
    if setup.rate is not None:
        setup = setup.with_(shared_masks=not fit_each_input(setup, x))
    with no_gradients():
        outputs = Pass(setup, x).plain()
    inputs = batch_size(x)
    _check_outputs(outputs, inputs)
    flat = _flat(setup, outputs)
    chosen = _chosen(flat.shape[1], max(1, MOST_PAIRS // inputs), seed)
    rounding = torch.finfo(flat.dtype).eps
    return Case(setup, x, inputs, flat.shape[1], chosen, flat[:, chosen], rounding)


def _flat(setup: Setup, tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """All outputs of an input in one row; for classification the probabilities alone."""
    compared = tensors[:1] if setup.task == "classification" else tensors
    return torch.cat([tensor.reshape(tensor.shape[0], -1) for tensor in compared], 1)


def _noise(setup: Setup, x: object) -> object:
    variance = full_variance(setup.variance(x), x)
    return variance if any_noise(variance) else None


def _rate(setup: Setup, x: object) -> tuple[float, ...] | None:
    """One rate per site; `None` for no dropout. The placement "existing" brings its own rates."""
    if setup.rate is None and setup.placement.kind != "existing":
        return None
    if setup.rate == 0:
        return None
    rates = setup.rates(setup.sites(x))
    return rates if any(rates) else None


def _check_outputs(outputs: tuple[Tensor, ...], inputs: int) -> None:
    if not outputs:
        raise ValueError("The model returns no floating-point tensor; there is nothing to compare.")
    for output in outputs:
        if output.dim() == 0 or output.shape[0] != inputs:
            raise ValueError(
                f"The model returns a tensor of shape {tuple(output.shape)} for {inputs} inputs; "
                "an audit compares inputs, so every output needs a first axis that counts them."
            )
        if not bool(output.isfinite().all()):
            raise ValueError("The plain network's output contains NaN or infinity.")


def _chosen(count: int, most: int, seed: int) -> Tensor:
    if count <= most:
        return torch.arange(count)
    found = np.random.default_rng(seed).choice(count, most, replace=False)
    return torch.from_numpy(np.sort(found))


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
    with no_gradients(), Multiply(setup.model, sites, chosen):
        return Pass(setup, x).plain()


def _half(setup: Setup, sites: tuple[Site, ...]) -> list[float]:
    """Half of the units are dropped where any are, so that a mixed-up mask shows."""
    return [0.5 if rate else 0.0 for rate in setup.rates(sites)]
