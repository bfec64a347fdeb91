"""Known inputs, and the scores of held-out inputs that took no part in them.

Known are unlabeled inputs of the kind that the network was trained on, or, where there are none,
the held-out inputs in folds: no input is compared with itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.arrays import BATCH, batched
from howsure.fit.held_out import (
    Batches,
    check_finite,
    check_same_kind,
    pairs_of,
    rows_in_front,
    unseen_inputs,
)
from howsure.methods.activations import read, summarize_inputs
from howsure.methods.gradients import check_probe, examine, examine_at_input, plain_pass
from howsure.methods.modeled import flat_rows, score_inputs
from howsure.methods.sampling import noise_sampling
from howsure.posterior.cross_fit import FOLDS, CrossFit, split
from howsure.posterior.distances import InputRange, KnownActivations, distances_of
from howsure.posterior.laplace import Gram, output_scale, posterior_of
from howsure.posterior.local_error import NEIGHBORS, Kernel, LocalError
from howsure.posterior.scores import Known
from howsure.posterior.variance_fit import HeldOut
from howsure.probe import probe_gradients
from howsure.problem import Probe, Problem, Sources
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import map_leaves, tensors_of

# Known inputs that are needed, unless said otherwise.
FEWEST = 50
# Rows of tables that are kept; a random choice of them, the same for the same data, of more.
MOST_ROWS = 5000
# Layers that are looked at, spread evenly over those that the network has.
MOST_LAYERS = 32
ROWS_MIX = "the rows of a batch influence each other"
NO_LAYERS = "The temperature is the same for all inputs: no layer activations could be recorded."
NO_HEAD = (
    "The temperature depends on the Mahalanobis distance alone: no linear layer or 1 x 1 "
    "convolution returns the logits, so nearest neighbors cannot be used."
)


class NoDistancesError(ValueError):
    """Inputs have no distances of their own, for the reason given."""


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers whose inputs have distances.

    Attributes:
        layers: Those that have a row for every input.
        head: The one that makes the outputs; `None` if there is none.
        notes: What a user should know about them.
    """

    layers: tuple[str, ...] = ()
    head: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, setup: Setup, x: object) -> Layers:
        """The layers of a model, found by a pass with all inputs of a batch and one with fewer.

        A layer counts if it says the same about an input whatever the others are: then it has a
        row for every input, and no other axis that happens to be as long.
        """
        every = read(setup, x)
        rows, axis = len(every.logits), setup.batch_dim or 0
        kept = slice(0, rows - 1) if rows > 1 else torch.zeros(2, dtype=torch.long)

        def choose(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or leaf.dim() <= axis:
                return leaf
            return leaf.movedim(axis, 0)[kept].movedim(0, axis)

        try:
            fewer = read(setup, map_leaves(choose, x))
        except Exception as error:  # A model for its own batch size can fail in any way.
            raise NoDistancesError(ROWS_MIX) from error
        if not _same(every.logits[kept], fewer.logits):
            raise NoDistancesError(ROWS_MIX)
        pairs = every.inputs.items()
        names = [n for n, inputs in pairs if _same(inputs[kept], fewer.inputs.get(n))]
        if not names:
            return cls(notes=(NO_LAYERS,))
        if every.logits.dim() > 2:  # Neighbors of an image as a whole say little about its pixels.
            return cls(_spread(names))
        # Of layers whose input is an average over places without the first half: early averages
        # are colors and brightness, which change without any harm to the classes.
        early = [name for name in names if name in every.averaged]
        later = [name for name in names if name not in early[: len(early) // 2]]
        # The head is the last layer whose output are the logits; else the last with as many.
        logits = every.logits.reshape(len(every.logits), -1)
        outputs = {n: out for n, out in every.outputs.items() if n in names}
        fitting = [n for n, out in outputs.items() if out.shape == logits.shape]
        exact = [n for n in fitting if _same(outputs[n], logits.to(outputs[n]))]
        head = next(reversed(exact or fitting), None)
        return cls(_spread(later), head, () if head else (NO_HEAD,))

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.layers, *([] if self.head is None else [self.head]))


def _same(one: Tensor, two: Tensor | None) -> bool:
    """Whether two sets of rows are equal but for the rounding of other batch sizes."""
    if two is None or one.shape != two.shape:
        return False
    scale = float(one.abs().max()) if one.numel() else 0.0
    return bool(torch.allclose(one, two, rtol=1e-2, atol=1e-3 * scale))


def _spread(names: Sequence[str]) -> tuple[str, ...]:
    """At most `MOST_LAYERS` of them, spread evenly."""
    chosen = torch.linspace(0, len(names) - 1, min(len(names), MOST_LAYERS)).round()
    return tuple(names[int(k)] for k in chosen)


def known_inputs(
    setup: Setup, batches: Batches, train_inputs: object, label: str, *, show: bool
) -> Iterator[tuple[int, Any]]:
    """Batches of unlabeled inputs, or of the held-out ones, with their numbers."""
    held_out = [x for x, _ in batches]
    inputs = held_out if train_inputs is None else unseen_inputs(train_inputs, batches, setup)
    yield from enumerate(progress(inputs, show, label))


def gather_known(
    setup: Setup,
    layers: Layers,
    batches: Batches,
    train_inputs: object,
    *,
    gradients: bool,
    fewest: int = FEWEST,
    show: bool = False,
) -> Known:
    """What one pass over unlabeled inputs, or over the held-out ones in folds, shows.

    Args:
        setup: The model.
        layers: The layers whose inputs have distances.
        batches: The held-out data.
        train_inputs: Unlabeled inputs; `None` takes the held-out ones in folds.
        gradients: Whether there is a posterior over multipliers.
        fewest: How many unlabeled inputs are needed.
        show: Show progress.
    """
    first, is_training = batches[0][0], train_inputs is not None
    has_kernel = is_training and isinstance(first, Tensor) and first.dim() == 2
    has_kernel = has_kernel and setup.task == "regression"
    kind, folds = ("training", 1) if is_training else ("held-out", FOLDS)
    generator = torch.Generator().manual_seed(setup.seed)
    count, low, high = 0, torch.tensor(math.inf), torch.tensor(-math.inf)
    grams: list[Gram] = []
    layer_sums: list[KnownActivations] = []
    rows_of_table: list[Tensor] = []
    for number, x in known_inputs(setup, batches, train_inputs, "known inputs", show=show):
        summary = summarize_inputs(x, setup.batch_dim)
        count += len(summary)
        # Numbers that are not finite say nothing of the range.
        low = low.to(summary).minimum(_finite_or(summary, math.inf).amin(0))
        high = high.to(summary).maximum(_finite_or(summary, -math.inf).amax(0))
        inputs: dict[str, Tensor] = {}
        if gradients:
            at_input = examine_at_input(setup, x, layers.names)
            z, inputs = at_input.slopes, at_input.activations
            check_finite([z], f"gradients at {kind} inputs")
            # All folds have the scale of one batch, and below the centers of one.
            grams = grams or [Gram(output_scale(z)) for _ in range(folds)]
            for gram, rows in split(len(z), number, grams):
                gram.add(z[rows.to(z.device)])
        if layers.names:
            inputs = inputs or read(setup, x, layers.names).inputs
            check_finite(inputs.values(), f"activations at {kind} inputs")
            layer_sums = layer_sums or [
                KnownActivations(layers.layers, layers.head, inputs) for _ in range(folds)
            ]
            for part, rows in split(len(inputs[layers.names[0]]), number, layer_sums):
                part.add(inputs, rows, generator)
            if has_kernel and layers.head is not None:
                rows_of_table.append(inputs[layers.head].float())
    if is_training and count < fewest:
        raise ValueError(
            f"`train_inputs` has {count} inputs, and a fit needs at least {fewest}, "
            "better a few hundred."
        )
    kernel = None
    if rows_of_table:
        features = torch.cat(rows_of_table)
        if len(features) > MOST_ROWS:
            features = features[torch.randperm(len(features), generator=generator)[:MOST_ROWS]]
        kernel = Kernel.of(features)
    return Known(
        posterior=CrossFit.of(grams, posterior_of) if grams else None,
        distances=CrossFit.of(layer_sums, distances_of) if layer_sums else None,
        input_range=InputRange.of(low, high),
        kernel=kernel,
        count=count,
    )


def _finite_or(numbers: Tensor, other: float) -> Tensor:
    return numbers.nan_to_num(nan=other, posinf=other, neginf=other)


def layers_of(setup: Setup, x: object) -> Layers:
    """The layers whose inputs have distances, if there are any."""
    try:
        return Layers() if setup.batch_dim is None else Layers.of(setup, x)
    except NoDistancesError:
        return Layers()


def score_held_out(
    setup: Setup,
    known: Known,
    number: int,
    x: object,
    target: Tensor,
    *,
    noisy: bool = True,
    probe: Probe | None = None,
) -> HeldOut:
    """A held-out batch, each input by known ones of which it is none.

    Args:
        setup: The model.
        known: The known inputs.
        number: Of the batch, which says in which folds its inputs are.
        x: The inputs.
        target: Their targets.
        noisy: Whether gradients are averages over the noise, which has a variance; else they are
            those at the input itself, in one pass.
        probe: That of the batch of which these inputs are some rows, for one pass.
    """
    activations, z, features = None, None, None
    watch, has_local_error = known.posterior is not None, known.local_error is not None
    if known.note:
        mean, data = _sampled(setup if noisy else setup.replace(noise=None), x)
    elif watch and (not noisy or setup.noise is None):
        at_input = examine_at_input(setup, x, known.layers, features=has_local_error, probe=probe)
        mean, data, z = at_input.mean, at_input.learned_var, at_input.slopes
        activations, features = at_input.activations, at_input.features
    else:
        outcome = examine(setup, x, watch=watch, features=has_local_error)
        mean, data, features = outcome.mean, outcome.variances.data, outcome.features
        z = outcome.slopes
    scores = score_inputs(
        setup,
        known,
        x,
        mean,
        data,
        z=z,
        features=features,
        activations=activations,
        number=number,
    )
    return HeldOut.of(scores, target, mean)


def _sampled(setup: Setup, x: object) -> tuple[Tensor, Tensor]:
    """Predictions and the sensor's variance by samples, (inputs, outputs)."""
    mean = flat_rows(setup, read(setup, x, ()).output)
    if setup.noise is None:
        return mean, torch.zeros_like(mean)
    sampled = noise_sampling(setup, x)
    is_mean = setup.prediction == "mean"
    return flat_rows(setup, sampled.mean) if is_mean else mean, flat_rows(setup, sampled.data_var)


def labeled(train: object) -> Iterable[object]:
    """Batches (inputs, targets) that can be gone through more than once.

    From a pair of all inputs and all targets, a data set, or a loader.
    """
    if isinstance(train, tuple) and len(train) == 2 and isinstance(train[1], Tensor | np.ndarray):
        inputs, targets = train[0], torch.as_tensor(train[1])
        if not isinstance(inputs, Tensor | np.ndarray):
            return [(inputs, targets)]
        if len(inputs) != len(targets):
            raise ValueError(f"`train` has {len(inputs)} inputs and {len(targets)} targets.")
        starts = range(0, len(targets), BATCH)
        return [(inputs[i : i + BATCH], targets[i : i + BATCH]) for i in starts]
    train = batched(train)
    if isinstance(train, Iterator):
        return list(train)
    if isinstance(train, Tensor | np.ndarray) or not isinstance(train, Iterable):
        raise TypeError(
            "`train` must be a pair (inputs, targets), a data set or a loader of such pairs, not "
            f"a {type(train).__name__}; inputs without targets are `train_inputs`."
        )
    return train


def local_error(setup: Setup, held_out: Batches, train: Iterable[object]) -> LocalError:
    """The local error by at most `MOST_ROWS` training rows, scaled by the held-out error."""
    generator = torch.Generator().manual_seed(setup.seed)
    kept: list[Tensor] = []
    for x, y in pairs_of(train, "training", setup.model):
        check_same_kind(x, held_out[0][0], setup.batch_dim)
        y = rows_in_front(y, setup.batch_dim or 0)
        features, squared = _residuals(setup, x, y, "training")
        new = [torch.rand(len(squared), generator=generator), features, squared]
        kept = [torch.cat(both) for both in zip(kept, new, strict=True)] if kept else new
        if len(kept[0]) > MOST_ROWS:
            # The rows with the smallest random numbers are a fair choice of all until now.
            first = kept[0].argsort(stable=True)[:MOST_ROWS]
            kept = [part[first] for part in kept]
    _, features, squared = kept
    if len(squared) <= NEIGHBORS:
        raise ValueError(
            f"`train` has {len(squared)} rows, and the local error looks at {NEIGHBORS} "
            "neighbors; give more, or leave it out."
        )
    errors = torch.cat([_residuals(setup, x, y, "held-out")[1] for x, y in held_out])
    return LocalError.of(features, squared, errors.mean(0))


def _residuals(setup: Setup, x: object, target: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """What enters the last linear layer, and the squared residuals, of a batch."""
    check_finite((*tensors_of(x), target), f"{kind} rows")
    probe = setup.with_unit_multipliers(x).cached(probe_gradients, x)
    check_probe(setup, probe, watch=True)
    problem = Problem(setup, x, probe, Sources.of(setup, x, probe.layout, watch=True))
    mean, features = plain_pass(problem, features=True)
    assert features is not None
    if target.numel() != mean.numel() or len(target) != len(mean):
        raise ValueError(
            f"The {kind} targets have shape {tuple(target.shape)}, and the model predicts "
            f"{mean.shape[1]} numbers for each of {len(mean)} inputs."
        )
    residuals = target.to(mean.device).reshape(mean.shape).double() - mean.double()
    check_finite((residuals, features), f"{kind} rows")
    return features.float(), residuals.square()
