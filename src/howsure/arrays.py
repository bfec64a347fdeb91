"""Data on its way into a model and out of it: batches, arrays, named columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from howsure.private_torch import pytree
from howsure.trees import TensorTree, map_leaves, no_batch_axis, tensors_of

# Samples of a dataset that make a batch.
BATCH = 64
Choice = str | Sequence[str] | Callable[[Any], object]
# An array for each name, whose first dimension is the batch.
Columns = dict[str, np.ndarray]


def batched(loader: Any) -> Iterable[Any]:
    """The loader; a dataset, which yields single samples, in batches."""
    if isinstance(loader, IterableDataset) or hasattr(loader, "batch_size"):
        return loader
    return DataLoader(loader, batch_size=BATCH) if isinstance(loader, Dataset) else loader


class batches:
    """A loader of dicts, or of any other batches, as a loader of pairs (inputs, targets).

    Examples:
        >>> loader = [{"image": torch.randn(8, 3), "angle": torch.randn(8, 1)}]
        >>> held_out = hs.batches(loader, inputs="image", targets="angle")
        >>> [(inputs.shape, targets.shape) for inputs, targets in held_out]
        [(torch.Size([8, 3]), torch.Size([8, 1]))]

    Use it wherever a loader is expected: `fit`, `calibrate`, `predict`, `audit`, a report. Without
    `targets` it yields inputs alone.

    Args:
        loader: The batches; it may be iterated more than once.
        inputs: The key of the model's input in a batch; several keys, which are passed to the
            model as keyword arguments; or a function of the batch, whose result is passed to the
            model: a tuple by position, a dict by keyword.
        targets: The key of the targets, or a function of the batch.
    """

    def __init__(
        self,
        loader: Iterable[object],
        inputs: Choice,
        targets: str | Callable[[Any], object] | None = None,
    ) -> None:
        self.loader, self.inputs, self.targets = loader, inputs, targets

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields pairs, or tuples of the inputs alone."""
        for batch in batched(self.loader):
            inputs = _select(batch, self.inputs, "inputs")
            if self.targets is None:
                yield (inputs,)
            else:
                yield inputs, _select(batch, self.targets, "targets")


def _select(batch: object, choice: Choice, option: str) -> object:
    """The part of a batch that a key, several keys or a function choose."""
    if callable(choice):
        return choice(batch)
    keys = [choice] if isinstance(choice, str) else list(choice)
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"`{option}={keys[0]!r}` is a key, but a batch is a {type(batch).__name__}, not a "
            f"dict; give a function of it: `{option}=lambda batch: batch[0]`."
        )
    for key in keys:
        if key not in batch:
            raise ValueError(f"`{option}`: a batch has no {key!r}; it has {list(batch)}.")
    return batch[choice] if isinstance(choice, str) else {key: batch[key] for key in keys}


def check_tensor(tensor: Tensor) -> None:
    """An error for a tensor whose elements cannot be read one by one."""
    is_odd = tensor.is_nested or tensor.is_meta or tensor.is_quantized
    if tensor.layout is torch.strided and not is_odd:
        return
    if tensor.is_nested:
        kind, remedy = "nested", "pad it: `x.to_padded_tensor(0.0)`"
    elif tensor.is_quantized:
        kind, remedy = "quantized", "give `x.dequantize()`"
    elif tensor.is_meta:
        kind, remedy = 'on the device "meta"', "give one that has values"
    else:
        kind, remedy = "sparse", "give `x.to_dense()`"
    raise TypeError(f"A tensor is {kind}, and its elements have to be read one by one; {remedy}.")


def explain_failure(model: Any, x: object, batch_dim: int | None) -> str | None:
    """Why a model that fails on an input does so, if it is the input's kind; `None` if not."""
    if not isinstance(model, nn.Module):
        return None
    tensors, weights = tensors_of(x), [*model.parameters(), *model.buffers()]
    if any(weight.is_meta for weight in weights):
        return (
            'The model has weights on the device "meta", which have no values; load them first, '
            "as `model.load_state_dict(state, assign=True)` does."
        )
    if not tensors:
        return (
            f"The input is a {type(x).__name__} without any tensor that howsure can see; give a "
            "tensor, or tensors in tuples, lists, dicts or dataclasses."
        )
    if batch_dim is not None and tensors[0].dim() <= batch_dim:
        return no_batch_axis(batch_dim)
    dtypes = {weight.dtype for weight in weights if weight.is_floating_point()}
    has_floats = any(tensor.is_floating_point() for tensor in tensors)
    others = [t.dtype for t in tensors if t.dtype not in dtypes]
    odd = [dtype for dtype in others if dtype.is_floating_point or not has_floats]
    if len(dtypes) != 1 or not odd:
        return None
    return (
        f"The model computes in {dtypes.pop()}, and the input is {odd[0]}; convert it as the "
        "model's preprocessing does, such as `x.to(next(model.parameters()).dtype)`."
    )


