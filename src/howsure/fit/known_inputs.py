"""Known inputs, and the scores of held-out inputs that took no part in them.

Known are unlabelled inputs of the kind that the network was trained on, or, where there are none,
the held-out inputs in folds: no input is compared with itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from howsure.fit.folds import FEWEST, FOLDS, Batches, CrossFit, folds_of
from howsure.fit.inputs import check_finite, unseen_inputs
from howsure.fit.known_activations import (
    Gathered,
    NoDistancesError,
    Watched,
    centers_of,
    cross_fit_distances,
    log_distances,
)
from howsure.methods.activations import Activations, read_layers, summarize_inputs
from howsure.methods.gradients import (
    NoGradientsError,
    cannot_use,
    examine,
    examine_at_input,
)
from howsure.methods.sampling import noise_sampling
from howsure.posterior.distances import Distances, InputRange
from howsure.posterior.laplace import RIDGE, RIDGE_OF_FEW, Gram, Posterior, one_for_zero
from howsure.posterior.local_error import Kernel, LocalError
from howsure.posterior.variance_model import Scores
from howsure.problem import Probe
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import TensorTree

# Known inputs of a table that the Gaussian process keeps.
MOST_POINTS = 5000


def wrong_targets(target: Tensor, shape: torch.Size) -> ValueError:
    """The error for targets that are not of the predictions' shape."""
    hint = ""
    if not target.is_floating_point() and 2 * target.numel() <= shape.numel():
        hint = ' If they are class labels, wrap the model with `task="classification"`.'
    return ValueError(
        f"The targets have shape {tuple(target.shape)}, and the predictions {tuple(shape)}.{hint}"
    )


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out inputs with what their variance is made of.

    Attributes:
        scores: What the variance is made of.
        error: Squared errors, (inputs, outputs).
        target: The targets, (inputs, outputs).
    """

    scores: Scores
    error: Tensor
    target: Tensor

    @classmethod
    def of(cls, scores: Scores, target: Tensor, mean: Tensor) -> HeldOut:
        """A batch; an error if the targets do not fit the predictions."""
        if target.numel() != mean.numel() or len(target) != len(mean):
            raise wrong_targets(target, mean.shape)
        flat = target.to(mean.device).reshape(mean.shape).double()
        return cls(scores, squared_error(flat, mean), flat)

    @staticmethod
    def joined(parts: Sequence[HeldOut]) -> HeldOut:
        """All inputs of several batches; an error if there is none to learn from."""
        scores = Scores.joined([part.scores for part in parts])
        error, target = (torch.cat([getattr(p, n) for p in parts]) for n in ("error", "target"))
        if not bool(error.any()):
            raise ValueError(
                "The held-out targets are the model's own predictions, up to rounding, so there is "
                "no error to learn from; give the true values."
            )
        return HeldOut(scores, error, target)


def squared_error(target: Tensor, mean: Tensor) -> Tensor:
    """In double precision; 0 where a target is the prediction up to the rounding of its type."""
    gap = (target.double() - mean.double()).abs()
    rounding = 4 * torch.finfo(mean.dtype).eps * mean.double().abs()
    return torch.where((gap <= rounding) & mean.isfinite(), 0.0, gap.square())


@dataclass(frozen=True, eq=False)
class Known:
    """The known inputs, for new inputs and for held-out ones that have taken part in them.

    Attributes:
        posterior: The posterior over multipliers; `None` if there is none.
        distances: Distances inside the network; `None` if there are none.
        input_range: The range of the inputs; `None` if the model part is left out.
        kernel: Those of a table as points of a Gaussian process; `None` if there are none.
        local_error: By labelled training rows, where there were any.
        count: The number of known inputs.
        note: Why there is no posterior, or nothing.
    """

    posterior: CrossFit[Posterior] | None = None
    distances: CrossFit[Distances] | None = None
    input_range: InputRange | None = None
    kernel: Kernel | None = None
    local_error: LocalError | None = None
    count: int = 0
    note: str = ""

    @property
    def is_cross_fitted(self) -> bool:
        """Whether the known inputs are the held-out ones, in folds."""
        fits = (self.posterior, self.distances)
        return any(fit is not None and fit.folds is not None for fit in fits)

    def score(
        self,
        setup: Setup,
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
            number: Of the batch, which says in which folds its inputs are.
            x: The inputs.
            target: Their targets.
            noisy: Whether gradients are averages over the noise, which has a variance; else they
                are those at the input itself, in one pass.
            probe: That of the batch of which these inputs are some rows, for one pass.
        """
        if not noisy and self.note:
            setup = setup.with_(noise=None)
        activations, z, features = None, None, None
        wanted = None if self.distances is None else self.distances.whole.wanted
        has_local_error = self.local_error is not None
        try:
            if self.note:
                mean, data = _sampled(setup, x)
            elif self.posterior is not None and (not noisy or setup.noise is None):
                at_input = examine_at_input(
                    setup, x, wanted or (), features=has_local_error, probe=probe
                )
                mean, data, z = at_input.mean, at_input.learned_var, at_input.slopes
                activations, features = at_input.activations, at_input.features
            else:
                watch = self.posterior is not None
                outcome = examine(setup, x, watch=watch, features=has_local_error)
                mean, data, features = outcome.mean, outcome.variances.data, outcome.features
                z = outcome.slopes if watch else None
        except NoGradientsError as error:
            raise cannot_use(str(error)) from error
        m = near = distances = kernel = None
        if self.posterior is not None and z is not None:
            m = self.posterior.score(
                len(z), number, lambda posterior, rows: posterior.predictive_variance(z[rows])
            )
        if self.local_error is not None and features is not None:
            near = self.local_error.at(features)
        if self.distances is not None:
            head = self.distances.whole.head
            if activations is None:
                activations, _ = read_layers(setup, x, wanted)
            distances = log_distances(self.distances, activations, number).exp()
            if self.kernel is not None and head is not None:
                kernel = self.kernel.variance(activations.inputs[head])
        beyond = None
        if self.input_range is not None:
            beyond = self.input_range.distance(summarize_inputs(x, setup.batch_dim))
        scores = Scores.of(
            mean,
            data,
            m,
            distances,
            beyond,
            None if near is None else near.error,
            None if near is None else near.squared_distance,
            kernel,
        )
        return HeldOut.of(scores, target, mean)


