"""Batches in any form as pairs of inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

# Rows of a data set that are taken at once.
BATCH = 64
Choice = str | Sequence[str] | Callable[[Any], object]


def batched(loader: Any) -> Iterable[Any]:
    """The loader; a data set, which yields single rows, in batches."""
    has_rows = isinstance(loader, Dataset) and not hasattr(loader, "batch_size")
    is_rows = has_rows and not isinstance(loader, IterableDataset)
    rows: Any = loader
    return DataLoader(rows, batch_size=BATCH) if is_rows else rows


class batches:
    """A loader whose batches are dicts, or anything else, as pairs (inputs, targets).

    >>> held_out = hs.batches(loader, inputs="image", targets="angle")
    >>> sure.fit(held_out)

    It goes wherever a loader goes: `fit`, `calibrate`, `predict`, `audit`, a report. Without
    `targets` it has inputs alone.

    Args:
        loader: The batches, as often as it is asked for them.
        inputs: The name of the model's input in a batch; names of several, which are given to the
            model by keyword; or a function of the batch: what it returns is given to the model, a
            tuple by position, a dict by keyword.
        targets: The name of the targets, or a function of the batch.
    """

    def __init__(
        self,
        loader: Iterable[object],
        inputs: Choice,
        targets: str | Callable[[Any], object] | None = None,
    ) -> None:
        self.loader, self.inputs, self.targets = loader, inputs, targets

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Pairs, or tuples of the inputs alone."""
        for batch in batched(self.loader):
            inputs = _chosen(batch, self.inputs, "inputs")
            if self.targets is None:
                yield (inputs,)
            else:
                yield inputs, _chosen(batch, self.targets, "targets")


def _chosen(batch: object, choice: Choice, option: str) -> object:
    """What a name, several names or a function say about a batch."""
    if callable(choice):
        return choice(batch)
    if isinstance(choice, str):
        return _part(batch, choice, option)
    return {name: _part(batch, name, option) for name in choice}


def _part(batch: object, name: str, option: str) -> object:
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"`{option}={name!r}` is a key, but a batch is a {type(batch).__name__}, not a dict; "
            f"give a function of it: `{option}=lambda batch: batch[0]`."
        )
    if name not in batch:
        raise ValueError(f"`{option}`: a batch has no {name!r}; it has {list(batch)}.")
    return batch[name]
