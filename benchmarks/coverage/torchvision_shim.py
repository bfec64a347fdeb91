"""Lets torchvision import beside a torch that it was not compiled for.

torchvision's compiled part is absent or does not load in that case, and its Python part stops at
import because two operators that it refines do not exist. Declaring their schemas is enough: none
of the models here calls a compiled operator.
"""

from __future__ import annotations

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


_libraries: list[torch.library.Library] = []  # a schema goes when its library goes


def declare_missing_operators() -> None:
    """Declares the operators unless they exist; call it before torchvision is imported."""
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            _libraries.append(torch.library.Library("torchvision", "FRAGMENT"))
            _libraries[-1].define(schema)
