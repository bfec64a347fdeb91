"""Questions about a tensor that its values do not enter."""

from __future__ import annotations

import torch
from torch import Tensor

from howsure.moments.families import value_only

_ATTRIBUTES = (
    "shape",
    "ndim",
    "dtype",
    "device",
    "layout",
    "names",
    "is_cuda",
    "is_cpu",
    "is_mps",
    "is_meta",
    "is_quantized",
    "is_sparse",
    "is_nested",
    "is_mkldnn",
    "is_xpu",
    "is_leaf",
    "requires_grad",
    "grad_fn",
    "grad",
    "itemsize",
    "nbytes",
    "output_nr",
    "is_vulkan",
    "is_ipu",
    "is_sparse_csr",
    "is_xla",
    "is_ort",
    "is_mtia",
    "is_maia",
    "name",
)
_METHODS = (
    "dim",
    "ndimension",
    "size",
    "numel",
    "nelement",
    "stride",
    "is_contiguous",
    "element_size",
    "storage_offset",
    "is_floating_point",
    "is_complex",
    "is_signed",
    "get_device",
    "__len__",
    "is_inference",
    "dim_order",
    "is_same_size",
    "is_pinned",
    "is_shared",
    "is_conj",
    "is_neg",
    "has_names",
    "type",
)

value_only(
    *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES if hasattr(Tensor, name)),
    *(getattr(Tensor, name) for name in _METHODS if hasattr(Tensor, name) and name != "type"),
    *(getattr(torch, name) for name in _METHODS if hasattr(torch, name)),
    torch.ops.aten.sym_size.int,
    torch.ops.aten.size.int,
    name="metadata",
)
