"""Squared weights, computed once per weight and kept until the weight changes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from howsure.concrete import has_values, is_traced

_cache: WeakIdKeyDictionary = WeakIdKeyDictionary()


def squared(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight**2` in the variance's dtype, from the cache where that is safe.

    Not cached: weights that are being trained (the square needs its gradient), and tensors that
    exist only inside a transformation or a trace.
    """
    if not _is_plain(weight):
        return weight.to(dtype).square()
    entry = _cache.get(weight)
    if entry is not None and entry[0] == weight._version and entry[1].dtype == dtype:
        return entry[1]
    if is_traced():
        return weight.to(dtype).square()
    # A tensor made in inference mode could not be used where gradients are needed later.
    with torch.inference_mode(False), torch.no_grad():
        square = weight.detach().to(dtype).square()
    _cache[weight] = (weight._version, square)
    return square


def _is_plain(weight: Tensor) -> bool:
    trained = weight.requires_grad and torch.is_grad_enabled()
    return has_values(weight) and not trained and not weight.is_inference()
