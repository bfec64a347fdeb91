"""Large kernels of convolutions in the form that oneDNN computes with.

torch lays a kernel out anew in every call; for the last layers of a ResNet that takes a third of
the time. Kernels of constant weights are laid out once and kept beside their weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.concrete import has_values
from howsure.squares import kept

# Elements: for smaller kernels the call itself takes longer than it saves.
_LARGE = 2**18


def packed_convolution(
    image: Tensor,  # (batch, channels, height, width)
    kernel: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """`F.conv2d` with a kept kernel; `None` where that would not help or is not possible."""
    if isinstance(padding, str) or not _is_worth_it(image, kernel):
        return None
    pairs = [[n, n] if isinstance(n, int) else list(n) for n in (padding, stride, dilation)]

    def pack() -> Tensor:
        shape = list(image.shape)
        return torch.ops.mkldnn._reorder_convolution_weight(kernel, *pairs, groups, shape)

    key = (packed_convolution, *map(tuple, pairs), groups)
    packed = kept(pack, kernel, key=key)
    return torch.ops.mkldnn._convolution_pointwise(
        image, packed, bias, *pairs, groups, "none", [], ""
    )


def _is_worth_it(image: Tensor, kernel: Tensor) -> bool:
    graph = torch.is_grad_enabled() and (image.requires_grad or kernel.requires_grad)
    plain = image.dim() == 4 and has_values(image) and not graph
    fits = image.dtype == torch.float32 and image.device.type == "cpu"
    return plain and fits and kernel.numel() >= _LARGE and _has_packing()


def _has_packing() -> bool:
    """Whether this torch has oneDNN and the operations that its compiler uses."""
    names = ("_reorder_convolution_weight", "_convolution_pointwise")
    available = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return available and all(hasattr(torch.ops.mkldnn, name) for name in names)
