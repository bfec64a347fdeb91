"""Large kernels of convolutions, and their squares, in the form that oneDNN computes with.

torch lays a kernel out anew in every call; for the last layers of a ResNet that takes a third of
the time. Both forms are kept beside a copy of the weight, and used as long as the weight has the
same bits as the copy: addresses and version counters miss `weight.data.mul_(2)`, fused optimisers
and whatever else writes into a weight's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from howsure.moments.numerics import squared
from howsure.trees import has_values
from howsure.values.bits import same_bits

# Elements: for smaller kernels the call itself takes longer than it saves.
_LARGE = 2**15

# Padding, stride, dilation and groups.
_Settings = tuple[list[int], list[int], list[int], int]


@dataclass(frozen=True, eq=False)
class _Kept:
    """A weight as it was, and its forms by the settings of the convolution."""

    weight: Tensor
    # A weak reference to the weight itself would forbid `torch.utils.swap_tensors` to the user.
    memory: StorageWeakRef
    forms: dict[object, PackedKernels] = field(default_factory=dict)


# By address and layout: another weight at the same address has other bits, or the same forms.
_cache: dict[tuple[int, torch.Size, tuple[int, ...]], _Kept] = {}


@dataclass(frozen=True, eq=False)
class PackedKernels:
    """The convolutions of means and of variances, for images in float32."""

    mean: Tensor
    square: Tensor
    settings: _Settings

    def of_means(self, images: Tensor, bias: Tensor | None) -> Tensor:
        """`F.conv2d` with the weight."""
        return self._convolved(images, self.mean, bias)

    def of_variances(self, images: Tensor) -> Tensor:
        """`F.conv2d` with the squared weight."""
        return self._convolved(images, self.square, None)

    def _convolved(self, images: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._convolution_pointwise(
            images, kernel, bias, *self.settings, "none", [], ""
        )


def packed_kernels(
    weight: Tensor,
    shape: torch.Size,  # of the images, by which oneDNN chooses the form
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> PackedKernels | None:
    """Both kernels, packed; `None` where that would not help or is not possible."""
    if isinstance(padding, str) or not _is_worth_it(weight):
        return None
    place = (weight.data_ptr(), weight.shape, weight.stride())
    kept = _cache.get(place)
    if kept is None or not same_bits(kept.weight, weight):
        _drop_the_dead()
        memory = StorageWeakRef(weight.untyped_storage())
        with torch.inference_mode(False), torch.no_grad():
            kept = _cache[place] = _Kept(weight.detach().clone(), memory)
    settings = (_pair(padding), _pair(stride), _pair(dilation), groups)
    key = (*map(tuple, settings[:3]), groups)
    if key not in kept.forms:
        kept.forms[key] = _packed(kept.weight, shape, settings)
    return kept.forms[key]


def _packed(weight: Tensor, shape: torch.Size, settings: _Settings) -> PackedKernels:
    # What is made in inference mode could not be used where gradients are needed later.
    with torch.inference_mode(False), torch.no_grad():
        kernels = (weight, squared(weight, torch.float32))
        pack = torch.ops.mkldnn._reorder_convolution_weight
        mean, square = (pack(kernel, *settings, list(shape)) for kernel in kernels)
    return PackedKernels(mean, square, settings)


def _drop_the_dead() -> None:
    for place in [place for place, kept in _cache.items() if kept.memory.expired()]:
        del _cache[place]


def _pair(sizes: int | Sequence[int]) -> list[int]:
    return [sizes, sizes] if isinstance(sizes, int) else list(sizes)


def _is_worth_it(weight: Tensor) -> bool:
    fits = weight.dtype == torch.float32 and weight.device.type == "cpu"
    return has_values(weight) and fits and weight.numel() >= _LARGE and _has_packing()


def _has_packing() -> bool:
    """Whether this torch has oneDNN, in use, and the operations that its compiler uses."""
    return torch.backends.mkldnn.enabled and _can_pack()


@functools.cache
def _can_pack() -> bool:
    names = ("_reorder_convolution_weight", "_convolution_pointwise")
    available = torch.backends.mkldnn.is_available()
    return available and all(hasattr(torch.ops.mkldnn, name) for name in names)
