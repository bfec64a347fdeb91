"""Operations under the names and signatures of exported programs.

`torch.export` keeps what the model called, and its operations share their rules with Python's.
Here is what only such programs contain. Prefer programs that are not decomposed:
`program.run_decompositions({})` removes in-place writes and keeps the rest whole, while the
default table takes attention and activations apart, partly into comparisons that have no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.families import composite, linear_map, structural, value_only
from howsure.moments.rule import APPROXIMATE, EXACT, Draw, Fidelity, Sample, Samples, Target

_aten = torch.ops.aten


def _image(*arguments: object, size: Sequence[int] = (2, 4, 6, 5)) -> Samples:
    return lambda draw: [Sample(draw.moments(*size, std=0.5), *arguments)]


def _respelled(
    definition: Callable[..., object],
    target: Target,
    like: str,
    *,
    samples: Samples,
    fidelity: Fidelity = EXACT,
    error: float = 0.0,
) -> None:
    """Registers an operation by what Python would call in its place, the rule `like`."""
    definition.__doc__ = f"As `{like}`."
    name = target.__name__.removesuffix(".default")
    composite(target, name=name, samples=samples, fidelity=fidelity, error=error)(definition)


value_only(_aten._assert_tensor_metadata.default, name="assertions")

structural(
    _aten.slice.Tensor,
    name="slice",
    samples=lambda draw: [Sample(draw.moments(3, 6), 1, 1, 5, 2), Sample(draw.moments(4))],
)
structural(
    _aten.alias.default,
    _aten.detach_.default,
    name="alias",
    samples=lambda draw: [Sample(draw.moments(3))],
)
structural(
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
    name="unsafe_split",
    samples=_image(2, 1),
)
structural(_aten.unsafe_chunk.default, name="unsafe_chunk", samples=_image(2, 1))


def _convolutions(draw: Draw) -> list[Sample]:
    image = draw.moments(2, 4, 5, 5)
    sizes = [2, 1], [1, 0], [1, 1]
    return [
        Sample(image, draw.constant(2, 4, 3, 3), draw.constant(2), *sizes, False, [0, 0], 1),
        Sample(image, draw.constant(4, 1, 3, 2), None, *sizes, True, [1, 0], 2),
    ]


linear_map(_aten.convolution.default, name="convolution", samples=_convolutions, source="`conv2d`")


def _softened(softmax: Target) -> Callable[..., object]:
    return lambda self, dim, half_to_float: softmax(
        self, dim, torch.float32 if half_to_float else None
    )


_WITHIN_15: dict[str, Any] = {"fidelity": APPROXIMATE, "error": 0.15}
for _name in ("softmax", "log_softmax"):
    _respelled(
        _softened(getattr(torch, _name)),
        getattr(_aten, f"_{_name}").default,
        _name,
        samples=_image(1, False, size=(3, 4)),
        **_WITHIN_15,
    )
_respelled(
    lambda self, dim, dtype=None: torch.softmax(self, dim, dtype),
    _aten._safe_softmax.default,
    "softmax",
    samples=_image(1, size=(3, 4)),
    **_WITHIN_15,
)


def _pool_with_indices(pool: Target) -> Callable[..., object]:
    """The pool's values; its indices are not Gaussian, and a program that reads them fails."""
    return lambda self, *args, **kwargs: (pool(self, *args, **kwargs), None)


_respelled(
    _pool_with_indices(F.max_pool2d),
    _aten.max_pool2d_with_indices.default,
    "max_pool2d",
    samples=_image([2, 2]),
    fidelity=APPROXIMATE,
    error=0.2,
)
_respelled(
    _pool_with_indices(F.max_pool3d),
    _aten.max_pool3d_with_indices.default,
    "max_pool3d",
    samples=_image([2, 2, 2], size=(1, 2, 4, 4, 2)),
    fidelity=APPROXIMATE,
    error=0.2,
)
_respelled(
    lambda self, output_size: F.adaptive_avg_pool2d(self, output_size),
    _aten._adaptive_avg_pool2d.default,
    "adaptive_avg_pool2d",
    samples=_image([3, 2]),
)
_respelled(
    lambda self, pad, value=0.0: F.pad(self, pad, "constant", value),
    _aten.constant_pad_nd.default,
    "pad",
    samples=_image([1, 2, 0, 1], 0.5),
)


def _padding(mode: str) -> Callable[..., Tensor]:
    return lambda self, padding: F.pad(self, padding, mode)


for _dims in (1, 2, 3):
    _border = _image([1, 1] * _dims, size=(2, 3, 4, 3, 3)[: 2 + _dims])
    for _mode, _name in (("reflect", "reflection_pad"), ("replicate", "replication_pad")):
        _target = getattr(_aten, f"{_name}{_dims}d").default
        _respelled(_padding(_mode), _target, "pad", samples=_border)


def _resize(mode: str, antialias: bool, aligned: bool) -> Callable[..., Tensor]:
    """`interpolate` for the signature with lists of sizes or of scale factors."""

    def by_list(input: Tensor, output_size: list[int] | None, *rest: Any) -> Tensor:
        corners, scales = rest if aligned else (None, *rest)
        return F.interpolate(
            input, output_size, scales, mode, align_corners=corners, antialias=antialias
        )

    return by_list


def _resize_to(mode: str, antialias: bool, aligned: bool) -> Callable[..., Tensor]:
    """`interpolate` for the signature with a size and one scale factor per axis."""

    def by_size(self: Tensor, output_size: list[int], *rest: Any) -> Tensor:
        corners, *scales = rest if aligned else (None, *rest)
        options = {"mode": mode, "align_corners": corners, "antialias": antialias}
        if scales and scales[0] is not None:
            return F.interpolate(self, scale_factor=tuple(scales), **options)
        return F.interpolate(self, output_size, **options)

    return by_size


_RESIZES = (
    ("upsample_nearest1d", "nearest", 1),
    ("upsample_nearest2d", "nearest", 2),
    ("upsample_nearest3d", "nearest", 3),
    ("_upsample_nearest_exact1d", "nearest-exact", 1),
    ("_upsample_nearest_exact2d", "nearest-exact", 2),
    ("_upsample_nearest_exact3d", "nearest-exact", 3),
    ("upsample_linear1d", "linear", 1),
    ("upsample_bilinear2d", "bilinear", 2),
    ("upsample_bicubic2d", "bicubic", 2),
    ("upsample_trilinear3d", "trilinear", 3),
    ("_upsample_bilinear2d_aa", "bilinear", 2),
    ("_upsample_bicubic2d_aa", "bicubic", 2),
)
for _name, _mode, _dims in _RESIZES:
    _size, _to = (2, 3, 4, 3, 2)[: 2 + _dims], [6, 5, 3][:_dims]
    _options = _mode, _name.endswith("_aa"), not _mode.startswith("nearest")
    _corners = (False,) if _options[2] else ()
    _op = getattr(_aten, _name)
    _by_list, _by_size = (_image(_to, *_corners, *rest, size=_size) for rest in ((None,), ()))
    _respelled(_resize(*_options), _op.vec, "interpolate", samples=_by_list)
    _respelled(_resize_to(*_options), _op.default, "interpolate", samples=_by_size)
