"""Watches plain passes of a model: its layers, what follows them, and where their rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from howsure.isolation import isolated, random_state_kept
from howsure.multipliers.layers import (
    DROPOUTS,
    Weights,
    base_name,
    commutes_with_channels,
    follows_a_layer,
    is_recurrent,
    spatial_dims,
)
from howsure.operations import CallSites, Operations
from howsure.trees import as_call, batch_size, is_tracing, map_leaves, unwrap_compiled


@dataclass(frozen=True)
class Rows:
    """Where the rows of a batch are in what a layer takes or gives.

    Attributes:
        axis: The axis that counts them; `None` if the batch does not enter, or is one input.
        are_outer: Of an axis that counts rows and something else besides, such as the frames of
            each row: whether those of a row lie side by side.
    """

    axis: int | None = 0
    are_outer: bool = True

    def others(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of the axes that do not count rows."""
        return tuple(size for axis, size in enumerate(sizes) if axis != self.axis)


IN_FRONT = Rows()


@dataclass
class Layer:
    """A layer met in a dry run, with the operations that follow it directly.

    Attributes:
        name: Such as `layer1.0.conv1`.
        chain: The layer's operation, and those behind it.
        entering: What it took.
        leaving: What it gave.
        pools: The pools at the end of the chain.
        feeds_a_layer: Whether another layer uses what it gave.
        hint: The axis of the rows by the layer's own word.
    """

    name: str
    chain: list[str]
    entering: Tensor
    leaving: Tensor
    pools: list[str] = field(default_factory=list)
    feeds_a_layer: bool = False
    hint: int | None = None


@dataclass(frozen=True, eq=False)
class Dropout:
    """A dropout of the model itself."""

    name: str
    operation: str
    entering: Tensor
    rate: float


@dataclass
class Met:
    """All layers and dropouts of a pass."""

    layers: list[Layer] = field(default_factory=list)
    dropouts: list[Dropout] = field(default_factory=list)

    def tensors(self) -> list[Tensor]:
        """What enters and leaves layers, and what enters dropouts."""
        pairs = [each for layer in self.layers for each in (layer.entering, layer.leaving)]
        return [*pairs, *(dropout.entering for dropout in self.dropouts)]

    def hints(self) -> list[int | None]:
        """The axis of the rows of each tensor, where a layer says it."""
        hints = [hint for layer in self.layers for hint in (layer.hint, layer.hint)]
        return [*hints, *(None for _ in self.dropouts)]


