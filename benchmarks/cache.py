"""Keeps what takes long to compute in the temporary folder."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

Kept = TypeVar("Kept")  # a tensor, or a dict of them


def cached(name: str, compute: Callable[[], Kept]) -> Kept:
    """What has this name in the temporary folder, computed once."""
    key = hashlib.sha256(name.encode()).hexdigest()[:16]
    file = Path(tempfile.gettempdir()) / "howsure_accuracy" / f"{key}.pt"
    if file.exists():
        return torch.load(file, weights_only=True)
    file.parent.mkdir(exist_ok=True)
    result = compute()
    torch.save(result, file)
    return result
