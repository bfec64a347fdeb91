"""Questions that the mean answers: shapes and devices, and whether numbers are finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.families import value_only
from howsure.moments.rule import STRUCTURAL, Kind, Sample, Target, rule, rule_of, spellings
from howsure.moments.value import Moments

_ATTRIBUTES = (
    "shape ndim dtype device layout names is_cuda is_cpu is_mps is_meta is_quantized is_sparse "
    "is_nested is_mkldnn is_xpu is_leaf requires_grad grad_fn grad itemsize nbytes output_nr "
    "is_vulkan is_ipu is_sparse_csr is_xla is_ort is_mtia is_maia name"
)
_METHODS = (
    "dim ndimension size numel nelement stride is_contiguous element_size storage_offset "
    "is_floating_point is_complex is_signed get_device __len__ is_inference dim_order "
    "is_same_size is_pinned is_shared is_conj is_neg has_names"
)

value_only(
    *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES.split() if hasattr(Tensor, name)),
    *(getattr(Tensor, name) for name in _METHODS.split() if hasattr(Tensor, name)),
    *(getattr(torch, name) for name in _METHODS.split() if hasattr(torch, name)),
    torch.ops.aten.sym_size.int,
    torch.ops.aten.size.int,
    name="metadata",
)
value_only(
    *spellings("isnan", "isinf", "isfinite", "isposinf", "isneginf", inplace=False),
    name="finiteness",
)


@rule(
    *spellings("eq", "ne", "not_equal"),
    name="equality",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4), -math.inf)],
    kind=Kind.VALUE_ONLY,
    takes_target=True,
)
def equality(target: Target, input: object, other: object) -> Tensor:
    """Whether the mean is infinite, as a mask leaves it; other comparisons are random.

    Assumes: a comparison with infinity.

    Source: definition.
    """
    if isinstance(input, Moments) and isinstance(other, float) and math.isinf(other):
        return target(input.mean, other)
    raise NoRuleError(
        "Whether a Gaussian equals a value is random, not a mask. Compute the mask from a tensor "
        "without noise."
    )


@rule_of(
    "nan_to_num",
    fidelity=STRUCTURAL,
    samples=lambda draw: [Sample(draw.moments(3, 4))],
    kind=Kind.GATHER,
)
def nan_to_num(
    input: Moments,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Moments:
    """The identity where the mean is finite; a replaced element has variance 0.

    Assumes: nothing; a Gaussian with a finite mean is finite.

    Source: definition.
    """
    finite = torch.isfinite(input.mean)
    var = torch.where(finite, input.var, torch.zeros_like(input.var))
    return Moments(torch.nan_to_num(input.mean, nan, posinf, neginf), var)
