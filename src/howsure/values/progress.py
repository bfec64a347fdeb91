"""Progress bars, where tqdm is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any


def progress(items: Iterable[Any], show: bool, label: str) -> Iterable[Any]:
    """The items, with a bar on stderr if one is wanted and `tqdm` is there."""
    if not show or importlib.util.find_spec("tqdm") is None:
        return items
    from tqdm.auto import tqdm

    return tqdm(items, desc=label, leave=False, dynamic_ncols=True)
