"""Memory that tensors free stays with the process, to be used again."""

from __future__ import annotations

import functools

import numpy as np

# The largest block from which the GNU C library learns: 32 MB, a little below.
_BYTES = 32 * 2**20 - 2**16


@functools.cache
def keep_freed_memory() -> None:
    """Frees one large block, once per process: an allocator that learns keeps more from then on.

    The GNU C library gives memory back to the system beyond twice the largest block that was ever
    freed. Without this, predictions of medium size fetch all their memory anew in every call,
    page by page, which takes up to a third of their time. Nothing is held, and no setting of the
    process is touched; other allocators take no notice.
    """
    np.empty(_BYTES, np.uint8)  # torch's would be part of a graph that is being traced
