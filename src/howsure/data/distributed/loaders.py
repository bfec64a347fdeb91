"""Loaders of which every process reads its own batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from howsure.fit.share import Share


def sharded(loader: Iterable[Any], share: Share) -> Iterable[Any]:
    """This process's batches of a loader.

    Batch `i` goes to process `i % size` and is the batch that one process would have, so nothing
    is padded, dropped or counted twice. Of a `DataLoader` the others' batches are not even read.
    """
    if share.size == 1:
        return loader
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return islice(iter(loader), share.rank, None, share.size)
    _check_order(loader)
    return DataLoader(
        loader.dataset,
        batch_sampler=_Every(loader.batch_sampler, share),  # pyright: ignore[reportArgumentType]
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
    )


def _check_order(loader: DataLoader[Any]) -> None:
    if loader.batch_sampler is None or not isinstance(loader.sampler, SequentialSampler):
        found = type(loader.sampler).__name__ if loader.batch_sampler else "no batches"
        raise ValueError(
            f"The loader has {found}; processes would not agree on its batches. Use "
            "`DataLoader(data, batch_size=..., shuffle=False)`, the same in every process; "
            "howsure shares out the batches itself."
        )


class _Every:
    """Every `size`-th of a loader's lists of indices."""

    def __init__(self, batches: Iterable[list[int]], share: Share) -> None:
        self.batches = batches
        self.share = share

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batches), self.share.rank, None, self.share.size)
