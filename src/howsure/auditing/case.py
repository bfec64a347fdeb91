"""What is audited: a setup and inputs, the outputs that are compared, and the plain network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.methods.passes import Pass, no_gradients
from howsure.multipliers import Placement
from howsure.prediction import as_args
from howsure.probe import probe_model
from howsure.problem import Layout, Probe, Problem
from howsure.setup import Setup
from howsure.trees import TensorTree, batch_size, map_leaves, tensors_of

# Pairs of input and output that are compared; of dense outputs a random choice is.
MOST_PAIRS = 2048
# Input elements that run together: activations and gradients take some thousand times as much.
_ELEMENTS = 2**16


def gather_inputs(data: object, most: int) -> object:
    """At most `most` inputs as one batch, in the form that the model takes.

    `data` is a tensor, a dict of keyword arguments, or a loader of batches: inputs alone, or
    (inputs, targets), of which the targets are left aside.
    """
    if not isinstance(most, int) or most < 1:
        raise ValueError(f"`inputs` must be a whole number of at least 1, not {most!r}.")
    if not isinstance(data, Iterable):
        raise TypeError(
            f"`data` is a {type(data).__name__}; give a tensor of inputs, or a loader of batches."
        )
    batches: list[object] = []
    sizes: list[int] = []
    for batch in [(data,)] if isinstance(data, (Tensor, Mapping)) else map(as_args, data):
        x = batch[0] if len(batch) == 1 else batch
        batches.append(select_rows(x, batch_size(x), slice(most - sum(sizes))))
        sizes.append(batch_size(batches[-1]))
        if sum(sizes) >= most:
            break
    if not sum(sizes):
        raise ValueError("There are no inputs to audit with; the data is empty.")
    if len(batches) == 1:
        return batches[0]

    def join(*parts: Any) -> object:
        have_rows = all(_has_rows(part, size) for part, size in zip(parts, sizes, strict=True))
        return torch.cat(parts) if have_rows else parts[0]

    try:
        return map_leaves(join, *batches)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            "The batches of the data do not fit together. Several inputs of one call go into a "
            "tuple inside a batch: `audit(model, [((x, h), targets)])`."
        ) from error


def select_rows(x: object, batch: int, rows: slice) -> object:
    """Some inputs of a batch, or their variances; tensors without a row for each are shared."""
    return map_leaves(lambda leaf: leaf[rows] if _has_rows(leaf, batch) else leaf, x)


def _has_rows(leaf: object, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch


@dataclass(frozen=True, eq=False)
class Case:
    """One batch of inputs, with noise, dropout or both.

    Attributes:
        setup: Model, noise and rate; independent noise is a variance for every element.
        x: The inputs.
        probe: How the model can be run.
        outputs: How many outputs each input has.
        columns: The outputs that are compared, as flat indices.
        plain: The plain network's outputs, (inputs, columns).
    """

    setup: Setup
    x: object
    probe: Probe
    outputs: int
    columns: Tensor
    plain: Tensor

    @classmethod
    def of(cls, setup: Setup, x: object, seed: int) -> Case:
        """The case; an error if there is nothing to audit or the network itself fails."""
        setup.check_eval_mode()
        if setup.batch_dim != 0:
            raise ValueError(
                "An audit compares inputs, which must be on the first axis (`batch_dim=0`), not on "
                f"`batch_dim={setup.batch_dim}`; wrap the model in one that moves the axis."
            )
        setup = setup.with_(noise=_noise(setup, x), rate=_rates(setup, x))
        if setup.noise is None and setup.rate is None:
            raise ValueError(
                "There is nothing to audit: the noise is 0 and no dropout rate is given. Give the "
                "sensor's `noise` (a number is a variance), a dropout `rate`, or both."
            )
        with no_gradients():
            tensors = Pass(setup, x).plain()
        _check_outputs(tensors, batch_size(x))
        probe = setup.once(probe_model, x)
        if setup.rate is not None:
            # Masks of their own for all inputs, unless the model is such that they share them.
            setup = setup.with_(shared_masks=probe.layout is Layout.SINGLE)
        flat = _flatten(setup, tensors)
        outputs, most = flat.shape[1], max(1, MOST_PAIRS // batch_size(x))
        columns = torch.arange(outputs)
        if outputs > most:
            chosen = np.random.default_rng(seed).choice(outputs, most, replace=False)
            columns = torch.from_numpy(np.sort(chosen))
        return cls(setup, x, probe, outputs, columns, flat[:, columns])

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return batch_size(self.x)

    @property
    def has_noise(self) -> bool:
        """Whether the inputs have noise."""
        return self.setup.noise is not None

    @property
    def has_dropout(self) -> bool:
        """Whether units are dropped."""
        return self.setup.rate is not None

    @property
    def rounding(self) -> float:
        """Relative rounding error of the outputs' type."""
        return torch.finfo(self.plain.dtype).eps

    def pieces(self) -> Iterator[tuple[Setup, object]]:
        """The inputs in pieces that fit the memory of every method, each with its setup."""
        elements = sum(tensor.numel() for tensor in TensorTree(self.x).tensors)
        size = max(1, _ELEMENTS * self.inputs // max(1, elements))
        noise = self.setup.noise
        for start in range(0, self.inputs, size):
            rows = slice(start, start + size)
            if not self.setup.has_correlated_noise:
                noise = select_rows(self.setup.noise, self.inputs, rows)
            yield self.setup.with_(noise=noise), select_rows(self.x, self.inputs, rows)

    def select(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:  # (batch, columns)
        """The compared outputs out of all tensors of an output."""
        return _flatten(self.setup, tensors)[:, self.columns]

    def problem(self, seed: int, *, masks: bool = True) -> Problem:
        """The model at the inputs, to be sampled with this seed; each input has its own noise."""
        setup = self.setup.with_(seed=seed)
        if not self.has_dropout or not masks:
            setup = setup.with_(rate=None, placement=Placement(), shared_masks=False)
        problem = Problem(setup, self.x, self.probe)
        problem.finish = Pass(setup, self.x).finished
        return problem


def _flatten(setup: Setup, tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """All outputs of an input in one row; for classification the probabilities alone."""
    compared = tensors[:1] if setup.task != "regression" else tensors
    return torch.cat([tensor.reshape(tensor.shape[0], -1) for tensor in compared], 1)


def _noise(setup: Setup, x: object) -> Any:
    """The variance of every element, so that rows can be taken; `None` for no noise.

    Correlated noise stays what it is.
    """
    if setup.has_correlated_noise:
        return setup.noise
    variance = setup.variance(x)
    if variance is None or not any(bool((var > 0).any()) for var in tensors_of(variance)):
        return None
    return map_leaves(lambda t, var: None if var is None else var.expand(t.shape), x, variance)


def _rates(setup: Setup, x: object) -> tuple[float, ...] | None:
    """One rate per site; `None` for no dropout. The placement "existing" brings its own rates."""
    if setup.rate == 0 or (setup.rate is None and setup.placement.kind != "existing"):
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
