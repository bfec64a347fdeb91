"""Weights from files, and into models, without ever running what a file contains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from howsure.files import check_unpacked_size

# Where training scripts put the weights: the released one uses "net".
_WRAPPERS = ("net", "state_dict", "model", "model_state_dict")
_PREFIX = "module."


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Puts a file's weights into a model; all names and shapes must fit."""
    path = Path(path)
    weights, own = _read_weights(path), model.state_dict()
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    if missing or unknown:
        parts = (_listed("it lacks", missing), _listed("the model lacks", unknown))
        raise ValueError(f"`{path}` does not fit the model: {' and '.join(filter(None, parts))}.")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"`{path}` does not fit the model: `{name}` has shape {tuple(tensor.shape)} in the "
                f"file and {tuple(own[name].shape)} in the model."
            )
        if tensor.dtype.is_floating_point and not bool(tensor.isfinite().all()):
            raise ValueError(f"`{name}` in `{path}` contains NaN or infinity.")
    model.load_state_dict(weights)


def _listed(words: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{words} {', '.join(f'`{name}`' for name in names[:3])}{more}" if names else ""


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` with weights.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".pt", ".pth"):
        return load_checkpoint(path)
    raise ValueError(f"`{path}` must end in `.safetensors`, `.pt` or `.pth`.")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise ImportError(
            f"`{path}` needs `safetensors`, which is not installed: `pip install 'howsure[cli]'`."
        ) from None
    try:
        return load_file(path)
    # A damaged file is a SafetensorError; a type that torch does not have is a KeyError.
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"`{path}` is not a whole `.safetensors` file: {error}.") from None


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
    check_unpacked_size(Path(path))
    try:
        content = torch.load(Path(path), map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"`{path}` cannot be read as weights: {reason} Save the model's "
            "`state_dict()` by itself with a torch that can read the file."
        ) from None
    weights = content
    if isinstance(content, dict):
        inner = (content[name] for name in _WRAPPERS if isinstance(content.get(name), dict))
        weights = next(inner, content)
    tensors = isinstance(weights, dict) and all(isinstance(v, Tensor) for v in weights.values())
    if not weights or not tensors:
        raise ValueError(
            f"`{path}` has no weights: it should be a state dict, or a dict with one of "
            f"{list(_WRAPPERS)}."
        )
    return {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}
