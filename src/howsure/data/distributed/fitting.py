"""The rate search by several processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from howsure.data.distributed.processes import this_share
from howsure.fit import Fit
from howsure.uncertain import Uncertain


def fit(sure: Uncertain, loader: Iterable[Any], **options: Any) -> Fit:
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
