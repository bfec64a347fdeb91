"""What is audited, and its truth: a model at some inputs, the outputs compared, Monte Carlo."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.isolation import own_random_numbers
from howsure.methods.classified import class_outputs
from howsure.methods.propagation import Pass
from howsure.multipliers.sites import Placement
from howsure.prediction import as_args
from howsure.probe import probe_model
from howsure.problem import Layout, Probe, Problem
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import TensorTree, batch_size, map_leaves, tensors_of

# Pairs of input and output that are compared; of dense outputs a random choice is.
MOST_PAIRS = 2048
# Input elements that a method runs together: activations and gradients take some thousand times
# as much.
_PIECE = 2**16
# 2,000 samples give a std to 1.6 %, 100 to 7 %.
TARGET, LEAST = 2000, 100
# What remains of the time after Monte Carlo is for the intervals.
_END = 0.97
# Samples that run together: so many, or fewer where inputs or outputs are large.
_AT_ONCE, _ELEMENTS = 100, 2**20
# A part whose own std is known worse than this is left out.
_PRECISE = 0.3
# From this share of noise in the differences between true stds, they have no order to compare.
_UNORDERED = 0.5
# Masks and noise of the truth are other draws than those of any method.
_STREAM = 2**21


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

    def join(*parts: Any) -> object:
        have_rows = all(_has_rows(part, size) for part, size in zip(parts, sizes, strict=True))
        return torch.cat(parts) if have_rows else parts[0]

    try:
        return batches[0] if len(batches) == 1 else map_leaves(join, *batches)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            "The batches of the data do not fit together. Several inputs of one call go into a "
            "tuple inside a batch: `audit(model, [((x, h), targets)])`."
        ) from error


def select_rows(x: object, batch: int, rows: slice) -> Any:
    """Some inputs of a batch, or their variances; tensors without a row for each are shared."""
    return map_leaves(lambda leaf: leaf[rows] if _has_rows(leaf, batch) else leaf, x)


def _has_rows(leaf: object, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch


@dataclass(frozen=True, eq=False)
class Case:
    """One batch of inputs, with noise, dropout or both.

    Attributes:
        setup: Model, noise and rates, each `None` where there is none; independent noise is a
            variance for every element, so that rows can be taken.
        x: The inputs.
        inputs: How many there are.
        probe: How the model can be run.
        outputs: How many outputs each input has.
        columns: The outputs that are compared, as flat indices.
        plain: The plain network's outputs, (inputs, columns).
    """

    setup: Setup
    x: object
    inputs: int
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
                "An audit compares inputs, which must be on the first axis (`batch_dim=0`), not "
                f"on `batch_dim={setup.batch_dim}`; wrap the model in one that moves it there."
            )
        rates: tuple[float, ...] = ()
        # The placement "existing" brings its own rates.
        if setup.rate or (setup.rate is None and setup.placement.kind == "existing"):
            rates = setup.rates(setup.sites(x))
        setup = setup.replace(noise=_element_noise(setup, x), rate=rates if any(rates) else None)
        if setup.noise is None and setup.rate is None:
            raise ValueError(
                "There is nothing to audit: the noise is 0 and no dropout rate is given. Give the "
                "sensor's `noise` (a number is a variance), a dropout `rate`, or both."
            )
        inputs = batch_size(x)
        tensors = plain_pass(setup, x)
        _check_outputs(tensors, inputs)
        probe = setup.cached(probe_model, x)
        if setup.rate is not None:
            # Masks of their own for all inputs, unless the model is such that they share them.
            setup = setup.replace(shared_masks=probe.layout is Layout.SINGLE)
        flat = _flatten(setup, tensors)
        outputs, most = flat.shape[1], max(1, MOST_PAIRS // inputs)
        columns = torch.arange(outputs)
        if outputs > most:
            choice = np.random.default_rng(seed).choice(outputs, most, replace=False)
            columns = torch.from_numpy(np.sort(choice))
        return cls(setup, x, inputs, probe, outputs, columns, flat[:, columns])

    def pieces(self) -> Iterator[tuple[Setup, object]]:
        """The inputs in pieces that fit the memory of every method, each with its setup."""
        elements = sum(tensor.numel() for tensor in TensorTree(self.x).tensors)
        size = max(1, _PIECE * self.inputs // max(1, elements))
        noise = self.setup.noise
        for start in range(0, self.inputs, size):
            rows = slice(start, start + size)
            if not self.setup.has_correlated_noise:
                noise = select_rows(self.setup.noise, self.inputs, rows)
            yield self.setup.replace(noise=noise), select_rows(self.x, self.inputs, rows)

    def select(self, tensors: Iterable[Tensor]) -> Tensor:  # (inputs, columns)
        """The compared outputs out of all tensors of an output, in float64 on the CPU."""
        return _flatten(self.setup, tensors)[:, self.columns].detach().double().cpu()

    def problem(self, seed: int, *, masks: bool = True) -> Problem:
        """The model at the inputs, to be sampled with this seed; each input has its own noise."""
        setup = self.setup.replace(seed=seed)
        if setup.rate is None or not masks:
            setup = setup.replace(rate=None, placement=Placement(), shared_masks=False)
        problem = Problem(setup, self.x, self.probe)
        problem.finish = lambda output: class_outputs(output, setup.task)
        return problem


def _element_noise(setup: Setup, x: object) -> Any:
    """A variance for every element, or `None` for no noise; correlated noise stays what it is."""
    if setup.has_correlated_noise:
        return setup.noise
    variance = setup.variance(x)
    if not any(bool((var > 0).any()) for var in tensors_of(variance)):
        return None
    return map_leaves(lambda t, var: None if var is None else var.expand(t.shape), x, variance)


def plain_pass(setup: Setup, x: object) -> tuple[Tensor, ...]:
    """All outputs of the network itself."""
    with torch.no_grad():
        return Pass(setup, x).plain()


def _flatten(setup: Setup, tensors: Iterable[Tensor]) -> Tensor:
    """All outputs of an input in one row; for classification the probabilities alone."""
    compared = list(tensors)[: None if setup.task == "regression" else 1]
    return torch.cat([tensor.reshape(tensor.shape[0], -1) for tensor in compared], 1)


def _check_outputs(outputs: tuple[Tensor, ...], inputs: int) -> None:
    if not outputs:
        raise ValueError("The model returns no floating-point tensor; there is nothing to compare.")
    for output in outputs:
        if output.dim() == 0 or output.shape[0] != inputs:
            raise ValueError(
                f"The model returns a tensor of shape {tuple(output.shape)} for {inputs} inputs; "
                "an audit compares inputs, so the first axis of every output must be the batch."
            )
        if not bool(output.isfinite().all()):
            raise ValueError("The plain network's output contains NaN or infinity.")


class Clock:
    """Seconds since the audit began, against its time limit; `None` for no limit."""

    def __init__(self, limit: float | None) -> None:
        self.limit = math.inf if limit is None else limit
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return time.perf_counter() - self.start

    def past(self, share: float) -> bool:
        """Whether this share of the time is spent."""
        return self.seconds >= share * self.limit


@dataclass(frozen=True, eq=False)
class Spread:
    """A variance by sampling, as log(std) with its standard error; (inputs, outputs) each.

    Attributes:
        var: The variance.
        log_std: Logarithm of its root; NaN where it is no more than rounding.
        error: Standard error of log_std; NaN likewise.
    """

    var: Tensor
    log_std: Tensor
    error: Tensor

    @classmethod
    def of(cls, terms: Tensor, floor: Tensor, correction: Tensor | float = 0.0) -> Spread:
        """From independent terms whose mean, with a correction, is the variance."""
        var, error = terms.mean(0) + correction, terms.std(0) / len(terms) ** 0.5
        std = var.clamp(min=0).sqrt()
        constant = ~(std > floor)
        log_std, error = (t.masked_fill(constant, math.nan) for t in (std.log(), error / (2 * var)))
        return cls(var, log_std, error)

    @property
    def valid(self) -> Tensor:
        """Which pairs of input and output vary, and are compared."""
        return ~self.log_std.isnan()

    @property
    def typical_error(self) -> float:
        """Median standard error of log(std)."""
        return float(self.error[self.valid].median())

    @property
    def is_precise(self) -> bool:
        """Whether the std is known well enough to compare with it."""
        return float(self.valid.double().mean()) > 0.5 and self.typical_error < _PRECISE

    @property
    def has_order(self) -> bool:
        """Whether the stds differ by more than their own noise."""
        spread = float(self.log_std[self.valid].var(correction=0))
        return spread > 0 and float(self.error.square().nanmean()) < _UNORDERED * spread


@dataclass(frozen=True, eq=False)
class Truth:
    """The moments of the plain network with sampled noise and masks, with their own errors.

    Where both are random, pairs of samples share a mask: half their squared difference is data
    variance, the product of their deviations is model variance.

    Attributes:
        mean: Mean of the outputs, (inputs, outputs).
        mean_error: Its standard error.
        total: Total variance.
        data: What the noise causes; `None` unless there is noise and dropout.
        model: What the masks cause; likewise.
        samples: How many.
    """

    mean: Tensor
    mean_error: Tensor
    total: Spread
    data: Spread | None
    model: Spread | None
    samples: int

    @classmethod
    def of(cls, draws: Tensor, rounding: float = 0.0) -> Truth:  # (groups, 1 or 2, inputs, outputs)
        """The moments of samples, of which those of a group share their mask.

        What varies by no more than some relative rounding errors is constant.
        """
        groups, size = draws.shape[:2]
        if not bool(draws.isfinite().all()):
            raise ValueError(
                "The plain network's output contains NaN or infinity for noisy inputs."
            )
        mean, mean_var = draws.mean((0, 1)), draws.mean(1).var(0) / groups
        deviations, floor = draws - mean, 8 * rounding * mean.abs()
        # What the estimated mean takes away is the variance of that mean.
        total = Spread.of(deviations.square().mean(1), floor, mean_var)
        data = model = None
        if size == 2:
            data = Spread.of((draws[:, 0] - draws[:, 1]).square() / 2, floor)
            model = Spread.of(deviations[:, 0] * deviations[:, 1], floor, mean_var)
        return cls(mean, mean_var.sqrt(), total, data, model, groups * size)


def monte_carlo(case: Case, clock: Clock, *, samples: int | None, seed: int, show: bool) -> Truth:
    """The truth from exactly `samples` samples, or from as many as fit: at least 100."""
    seed = (seed + 1) * _STREAM
    size = case.problem(seed).group_size
    groups = (TARGET if samples is None else samples) // size
    inputs = sum(tensor.numel() for tensor in TensorTree(case.x).tensors)
    elements = max(1, inputs, case.inputs * case.outputs)
    at_once = max(1, min(_AT_ONCE, _ELEMENTS // elements) // size)
    chunks: list[Tensor] = []
    with torch.no_grad(), own_random_numbers(seed) if case.probe.is_random else nullcontext():
        for start in progress(range(0, groups, at_once), show, "audit: Monte Carlo"):
            if samples is None and start * size >= LEAST and clock.past(_END):
                break
            # A problem draws its masks from the first one on, hence a seed for each chunk.
            problem = case.problem(seed + start)
            draws = problem.draw(range(min(at_once, groups - start)))
            values = problem.run(draws.count, draws.noisy, draws.masks)
            outputs = torch.stack([case.select(problem.split(value)) for value in values])
            chunks.append(outputs.unflatten(0, (-1, size)))
    return Truth.of(torch.cat(chunks), torch.finfo(case.plain.dtype).eps)