def as_tensors(x: object, model: nn.Module) -> object:
    """Arrays of an input as tensors; floating-point ones in the type and on the device of a model.

    A model computes in one precision, and numpy's own is twice that of most.
    """
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    if type(x) in (list, str, type(None)) and not tensors_of(x):
        raise TypeError(
            f"The input is a {type(x).__name__} without any tensor; give a tensor or an array, as "
            "`torch.tensor(x)` makes of a list."
        )
    if hasattr(x, "edge_index") and not tensors_of(x):
        raise TypeError(
            f"The input is a {type(x).__name__} of graphs, which has no batch axis; make rows of "
            "its graphs: `graphs = hs.Graphs(model, nodes=..., edges=...)`, "
            "`hs.Uncertain(graphs, ...)(**graphs.rows(batch))`."
        )

    def as_tensor(leaf: object) -> object:
        # A table of pandas or polars.
        to_numpy = getattr(leaf, "to_numpy", None)
        leaf = leaf if to_numpy is None else to_numpy()
        if not isinstance(leaf, np.ndarray):
            return leaf
        if leaf.dtype.kind not in "biufc":
            raise TypeError(
                f"The input has elements of type {leaf.dtype}, which are not numbers, such as the "
                "text in a table's columns; leave them out or encode them as numbers."
            )
        native = leaf.dtype.newbyteorder("=")
        # Torch shares no memory that is backwards, read-only, or in another byte order.
        if leaf.dtype != native or not leaf.flags.writeable or min(leaf.strides, default=0) < 0:
            leaf = leaf.astype(native, order="C", copy=True)
        tensor = torch.from_numpy(leaf).to(weight.device)
        return tensor.to(weight.dtype) if tensor.is_floating_point() else tensor

    tree = map_leaves(as_tensor, x)
    for tensor in tensors_of(tree):
        check_tensor(tensor)
    return tree


def as_array(tensor: object) -> Any:
    """A tensor as an array; anything else as it is."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def columns_of(named: Mapping[str, object], batch: int) -> Columns:
    """Every tensor by the name of its quantity and its path in the structure: `mean.pose.0`."""
    columns = {
        f"{name}{path}": as_array(tensor)
        for name, tree in named.items()
        for path, tensor in zip(paths(tree), TensorTree(tree).tensors, strict=True)
    }
    for name, column in columns.items():
        if column.ndim == 0 or len(column) != batch:
            raise ValueError(
                f"`{name}` has shape {column.shape} for {batch} inputs; scores need one row of "
                "output for each input, so wrap the model to put the batch first."
            )
    return columns


def table_of(named: Mapping[str, object], batch: int) -> Columns:
    """A column of numbers, (batch,), for every element of every tensor."""
    return flatten_columns(columns_of(named, batch))


def flatten_columns(columns: Columns) -> Columns:
    """A column of numbers for every element: `mean`, or `mean_0`, `mean_1`, or `mean_0_1`..."""
    flat: Columns = {}
    for name, column in columns.items():
        shape = column.shape[1:]
        indices = ["".join(f"_{i}" for i in index) for index in np.ndindex(shape)]
        suffixes = [""] if len(indices) == 1 else indices
        for suffix, numbers in zip(suffixes, column.reshape(len(column), -1).T, strict=True):
            flat[name + suffix] = numbers
    return flat


def join_columns(parts: list[Columns]) -> Columns:
    """The batches of all parts, one behind the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def paths(tree: object) -> list[str]:
    """Where each floating-point tensor is in a structure: `.pose.0`; "" for a single one."""
    leaves = pytree.tree_leaves_with_path(tree)
    keys = [path for path, leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    count = len(TensorTree(tree).tensors)
    if len(keys) != count:  # A dataclass: torch does not know its fields.
        return [f".{index}" for index in range(count)] if count > 1 else [""]
    return ["".join(f".{key_text(key)}" for key in path) for path in keys]


def key_text(key: Any) -> str:
    """A key of a path without brackets and quotes."""
    return re.sub(r"\W", "", pytree.keystr((key,)))
