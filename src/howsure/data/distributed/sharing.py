"""Batches shared out between the processes of `torch.distributed`, and the rate search by all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from howsure.fit import Fit
from howsure.fit.options import WHOLE, Share
from howsure.uncertain import Uncertain

Result = TypeVar("Result")


def fit(sure: Uncertain, loader: Iterable[object], **options: Any) -> Fit:
    """Finds what `sure.fit` finds, each process working on its share of the batches.

    Every process must give the same model and the same loader, in the same order; each reads all
    batches, as `sure.fit` does, and runs the method on its own. Errors and variances of all are
    exchanged, so every process finds the same settings, and those that one process finds.
    """
    share = this_share()
    shown = options.pop("show_progress", True) and share.rank == 0
    found = sure.fit(loader, model="dropout", share=share, show_progress=shown, **options)
    assert isinstance(found, Fit)
    return found


def this_share() -> Share:
    """This process's share of the batches; all of them where there is one process."""
    if not distributed.is_available() or not distributed.is_initialized():
        return WHOLE
    return Share(distributed.get_rank(), distributed.get_world_size(), _gathered)


def _gathered(mine: list[Result]) -> list[list[Result]]:
    parts: list[list[Result]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(parts, mine)
    return parts


def sharded(loader: Iterable[object], share: Share) -> Iterable[object]:
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


def _check_order(loader: DataLoader[object]) -> None:
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
