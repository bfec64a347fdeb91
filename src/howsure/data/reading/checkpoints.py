"""Weights from checkpoints of the released code and of `nn.DataParallel`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

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
