"""Around a long computation: a progress bar, eval mode for a while, memory that is kept."""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from torch import nn

Item = TypeVar("Item")

# Seconds after which a user wonders.
SLOW = 2.0
# A little below 32 MB, the largest block from which the GNU C library learns.
_BYTES = 32 * 2**20 - 2**16


def progress(items: Iterable[Item], show: bool, label: str) -> Iterable[Item]:
    """The items, with a bar on stderr if it is wanted; without `tqdm`, one plain line."""
    if not show:
        return items
    if importlib.util.find_spec("tqdm") is None:
        return _counted(items, label)
    from tqdm.auto import tqdm

    return tqdm(items, desc=label, leave=False, dynamic_ncols=True)


def _counted(items: Iterable[Item], label: str) -> Iterator[Item]:
    """The items; a line on stderr says how many are done and how long the rest will take.

    It is written at most once a second.
    """
    count = len(items) if isinstance(items, Sized) else None
    start = time.monotonic()
    printed = 0.0
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - printed >= 1:
            printed = now
            words = f"{label}: {done}" + ("" if count is None else f" of {count}")
            if count is not None and done:
                words += f", about {(now - start) / done * (count - done):.0f} s left"
            print(f"\r{words:<60}", end="", file=sys.stderr, flush=True)
        yield item
    print(f"\r{f'{label}: done':<60}", file=sys.stderr)


@contextmanager
def say_if_slow(sentence: str) -> Iterator[None]:
    """One line of the log, by default on stderr, where what is inside takes over two seconds."""
    timer = threading.Timer(SLOW, logging.getLogger("howsure").warning, (sentence,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Puts every module in eval mode, and on leaving, also by an exception, back in its own."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@functools.cache
def warm_up_allocator() -> None:
    """Frees one large block, once per process, after which the allocator keeps freed memory.

    The GNU C library returns memory to the system beyond twice the largest block that was ever
    freed. Without this, predictions of medium size fetch all their memory again in every call,
    page by page, which takes up to a third of their time. No memory is held, and no setting of
    the process is changed; other allocators ignore it.
    """
    np.empty(_BYTES, np.uint8)  # One of torch would be part of a graph that is being traced.
