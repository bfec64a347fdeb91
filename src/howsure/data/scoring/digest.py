"""Digests of nested settings and tensors: equal for equal content, in every process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PIECE = 2**22  # elements that are hashed at once, so that a file on disk stays there


def digest(content: object) -> str:
    """The SHA-256 of numbers, text, arrays and tensors in dicts, lists and tuples."""
    found = hashlib.sha256()
    _add(found, content)
    return found.hexdigest()


def _add(found: hashlib._Hash, content: object) -> None:
    if isinstance(content, Tensor):
        _add_tensor(found, content.detach())
    elif isinstance(content, np.ndarray):
        _add_array(found, content)
    elif isinstance(content, Mapping):
        _add_all(found, "dict", [part for pair in content.items() for part in pair])
    elif isinstance(content, (tuple, list)):
        _add_all(found, type(content).__name__, content)
    else:
        # Where an object lies in memory is not part of what it is.
        found.update(f"{type(content).__name__}:{_ADDRESS.sub('', repr(content))};".encode())


def _add_all(found: hashlib._Hash, kind: str, parts: Sequence[object]) -> None:
    found.update(f"{kind}:{len(parts)};".encode())
    for part in parts:
        _add(found, part)


def _add_tensor(found: hashlib._Hash, tensor: Tensor) -> None:
    found.update(f"tensor:{tensor.dtype}:{tuple(tensor.shape)};".encode())
    for piece in tensor.reshape(-1).split(_PIECE):
        # A single number counts as contiguous with any stride, and cannot be viewed as bytes then.
        whole = piece.cpu().clone(memory_format=torch.contiguous_format)
        found.update(whole.view(torch.uint8).numpy().data)


def _add_array(found: hashlib._Hash, array: np.ndarray) -> None:
    found.update(f"array:{array.dtype.str}:{array.shape};".encode())
    if array.ndim == 0:
        found.update(array.tobytes())
        return
    rows = max(1, _PIECE // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        found.update(np.ascontiguousarray(array[start : start + rows]).tobytes())