class Explorer(Operations):
    """Watches a plain pass: layers, what follows them, and which feed other layers."""

    def __init__(self, model: Callable[..., object]) -> None:
        super().__init__()
        self.weights = Weights(model)
        self.places = CallSites(model)
        self.met = Met()
        # By identity: which layers a tensor comes from, and whose chain it ends. The tensors are
        # kept alive, so that an identity is not used again.
        self.ancestors: dict[int, set[int]] = {}
        self.tips: dict[int, int] = {}
        self.kept: list[Tensor] = []

    def operation(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Runs the operation and notes what it was."""
        inputs = list(_tensors([args, kwargs]))
        sources = set().union(*(self.ancestors.get(id(t), set()) for t in inputs))
        result = func(*args, **kwargs)
        outputs = list(_tensors(result))
        if not outputs:
            return result
        layer = self.weights.layer_of(func, args, kwargs)
        if layer is not None and inputs:
            # The last argument of a recurrent layer is `batch_first`.
            hint = int(args[-1] is False) if is_recurrent(base_name(func)) else None
            sources = self._enter_layer(layer, func, inputs, outputs, sources, hint)
        else:
            self._follow(func, args, kwargs, inputs, outputs[0])
        for output in outputs:
            self.ancestors[id(output)] = self.ancestors.get(id(output), set()) | sources
            self.kept.append(output)
        return result

    def _enter_layer(
        self,
        name: str,
        func: Callable[..., object],
        inputs: list[Tensor],
        outputs: list[Tensor],
        sources: set[int],
        hint: int | None,
    ) -> set[int]:
        for index in sources:
            self.met.layers[index].feeds_a_layer = True
        data = next((t for t in inputs if id(t) not in self.weights.names), inputs[0])
        name = name or self.places.module_path() or base_name(func)
        # A view of its own: the model may change the shape of its tensor in place.
        new = Layer(name, [base_name(func)], data.detach(), outputs[0].detach(), hint=hint)
        self.met.layers.append(new)
        index = len(self.met.layers) - 1
        self.tips[id(outputs[0])] = index
        return {index}

    def _follow(
        self,
        func: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        output: Tensor,
    ) -> None:
        name = base_name(func)
        if name in DROPOUTS and inputs:
            rate = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))
            where = self.places.module_path() or name
            self.met.dropouts.append(Dropout(where, name, inputs[0].detach(), rate))
        if not inputs or id(inputs[0]) not in self.tips:
            return
        layer = self.met.layers[index := self.tips.pop(id(inputs[0]))]
        if commutes_with_channels(func) and spatial_dims(layer.chain[0]):
            layer.pools.append(name)
        elif follows_a_layer(func) and output.shape == layer.leaving.shape and not layer.pools:
            layer.chain.append(name)
        else:
            return
        self.tips[id(output)] = index


def watched(model: Callable[..., object], x: object) -> Met:
    """What a plain pass meets."""
    explorer = Explorer(model)
    args, kwargs = as_call(x, model)
    # A model that draws random numbers leaves those of its caller as they were.
    with torch.no_grad(), random_state_kept(), explorer:
        isolated(unwrap_compiled(model))(*args, **kwargs)
    return explorer.met


def rows_in(model: Callable[..., object], x: object, met: Met, batch_dim: int | None) -> list[Rows]:
    """Where the rows are in each of the tensors that a pass met.

    By a pass with another number of rows: the axis whose length is another counts them. It is the
    declared one where the model takes no other number.
    """
    if batch_dim is None:
        return [Rows(None)] * len(met.tensors())
    usual = [Rows(batch_dim if hint is None else hint) for hint in met.hints()]
    if is_tracing():
        return usual
    try:
        few = _of_few_rows(model, x, batch_dim)
        if len(few) != len(usual):
            return usual
        every = zip(met.tensors(), few, usual, strict=True)
        count = _few(batch_size(x, batch_dim))
        found = [_rows_of(one, two, count, own) for one, two, own in every]
        pairs = list(zip(few, found, strict=True))
        # The order of rows matters only on an axis that counts something else besides.
        if all(rows.axis is None or two.shape[rows.axis] == count for two, rows in pairs):
            return found
        back = _of_few_rows(model, x, batch_dim, backwards=True)
        return [_ordered(*pair, end, count) for pair, end in zip(pairs, back, strict=True)]
    # A model that expects its own batch size can fail in any way.
    except Exception:
        return usual


def _few(count: int) -> int:
    """Another number of rows; not 1, which models may take for none."""
    return 2 if count != 2 else 3


def _of_few_rows(
    model: Callable[..., object], x: object, axis: int, *, backwards: bool = False
) -> list[Tensor]:
    """What a pass with few rows meets, in their order or backwards."""
    count = batch_size(x, axis)
    numbers = torch.arange(_few(count))
    numbers = numbers.flip(0) if backwards else numbers

    def leaf(item: object) -> object:
        if not isinstance(item, Tensor) or item.dim() <= axis or item.shape[axis] != count:
            return item
        chosen = item.index_select(axis, (numbers % count).to(item.device))
        if not item.dtype.is_floating_point:
            return chosen
        # Rows that differ also where there is but one.
        scale = (1 - numbers / 4).to(item).reshape(-1, *(1,) * (item.dim() - axis - 1))
        return chosen * scale

    return watched(model, map_leaves(leaf, x)).tensors()


def _rows_of(one: Tensor, few: Tensor, count: int, usual: Rows) -> Rows:
    """Which axis counts the rows in a tensor of which there is one with few rows."""
    if one.dim() != few.dim():
        return usual
    axes = [axis for axis, (a, b) in enumerate(zip(one.shape, few.shape, strict=True)) if a != b]
    if not axes:
        return Rows(None)
    return usual if len(axes) > 1 or few.shape[axes[0]] % count else Rows(axes[0])


def _ordered(few: Tensor, rows: Rows, backwards: Tensor, count: int) -> Rows:
    """The rows with their order on an axis that counts more, by the same rows backwards."""
    axis = rows.axis
    if axis is None or few.shape[axis] == count:
        return rows
    inner = few.unflatten(axis, (-1, count)).flip(axis + 1).flatten(axis, axis + 1)
    return Rows(axis, are_outer=not torch.allclose(inner, backwards, rtol=1e-4, atol=1e-6))


def _tensors(tree: object) -> Iterator[Tensor]:
    """All floating-point tensors in nested arguments, in order."""
    if isinstance(tree, Tensor):
        if tree.dtype.is_floating_point:
            yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
