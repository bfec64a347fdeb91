"""Reads `.safetensors` files: a JSON header, then raw numbers. Nothing in them can run.

The format: 8 bytes with the header's length (little endian), the header, the buffer. Each tensor
has a type, a shape, and the begin and end of its bytes in the buffer.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 100_000_000  # bytes, as in the format's own reader


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; sizes are checked against the file before they are read."""
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise _damaged(path, "its header does not fit into the file")
        header = _parsed(file.read(length), path)
    start = 8 + length
    return {
        name: _tensor(path, name, entry, (start, size))
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"`{path}` is not a whole `.safetensors` file: {why}.")


def _parsed(header: bytes, path: Path) -> dict[str, object]:
    try:
        found = json.loads(header)
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is not JSON") from None
    if not isinstance(found, dict):
        raise _damaged(path, "its header is not a JSON object")
    return found


def _tensor(path: Path, name: str, entry: Any, data: tuple[int, int]) -> Tensor:
    """One tensor; `data` is where the buffer begins and ends."""
    try:
        kind, shape = entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
        whole = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        raise _damaged(path, f"the entry of `{name}` is incomplete") from None
    if kind not in _DTYPES:
        raise ValueError(f"`{name}` in `{path}` has the type {kind!r}, which howsure cannot read.")
    dtype = _DTYPES[kind]
    size = math.prod(shape) * dtype.itemsize if whole else -1
    if not whole or end - begin != size or data[0] + end > data[1]:
        raise _damaged(path, f"`{name}` does not have the bytes that its shape needs")
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    raw = np.fromfile(path, np.uint8, size, offset=data[0] + begin)
    return torch.from_numpy(raw).view(dtype).reshape(shape)
