"""Forms of weights that every pass needs: computed once, kept until the weight changes."""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from howsure.concrete import has_values, is_traced

_cache: Any = WeakIdKeyDictionary()

Key = tuple[Any, ...]

_precision: contextvars.ContextVar[torch.dtype | None] = contextvars.ContextVar(
    "variance_precision", default=None
)


@contextlib.contextmanager
def layers_of_variances_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, `through_squares` computes in this dtype; `None` for that of the variance."""
    token = _precision.set(dtype)
    try:
        yield
    finally:
        _precision.reset(token)


def through_squares(op: Callable[[Tensor, Tensor], Tensor], var: Tensor, weight: Tensor) -> Tensor:
    """op(var, weight**2): a variance behind a linear layer, in the variance's dtype.

    Layers are where the time goes, so they alone run in the lower precision that was asked for.
    """
    dtype = _precision.get()
    if dtype is None or dtype == var.dtype:
        return op(var, squared(weight, var.dtype))
    return op(var.to(dtype), squared(weight, dtype)).to(var.dtype)


def squared(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight**2` in the variance's dtype, with the channels of a convolution's kernel last.

    Kept where that is safe. In a trace the layout is the compiler's business.
    """

    def square() -> Tensor:
        # A half-precision weight, squared in its own precision, would be rounded twice.
        return laid_out(weight.to(_at_least_float32(dtype)).square().to(dtype))

    return kept(square, weight, key=(squared, dtype))


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def channels_last(weight: Tensor) -> Tensor:
    """The weight of a convolution with its channels last in memory, kept where that is safe."""
    return kept(lambda: laid_out(weight), weight, key=(channels_last,))


def laid_out(image: Tensor) -> Tensor:
    """An image or a kernel with its channels last, as torch's convolutions are fastest."""
    if image.dim() != 4 or is_traced() or not has_values(image):
        return image
    # `contiguous` would leave an image of one channel as it is.
    return image.to(memory_format=torch.channels_last)


def kept(make: Callable[[], Any], *weights: Tensor | None, key: Key) -> Any:
    """What `make` returns, from the cache as long as none of the weights changes.

    Not cached: weights that are being trained (the form needs its gradient), and tensors that
    exist only inside a transformation or a trace.
    """
    given = [weight for weight in weights if weight is not None]
    if not all(map(_is_plain, given)):
        return make()
    entry = _cache.setdefault(given[0], {}).get(key)
    state = [(weight.data_ptr(), weight._version) for weight in given]
    if entry is not None and entry.state == state and entry.is_of(given):
        return entry.made
    if is_traced():
        return make()
    # A tensor made in inference mode could not be used where gradients are needed later.
    with torch.inference_mode(False), torch.no_grad():
        made = make()
    _cache[given[0]][key] = _Entry([weakref.ref(weight) for weight in given], state, made)
    return made


@dataclass(frozen=True, eq=False)
class _Entry:
    """A form of some weights, and what they were when it was made."""

    weights: list[weakref.ref[Tensor]]
    state: list[tuple[int, int]]
    made: Any

    def is_of(self, weights: list[Tensor]) -> bool:
        return all(old() is new for old, new in zip(self.weights, weights, strict=True))


def _is_plain(weight: Tensor) -> bool:
    trained = weight.requires_grad and torch.is_grad_enabled()
    return has_values(weight) and not trained and not weight.is_inference()
