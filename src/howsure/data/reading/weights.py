"""Weights from files, and into models, without ever running what a file contains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from howsure.data.reading.checkpoints import load_checkpoint
from howsure.data.reading.safetensors import read_safetensors

_SUFFIXES = (".pt", ".pth")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` with weights.")
    if not path.stat().st_size:
        raise ValueError(f"`{path}` is empty; it should hold weights.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in _SUFFIXES:
        return load_checkpoint(path)
    raise ValueError(f"`{path}` must end in `.safetensors`, `.pt` or `.pth`.")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
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
