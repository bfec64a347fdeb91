"""Operations that have no Gaussian answer, each with its reason and the remedy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.families import refuse
from howsure.moments.rule import Target, spellings


def _methods(names: str) -> tuple[Target, ...]:
    """The methods of tensors with these names, as far as torch has them."""
    return tuple(getattr(Tensor, name) for name in names.split() if hasattr(Tensor, name))


def _operations(names: str, inplace: bool = False) -> tuple[Target, ...]:
    """All spellings of the operations with these names."""
    return spellings(*names.split(), inplace=inplace)


refuse(
    *_methods(
        "numpy __array__ tolist item __float__ __int__ __index__ __complex__ __reversed__ "
        "__contains__ __dlpack__ __dlpack_device__ data_ptr storage untyped_storage __format__"
    ),
    torch.ops.aten.item.default,
    Tensor.__cuda_array_interface__.__get__,  # pyright: ignore[reportFunctionMemberAccess]
    name="plain numbers",
    reason="A Gaussian has no plain value to take out of the model, and taking its mean would "
    "drop the variance without a word. Move this step behind `propagate`, which returns `.mean` "
    "and `.var`.",
)
refuse(
    *_methods("__bool__"),
    *_operations("equal allclose isclose all any"),
    name="branches",
    reason="A branch on a random value has no Gaussian answer. Branch on the shape or on a tensor "
    "without noise; where the branch only picks a numerically safer form, keep one form.",
)
refuse(
    *_operations(
        "gt ge lt le greater greater_equal less less_equal logical_not logical_and logical_or",
        inplace=True,
    ),
    name="comparisons",
    reason="Whether a Gaussian exceeds a value is random, not a mask. Use `torch.relu`, "
    "`torch.clamp`, `torch.maximum` or a steep `torch.sigmoid` in the model, or compute the mask "
    'from a tensor without noise. `fallback="linearise"` freezes the mask at the mean.',
    can_fall_back=True,
)
refuse(
    *_operations(
        "sign sgn round floor ceil trunc frac heaviside floor_divide remainder fmod", inplace=True
    ),
    name="steps",
    reason="A step function has no useful first-order moments. Replace it in the model by a "
    "smooth or piecewise linear form, e.g. `torch.clamp`.",
)
refuse(
    *_operations(
        "sort argsort topk argmax argmin kthvalue median nanmedian mode unique nonzero msort "
        "quantile nanquantile cummax cummin argwhere aminmax bincount histc searchsorted "
        "bucketize multinomial bernoulli"
    ),
    name="order",
    reason="The order of random values is random itself. Take `.mean` of `propagate`'s result "
    'and sort that, or use `torch.amax`, whose moments are known; `fallback="linearise"` freezes '
    "the order at the mean.",
    can_fall_back=True,
)
refuse(
    *_methods(
        "backward register_hook retain_grad requires_grad_ set_ resize_ share_memory_ "
        "pin_memory to_sparse"
    ),
    *(getattr(Tensor, name).__set__ for name in ("data", "grad", "requires_grad", "real", "imag")),
    name="tensor management",
    reason="A Gaussian lives inside one pass and owns no storage. Do this on the tensors before "
    "`propagate`.",
)

refuse(
    F.gumbel_softmax,
    name="gumbel_softmax",
    reason="`gumbel_softmax` draws random numbers of its own. Use `torch.softmax` at inference.",
)


def _transforms() -> tuple[Target, ...]:
    """Everything in `torch.fft` that takes data."""
    names = [name for name in dir(torch.fft) if "fft" in name and not name.endswith("freq")]
    return tuple(getattr(torch.fft, name) for name in names if callable(getattr(torch.fft, name)))


refuse(
    *dict.fromkeys(
        (
            *_transforms(),
            *_operations("stft istft view_as_complex polar"),
            torch.complex,
        )
    ),
    name="complex numbers",
    reason="The result is complex, and howsure's Gaussians are real. Write the transform in the "
    "model as a product with constant cosine and sine matrices, or as a convolution, which have "
    "rules.",
)
