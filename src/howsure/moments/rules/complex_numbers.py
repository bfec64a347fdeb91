"""Complex numbers have no rules: a Gaussian here is real."""

from __future__ import annotations

import torch

from howsure.moments.families import refuse
from howsure.moments.rule import Target, spellings


def _transforms() -> tuple[Target, ...]:
    """Everything in `torch.fft` that takes data."""
    names = [name for name in dir(torch.fft) if "fft" in name and not name.endswith("freq")]
    return tuple(getattr(torch.fft, name) for name in names if callable(getattr(torch.fft, name)))


refuse(
    *dict.fromkeys(
        (
            *_transforms(),
            *spellings("stft", "istft", "view_as_complex", "polar", inplace=False),
            torch.complex,
        )
    ),
    name="complex numbers",
    reason="The result is complex, and howsure's Gaussians are real. Write the transform in the "
    "model as a product with constant cosine and sine matrices, or as a convolution, which have "
    "rules.",
)
