"""Around a computation: eval mode for a while, memory that is kept, a progress bar."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from torch import nn

Item = TypeVar("Item")

# The largest block from which the GNU C library learns: 32 MB, a little below.
_BYTES = 32 * 2**20 - 2**16


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode, and each as it was before on leaving, also by an exception."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@functools.cache
def keep_freed_memory() -> None:
    """Frees one large block, once per process: an allocator that learns keeps more from then on.

    The GNU C library gives memory back to the system beyond twice the largest block that was ever
    freed. Without this, predictions of medium size fetch all their memory anew in every call,
    page by page, which takes up to a third of their time. Nothing is held, and no setting of the
    process is touched; other allocators take no notice.
    """
    np.empty(_BYTES, np.uint8)  # torch's would be part of a graph that is being traced


def progress(items: Iterable[Item], show: bool, label: str) -> Iterable[Item]:
    """The items, with a bar on stderr if one is wanted and `tqdm` is there."""
    if not show or importlib.util.find_spec("tqdm") is None:
        return items
    from tqdm.auto import tqdm

    return tqdm(items, desc=label, leave=False, dynamic_ncols=True)
