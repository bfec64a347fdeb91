"""Digests of inputs, models and settings: equal for equal content, in every process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def digest(content: object) -> str:
    """The SHA-256 of tensors, arrays, numbers and text, however nested in containers and objects.

    A module is its class, the code of its `forward` and its attributes, among them buffers and
    hooks; a function is its code and what it refers to. Not seen: what else code calls by name.
    """
    sha = hashlib.sha256()
    waiting: list[Any] = [content]
    numbers: dict[int, tuple[int, object]] = {}  # of the objects so far, which are kept alive
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            sha.update(f"tensor {part.dtype} {tuple(part.shape)};".encode())
            # A single number counts as contiguous with any stride, and cannot be viewed as bytes.
            flat = part.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
            sha.update(flat.view(torch.uint8).numpy().data)
            continue
        if isinstance(part, np.ndarray):
            sha.update(f"array {part.dtype.str} {part.shape};".encode())
            sha.update(np.ascontiguousarray(part).tobytes())
            continue
        inner = _parts(part)
        if inner is None:
            # Where an object lies in memory is not part of what it is.
            inner, text = [], _ADDRESS.sub("", repr(part))
        elif id(part) in numbers:  # a part of itself, or of another part
            inner, text = [], f"number {numbers[id(part)][0]}"
        else:
            text = f"of {len(inner)}"
            if not isinstance(part, tuple):  # Python may share equal tuples, or not
                numbers[id(part)] = len(numbers), part
        sha.update(f"{type(part).__module__}.{type(part).__qualname__} {text};".encode())
        waiting += reversed(inner)
    return sha.hexdigest()


def _parts(content: Any) -> list[object] | None:
    """What a container or an object consists of; `None` for a plain value."""
    if isinstance(content, (tuple, list)):
        return list(content)
    if isinstance(content, Mapping):
        return [part for pair in content.items() for part in pair]
    if isinstance(content, MethodType):
        return [content.__self__, content.__func__]
    if isinstance(content, FunctionType):
        code, cells = content.__code__, content.__closure__ or ()
        parts = (code.co_code, code.co_consts, code.co_names, content.__defaults__)
        return [content.__qualname__, *parts, [cell.cell_contents for cell in cells]]
    if isinstance(content, (set, frozenset)):
        return sorted(content, key=repr)
    if isinstance(content, fx.GraphModule):  # other attributes differ each time it is loaded
        codes = [part.code for part in content.modules() if isinstance(part, fx.GraphModule)]
        return [codes, dict(content.named_parameters()), dict(content.named_buffers())]
    if isinstance(content, type) or not hasattr(content, "__dict__"):
        return None
    attributes = dict(vars(content))
    if not isinstance(content, nn.Module):
        return [attributes]
    # Hooks are numbered over the whole process, which is not part of the model.
    for name, value in attributes.items():
        if "_hooks" in name and isinstance(value, Mapping):
            attributes[name] = list(value.values())
    return [type(content).forward, attributes]
