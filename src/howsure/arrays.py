"""Tensors as numpy arrays and named columns, one row for each input; and arrays as tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from howsure.trees import TensorTree, map_leaves

Columns = dict[str, np.ndarray]


def as_array(tensor: object) -> Any:
    """A tensor as an array; anything else as it is."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_tensors(x: object, model: nn.Module) -> object:
    """Arrays of an input as tensors; floating-point ones in the type and on the device of a model.

    A model computes in one precision, and numpy's own is twice that of most.
    """
    own = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))

    def leaf(each: object) -> object:
        if not isinstance(each, np.ndarray):
            return each
        tensor = _tensor(each).to(own.device)
        return tensor.to(own.dtype) if tensor.is_floating_point() else tensor

    return map_leaves(leaf, x)


def _tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor; a copy of what torch cannot share: backwards, read-only, swapped."""
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.astype(native, order="C", copy=True)
    return torch.from_numpy(array)


def columns_of(named: Mapping[str, object], rows: int) -> Columns:
    """Every tensor by the name of its quantity and its path in the structure: `mean.pose.0`."""
    found = {
        f"{name}{path}": as_array(tensor)
        for name, tree in named.items()
        for path, tensor in zip(paths(tree), TensorTree(tree).tensors, strict=True)
    }
    _check_rows(found, rows)
    return found


def _check_rows(columns: Columns, rows: int) -> None:
    for name, column in columns.items():
        if column.ndim == 0 or len(column) != rows:
            raise ValueError(
                f"`{name}` has shape {column.shape} for {rows} inputs; scores need one row of "
                "output for each input, so wrap the model to put the batch first."
            )


def flat_names(name: str, column: np.ndarray) -> list[str]:
    """The names of a column's numbers in a table: `mean`, or `mean_0`, `mean_1`, `mean_0_1`..."""
    shape = column.shape[1:]
    if int(np.prod(shape)) == 1:
        return [name]
    return [f"{name}_{'_'.join(map(str, index))}" for index in np.ndindex(shape)]


def table_of(named: Mapping[str, object], rows: int) -> Columns:
    """A column for every number of every tensor, (rows,)."""
    return flat(columns_of(named, rows))


def flat(columns: Columns) -> Columns:
    """A column for every number of every column, (rows,)."""
    return {
        flat_name: numbers
        for name, column in columns.items()
        for flat_name, numbers in zip(
            flat_names(name, column), column.reshape(len(column), -1).T, strict=True
        )
    }


def joined(parts: list[Columns]) -> Columns:
    """The rows of all parts."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def paths(tree: object) -> list[str]:
    """Where each floating-point tensor is in a structure: `.pose.0`; nothing for a single one."""
    leaves = pytree.tree_leaves_with_path(tree)
    found = [path for path, leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    count = len(TensorTree(tree).tensors)
    if len(found) != count:  # A dataclass: torch does not know its fields.
        return [f".{index}" for index in range(count)] if count > 1 else [""]
    return ["".join(f".{word(key)}" for key in path) for path in found]


def word(key: Any) -> str:
    """A key of a path without brackets and quotes."""
    return re.sub(r"\W", "", pytree.keystr((key,)))