def _sampled(setup: Setup, x: object) -> tuple[Tensor, Tensor]:
    """Predictions and the sensor's variance by samples, (inputs, outputs)."""
    _, output = read_layers(setup, x, ())
    mean = _rows(setup, output)
    if setup.noise is None:
        return mean, torch.zeros_like(mean)
    sampled = noise_sampling(setup, x)
    is_mean = setup.prediction == "mean"
    return _rows(setup, sampled.mean) if is_mean else mean, _rows(setup, sampled.data_var)


def _rows(setup: Setup, output: object) -> Tensor:
    axis = setup.batch_dim
    tensors = [t.movedim(axis, 0) if axis else t for t in TensorTree(output).tensors]
    rows = 1 if axis is None else len(tensors[0])
    return torch.cat([t.reshape(rows, -1) for t in tensors], 1)


def gather_known(
    setup: Setup,
    batches: Batches,
    train_inputs: object,
    *,
    masks: bool = True,
    note: str = "",
    fewest: int = FEWEST,
    show: bool = False,
) -> Known:
    """What one pass over unlabelled inputs, or over the held-out ones in folds, shows.

    Args:
        setup: The model.
        batches: The held-out data.
        train_inputs: Unlabelled inputs; `None` takes the held-out ones in folds.
        masks: Whether there is a posterior over multipliers.
        note: Why there is none.
        fewest: How many unlabelled inputs are needed.
        show: Show progress.
    """
    watched = _watched(setup, batches[0][0])
    is_table = isinstance(batches[0][0], Tensor) and batches[0][0].dim() == 2
    is_training = train_inputs is not None
    parts = [_Part(watched) for _ in range(1 if is_training else FOLDS)]
    centers: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(setup.seed)
    scale, low, high, kept = None, None, None, []
    inputs = unseen_inputs(train_inputs, batches, setup) if is_training else [x for x, _ in batches]
    for number, x in enumerate(progress(inputs, show, "known inputs")):
        summary = summarize_inputs(x, setup.batch_dim)
        least = summary.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf).amin(0)
        most = summary.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax(0)
        low = least if low is None else torch.minimum(low, least)
        high = most if high is None else torch.maximum(high, most)
        fold = folds_of(len(summary), number) % len(parts)
        z: Tensor | None = None
        seen: Activations | None = None
        if masks:
            try:
                at_input = examine_at_input(setup, x, () if watched is None else watched.names)
            except NoGradientsError as error:
                raise cannot_use(str(error)) from error
            z, seen = at_input.slopes, at_input.activations
            check_finite([z], "gradients at training inputs")
            if scale is None:
                scale = one_for_zero(z.double().square().mean((0, 2)).sqrt())
        if watched is not None:
            if seen is None:
                seen, _ = read_layers(setup, x, watched.names)
            check_finite(seen.inputs.values(), "activations at training inputs")
            centers = centers or centers_of(seen, watched)
            if is_training and is_table and watched.head is not None:
                kept.append(seen.inputs[watched.head].float())
        for k, part in enumerate(parts):
            chosen = fold == k
            part.count += int(chosen.sum())
            if z is not None:
                part.gram.scale = scale
                part.gram.add(z[chosen.to(z.device)])
            if part.gathered is not None and seen is not None:
                part.gathered.add(seen.select(chosen.to(seen.logits.device)), centers, generator)
    count = sum(part.count for part in parts)
    if is_training and count < fewest:
        raise ValueError(
            f"There are {count} training inputs, and the posterior needs at least {fewest}, "
            "better some hundred."
        )
    assert low is not None and high is not None
    known = Known(input_range=InputRange.of(low, high), count=count, note=note)
    if masks:
        ridge, grams = RIDGE if is_training else RIDGE_OF_FEW, [part.gram for part in parts]
        posterior = CrossFit.of(grams, lambda group: reduce(add, group).posterior(ridge))
        known = replace(known, posterior=posterior)
    if watched is not None:
        gathered = [part.gathered for part in parts if part.gathered is not None]
        known = replace(known, distances=cross_fit_distances(gathered))
    if kept:
        features = torch.cat(kept)
        if len(features) > MOST_POINTS:
            features = features[torch.randperm(len(features), generator=generator)[:MOST_POINTS]]
        known = replace(known, kernel=Kernel.of(features))
    return known


class _Part:
    """What is gathered from the known inputs of a fold."""

    def __init__(self, watched: Watched | None) -> None:
        self.gram = Gram()
        self.gathered = None if watched is None else Gathered(watched)
        self.count = 0


def _watched(setup: Setup, x: object) -> Watched | None:
    """The layers whose inputs have distances; `None` if there are none."""
    if setup.batch_dim is None:
        return None
    try:
        watched = Watched.of(setup, x, lambda setup, x: read_layers(setup, x)[0])
    except NoDistancesError:
        return None
    return watched if watched.names else None
