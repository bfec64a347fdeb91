"""Labelled training rows, and the local error that they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from howsure.arrays import BATCH, batched
from howsure.fit.folds import Batches
from howsure.fit.inputs import check_finite, check_same_kind
from howsure.fit.validation_data import pairs_of, rows_in_front
from howsure.methods.gradients import NoGradientsError, cannot_use, check_probe, plain_pass
from howsure.posterior.local_error import NEIGHBOURS, LocalError
from howsure.probe import probe_gradients
from howsure.problem import Problem, Sources
from howsure.setup import Setup
from howsure.trees import tensors_of

# Rows that are kept; a random choice of them, the same for the same data, where there are more.
MOST_ROWS = 5000


def labelled(train: object) -> Iterable[object]:
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
    if isinstance(train, Dataset):
        return batched(train)
    if isinstance(train, Iterator):
        return list(train)
    if isinstance(train, Tensor | np.ndarray) or not isinstance(train, Iterable):
        raise TypeError(
            "`train` must be a pair (inputs, targets), a data set or a loader of such pairs, not "
            f"a {type(train).__name__}; inputs without targets are `train_inputs`."
        )
    return train


def local_error(setup: Setup, held_out: Batches, train: Iterable[object]) -> LocalError:
    """The local error by training rows, scaled by the error on held-out ones."""
    features, squared = _sampled(setup, held_out, train)
    if len(squared) <= NEIGHBOURS:
        raise ValueError(
            f"`train` has {len(squared)} rows, and the local error looks at {NEIGHBOURS} "
            "neighbours; give more, or leave it out."
        )
    errors = torch.cat([_residuals(setup, x, y, "held-out")[1] for x, y in held_out])
    return LocalError.of(features, squared, errors.mean(0))


def _sampled(setup: Setup, held_out: Batches, train: Iterable[object]) -> tuple[Tensor, Tensor]:
    """Features and squared residuals of at most `MOST_ROWS` rows."""
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
            kept = [each[first] for each in kept]
    return kept[1], kept[2]


def _residuals(setup: Setup, x: object, target: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """What enters the last linear layer, and the squared residuals, of a batch."""
    check_finite((*tensors_of(x), target), f"{kind} rows")
    probe = setup.watching(x).once(probe_gradients, x)
    try:
        check_probe(setup, probe, watch=True)
    except NoGradientsError as error:
        raise cannot_use(str(error)) from error
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
