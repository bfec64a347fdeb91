"""The inputs of a network's layers, read while the network itself runs.

A torch function mode reads them, as masks are placed: the model is not touched, other threads see
nothing of it, layers that are called as functions count, and leaving the `with` block ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.operations import LayerNames, Operations, base_name, numbered, spatial_dims
from howsure.trees import TensorTree, batch_size, clone_tensors, tensors_of

if TYPE_CHECKING:
    from howsure.setup import Setup


@dataclass(frozen=True, eq=False)
class Activations:
    """What one plain pass shows, in the order in which the layers were called.

    Attributes:
        output: What the model returned.
        logits: Of classes the output, (rows, classes), or (rows, classes, height, width); else all
            numbers of an input in one row.
        inputs: The input of every layer, averaged over places or tokens, (rows, features).
        outputs: Likewise its output.
        averaged: The layers whose input has several places or tokens.
    """

    output: Any
    logits: Tensor
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    averaged: set[str]


def read(setup: Setup, x: Any, wanted: Collection[str] | None = None) -> Activations:
    """The outputs and the activations of one plain pass; of all layers, or of those wanted."""
    axis, has_classes = setup.batch_dim or 0, setup.task != "regression"
    rows = 0 if has_classes and not axis else batch_size(x, axis)
    reader = LayerReader(setup.model, wanted, axis, rows)
    # Random numbers that the model draws are not its caller's.
    with torch.no_grad(), torch.random.fork_rng(devices=[]), reader:
        output = setup.run(clone_tensors(x))
    logits = logits_of(output) if has_classes else reader.in_rows(output)
    return Activations(output, logits, reader.inputs, reader.outputs, reader.averaged)


def summarize_inputs(x: Any, batch_dim: int | None) -> Tensor:  # (batch, numbers)
    """The numbers of every input that are compared with the range of the known ones.

    All of a vector; of an image the least and the largest of every channel; of a sequence those of
    every step and of every feature; of a call that is one input those of every tensor.
    """
    floats = [t.detach().double() for t in tensors_of(x) if t.is_floating_point()]
    if batch_dim is None:
        edges = [edge for t in floats for edge in (t.amin(), t.amax()) if t.numel()]
        return torch.stack(edges)[None] if edges else torch.zeros(1, 0, dtype=torch.float64)
    rows, parts = batch_size(x, batch_dim), []
    for tensor in floats:
        if tensor.dim() <= batch_dim or tensor.shape[batch_dim] != rows:
            continue
        values = tensor.movedim(batch_dim, 0)
        if values.dim() <= 2:
            parts.append(values.reshape(rows, -1))
            continue
        lines = [values.flatten(2)] if values.dim() > 3 else [values, values.mT]
        parts += [edge for line in lines for edge in (line.amin(2), line.amax(2))]
    return torch.cat(parts, 1) if parts else torch.zeros(rows, 0, dtype=torch.float64)


def logits_of(output: Any) -> Tensor:
    """The one tensor of logits in a model's output; an error if it has others."""
    tensors = TensorTree(output).tensors
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(shapes) != 1 or not 1 <= len(shapes[0]) <= 4:
        raise TypeError(
            "A temperature needs a model that returns one tensor of logits, (batch, classes), "
            f"(batch, tokens, classes) or (batch, classes, height, width); this one returns "
            f'{shapes}. Choose it with `output=`, or fit with `model="dropout"`.'
        )
    return tensors[0]


class LayerReader(Operations):
    """Notes what goes into the layers of a pass, and what comes out.

    Rows are in front, or on the axis that counts the inputs of the model, if one is as long.
    """

    def __init__(
        self, model: Any, wanted: Collection[str] | None, axis: int = 0, rows: int = 0
    ) -> None:
        super().__init__()
        self.wanted = wanted
        self.axis, self.rows = axis, rows
        self.names = LayerNames(model)
        self.calls: Counter[str] = Counter()
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.averaged: set[str] = set()

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation; if it is a layer, notes it first."""
        layer = self.names.layer_of(func, args, kwargs)
        if layer is None:
            return func(*args, **kwargs)
        name = numbered(layer, self.calls)  # A layer that is called again is another one.
        if self.wanted is not None and name not in self.wanted:
            return func(*args, **kwargs)
        dims, data = spatial_dims(base_name(func)), self._data(args, kwargs)
        # Before the call, which may write into its input.
        if data is not None:
            self.inputs |= _average_positions(name, self._rows_first(data), dims)
            self.averaged |= {name} if data.dim() > 2 else set()
        result = func(*args, **kwargs)
        if self.wanted is None and isinstance(result, Tensor):
            self.outputs |= _average_positions(name, self._rows_first(result), dims)
        return result

    def _rows_first(self, data: Tensor) -> Tensor:
        axis = self.axis
        is_there = axis and data.dim() > axis and data.shape[axis] == self.rows
        return data.movedim(axis, 0) if is_there else data

    def in_rows(self, output: Any) -> Tensor:  # (rows, numbers)
        """All numbers of an input's output in one row."""
        tensors = [self._rows_first(t.detach()) for t in TensorTree(output).tensors]
        by_row = [t.reshape(self.rows, -1) for t in tensors if t.dim() and len(t) == self.rows]
        return torch.cat(by_row, 1) if by_row else torch.zeros(self.rows, 0)

    def _data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The first operand that is no weight."""
        weights = self.names.parameters
        operands = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        data = (t for t in operands if t.is_floating_point() and id(t) not in weights)
        return next(data, None)


def _average_positions(name: str, data: Tensor, dims: int) -> dict[str, Tensor]:  # (rows, features)
    """The mean over the places of a convolution, or the tokens of others; nothing without rows."""
    if data.dim() < dims + 2:
        return {}
    wide = data.detach() if data.dtype == torch.float64 else data.detach().float()
    places = wide.flatten(2) if dims else wide.reshape(len(wide), -1, wide.shape[-1]).mT
    return {name: places.mean(2)}


class LastLinear(Operations):
    """Keeps the input of the last linear layer of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.input: Tensor | None = None

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation, and keeps the input of a linear layer."""
        if base_name(func) == "linear":
            self.input = args[0] if args else kwargs["input"]
        return func(*args, **kwargs)

    def features(self, batch: int) -> Tensor:  # (batch, features)
        """The input of the layer; an error unless it has one vector for each sample of a batch."""
        if self.input is None or self.input.dim() != 2 or len(self.input) != batch:
            problem = "there is no linear layer"
            if self.input is not None:
                problem = f"it has inputs of shape {tuple(self.input.shape)}"
            raise ValueError(
                "`train` needs a last linear layer with one row of inputs for each input of the "
                f"model, and {problem}; fit without it, with `train_inputs`."
            )
        return self.input.detach()
