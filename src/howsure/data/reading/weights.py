"""Weights from files, and into models, without ever running what a file contains.

Checkpoints are those of the released code and of `nn.DataParallel`. A `.safetensors` file is a JSON
header and raw numbers: 8 bytes with the header's length (little endian), the header, the buffer.
Each tensor has a type, a shape, and the begin and end of its bytes in the buffer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_SUFFIXES = (".pt", ".pth")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` with weights.")
    if not path.stat().st_size:
        raise ValueError(f"`{path}` is empty; it should hold weights.")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix in _SUFFIXES:
        return load_checkpoint(path)
    raise ValueError(f"`{path}` must end in `.safetensors`, `.pt` or `.pth`.")


def _safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors as the format's own package reads them, where it is installed."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        return read_safetensors(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        read_safetensors(path)  # which says it in the words of this library
        raise ValueError(f"`{path}` is not a whole `.safetensors` file: {error}.") from None


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Puts a file's weights into a model; all names and shapes must fit."""
    found, path = read_weights(Path(path)), Path(path)
    own = model.state_dict()
    missing = [name for name in own if name not in found]
    unknown = [name for name in found if name not in own]
    if missing or unknown:
        raise ValueError(
            f"`{path}` does not fit the model: {_named('it lacks', missing)}"
            f"{' and ' if missing and unknown else ''}{_named('the model lacks', unknown)}."
        )
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"`{path}` does not fit the model: `{name}` has shape {tuple(tensor.shape)} in the "
                f"file and {tuple(own[name].shape)} in the model."
            )
        if tensor.dtype.is_floating_point and not bool(tensor.isfinite().all()):
            raise ValueError(f"`{name}` in `{path}` contains NaN or infinity.")
    model.load_state_dict(found)


def _named(words: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{words} {', '.join(f'`{name}`' for name in names[:3])}{more}"


# Where training scripts put the weights: the released one uses "net".
_WRAPPERS = ("net", "state_dict", "model", "model_state_dict")
_PREFIX = "module."


def load_checkpoint(
    path: str | Path, *, map_location: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """The weights in a checkpoint, for `model.load_state_dict`; nothing in the file is executed.

    Takes a bare state dict, or one under "net", "state_dict", "model" or "model_state_dict", and
    strips the `module.` that `nn.DataParallel` puts before every name.

    Args:
        path: The file.
        map_location: Where the tensors go, whatever device they were saved from.
    """
    try:
        found = torch.load(Path(path), map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"`{path}` cannot be read as weights: {reason} Save the model's "
            "`state_dict()` by itself with a torch that can read the file."
        ) from None
    weights = _weights(found)
    if weights is None:
        raise ValueError(
            f"`{path}` has no weights: it should be a state dict, or a dict with one of "
            f"{list(_WRAPPERS)}."
        )
    return {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}


def _weights(found: object) -> dict[str, Tensor] | None:
    if not isinstance(found, dict):
        return None
    inner = (found[name] for name in _WRAPPERS if isinstance(found.get(name), dict))
    weights = next(inner, found)
    tensors = all(isinstance(value, Tensor) for value in weights.values())
    return weights if weights and tensors else None


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
