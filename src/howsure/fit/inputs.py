"""Unlabelled inputs in whatever form users have them, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from howsure.arrays import BATCH, as_tensors, batched
from howsure.setup import Setup
from howsure.trees import map_leaves, shape_key

# Held-out rows that are also training rows, as a share, from which they are not held out.
_SHARED = 0.2
# Training data whose rows can be compared at little cost.
_IN_MEMORY = (Tensor, np.ndarray, list, tuple, TensorDataset)


def repeatable(options: dict[str, object]) -> dict[str, object]:
    """The options of a fit, with training data that can be gone through more than once."""
    return {
        name: list(given) if name.startswith("train") and isinstance(given, Iterator) else given
        for name, given in options.items()
    }


def batches_of(inputs: Any) -> Iterator[object]:
    """Batches of inputs from a tensor, an array, a data set or a loader.

    Of pairs (inputs, targets) the inputs. Several inputs come in batches ((x, h),).
    """
    if isinstance(inputs, Mapping):
        raise TypeError(
            "`train_inputs` is a dict; give batches of inputs as the model takes them: "
            "`train_inputs=[(inputs,)]`."
        )
    if isinstance(inputs, Tensor | np.ndarray):
        yield from (inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH))
        return
    for batch in batched(inputs):
        yield _without_targets(batch)


def _without_targets(batch: object) -> object:
    """The inputs of a batch; what a loader has collated from tuples is a list."""
    if isinstance(batch, list | tuple) and len(batch) in (1, 2):
        batch = batch[0]
    return tuple(batch) if isinstance(batch, list) else batch


def unseen_inputs(
    inputs: object, held_out: Sequence[tuple[object, Tensor]], setup: Setup
) -> Iterator[object]:
    """Batches of training inputs; an error where they are of another kind, or held out as well.

    Arrays become tensors in the type of the model, as held-out ones do.
    """
    known, shared = set().union(*(_fingerprints(x) for x, _ in held_out)), set[int]()
    for batch in batches_of(inputs):
        x = as_tensors(batch, setup.model) if isinstance(setup.model, nn.Module) else batch
        check_same_kind(x, held_out[0][0], setup.batch_dim)
        shared |= known & _fingerprints(x)
        yield x
    _refuse_shared_inputs(len(shared), len(known))


def are_copies(inputs: object, held_out: Sequence[tuple[object, Tensor]], setup: Setup) -> bool:
    """Whether held-out rows are equal to training rows, where these are in memory.

    A data set that reads files may take as long as a training epoch, and is not read for it.
    """
    data = getattr(inputs, "dataset", inputs)  # of a loader, or of a part of a data set
    if not isinstance(getattr(data, "dataset", data), _IN_MEMORY):
        return False
    known, shared = set().union(*(_fingerprints(x) for x, _ in held_out)), set[int]()
    with torch.random.fork_rng(devices=[]):  # A loader that shuffles draws the caller's numbers.
        for batch in batches_of(inputs):
            x = as_tensors(batch, setup.model) if isinstance(setup.model, nn.Module) else batch
            shared |= known & _fingerprints(x)
    return len(shared) > _SHARED * len(known)


def check_same_kind(given: object, held_out: object, axis: int | None) -> None:
    """An error if unlabelled inputs have other shapes than the held-out ones."""
    found, wanted = shape_key(given, without=axis), shape_key(held_out, without=axis)
    if found != wanted:
        raise ValueError(
            f"The training inputs are {found} for each input, and the held-out inputs are "
            f"{wanted}; prepare both in the same way."
        )


def check_finite(tensors: Iterable[Tensor], what: str) -> None:
    """An error if a number is NaN or infinite."""
    if not all(bool(each.isfinite().all()) for each in tensors):
        raise ValueError(f"Some {what} are NaN or infinite; leave them out.")


def _fingerprints(x: object) -> set[int]:
    """One number for the content of each row."""
    rows: list[bytes] = []

    def leaf(item: object) -> None:
        if isinstance(item, Tensor) and item.dim():
            # As bytes, since numpy does not know every type.
            flat = item.detach().cpu().reshape(len(item), -1).contiguous().view(torch.uint8)
            own = [row.tobytes() for row in flat.numpy()]
            rows[:] = [a + b for a, b in zip(rows or [b""] * len(own), own, strict=False)]

    map_leaves(leaf, x)
    return {hash(row) for row in rows}


def _refuse_shared_inputs(shared: int, count: int) -> None:
    """An error if held-out inputs are among the training inputs."""
    if shared > _SHARED * count:
        raise ValueError(
            f"{shared} of {count} held-out inputs are also among the training inputs. Errors on "
            "inputs that the network was trained on are too small; fit on inputs that it has not "
            "seen."
        )
