"""A model called at many points at once: the rows of all points as one batch, or point by point."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from howsure.multipliers import Multiply, Site
from howsure.setup import Setup
from howsure.trees import Slot, TensorTree, clone_tensors, map_leaves

# "folded": all points are rows of one batch. "looped": one call per point, whose rows are
# independent. "whole": one call per point, which is one input with all its rows.
Layout = Literal["folded", "looped", "whole"]
Rows = slice | Tensor
ALL = slice(None)


class Calls:
    """Runs a setup's model at points that differ in some inputs and in the dropout masks.

    Attributes:
        tensors: The floating-point tensors of the input.
        count: How many rows the input has; 1 if it is taken as a whole.
        parts: The structure of the model's output, once it was called.
        columns: The outputs of every row that count, (rows, outputs); `None` for all.
        finish: What is done to the model's output.
    """

    def __init__(
        self,
        setup: Setup,
        x: Any,
        layout: Layout,
        sites: Sequence[Site] = (),
        axes: Sequence[int] = (),
        channels_last: bool = False,
    ) -> None:
        self.setup = setup
        self.x = x
        self.tensors = TensorTree(x).tensors
        self.layout: Layout = layout
        self.sites = sites
        self.axes = axes
        self.channels_last = channels_last
        self.axis = setup.batch_dim or 0
        self.count = 1 if layout == "whole" else rows_of(x, self.axis)
        self.parts: TensorTree | None = None
        self.columns: Tensor | None = None
        self.finish: Callable[[Any], Any] = lambda output: output

    @property
    def dtype(self) -> torch.dtype:
        """Of all outputs together: the widest."""
        assert self.parts is not None
        first, *others = (out.dtype for out in self.parts.tensors)
        return functools.reduce(torch.promote_types, others, first)

    def check_logits(self) -> None:
        """An error if the outputs are not one row of logits for each input."""
        assert self.parts is not None
        shapes = [tuple(out.shape) for out in self.parts.tensors]
        if len(shapes) != 1 or len(shapes[0]) != 2:
            raise TypeError(
                "Classification needs a model that returns one tensor of logits, (batch, "
                f"classes); this one returns {shapes}. Choose it with `output=`."
            )

    @property
    def has_one_row(self) -> bool:
        """Whether all outputs are the logits of one row, (classes,) or (1, classes)."""
        assert self.parts is not None
        shapes = [out.shape for out in self.parts.tensors]
        return all(shape.numel() == shape[-1] for shape in shapes if len(shape))

    def base(self, number: int, rows: Rows) -> Tensor:
        """Some rows of a floating-point input, in front; the whole input, if it is one."""
        tensor = self.tensors[number].detach()
        own = tensor.unsqueeze(0) if self.layout == "whole" else _in_front(tensor, self.axis)
        return own if rows is ALL else own[rows]

    def plain(self) -> tuple[Tensor, ...]:
        """What the model itself says: one call with copies of the inputs."""
        self.parts = TensorTree(self.finish(self.setup.run(clone_tensors(self.x))))
        return tuple(self.parts.tensors)

    @property
    def returns_one_tensor(self) -> bool:
        """Whether the model's output is a tensor and nothing else."""
        return self.parts is not None and isinstance(self.parts.template, Slot)

    def outputs(self) -> int:
        """How many numbers an input has as outputs."""
        with torch.no_grad():
            return self.flat(self.plain(), 1).shape[2]

    def at(
        self,
        points: int,
        noisy: Mapping[int, Tensor],
        masks: Sequence[Tensor | None] = (),
        rows: Rows = ALL,
    ) -> Tensor:
        """The outputs at the points, flat: (points, rows, outputs).

        Args:
            points: How many.
            noisy: Floating-point inputs by number, (points, rows, *row's shape).
            masks: Masks of the sites, (points, rows, *units).
            rows: The rows that are run; only folded calls can leave rows out.
        """
        if self.layout == "folded":
            return self._call(points, noisy, masks, rows)
        parts = [
            self._call(
                1,
                {i: each[p : p + 1] for i, each in noisy.items()},
                [None if mask is None else mask[p : p + 1] for mask in masks],
                rows,
            )
            for p in range(points)
        ]
        return torch.cat(parts)

    def _call(
        self,
        points: int,
        noisy: Mapping[int, Tensor],
        masks: Sequence[Tensor | None],
        rows: Rows,
    ) -> Tensor:
        filled = self._input(points, noisy, rows)
        units = [None if mask is None else self._joined(mask) for mask in masks]
        if any_of(units):
            with Multiply(self.setup.model, self.sites, units) as mode:
                output = self.setup.run(filled)
            mode.check_all_used()
        else:
            output = self.setup.run(filled)
        found = TensorTree(self.finish(output))
        # What the plain call returned besides tensors is what users expect.
        self.parts = self.parts or found
        flat = self.flat(found.tensors, points)
        if self.columns is None:
            return flat
        return flat.gather(2, self.columns[rows].expand(points, -1, -1))

    def _input(self, points: int, noisy: Mapping[int, Tensor], rows: Rows) -> Any:
        """The input with noisy tensors in place of its own, and copies of all others."""
        number = -1

        def leaf(item: Any) -> Any:
            nonlocal number
            if not isinstance(item, Tensor):
                return item
            number += item.dtype.is_floating_point
            if item.dtype.is_floating_point and number in noisy:
                own = self._moved_back(self._joined(noisy[number]))
                # Some models look at the memory itself: it is no piece of a larger one.
                return own if self.layout == "folded" else own.clone()
            if self.layout != "folded" or item.dim() == 0:
                return item.clone()
            own = _in_front(item, self.axis)[rows]
            return self._moved_back(own.repeat(points, *(1,) * (own.dim() - 1)))

        return map_leaves(leaf, self.x)

    def _joined(self, tensor: Tensor) -> Tensor:
        """Points and rows on one axis; the whole input, if it is one."""
        return tensor[0, 0] if self.layout == "whole" else tensor.flatten(0, 1)

    def _moved_back(self, tensor: Tensor) -> Tensor:
        if self.layout == "whole":
            return tensor
        # The order in memory in which convolutions of a processor are fastest.
        if tensor.dim() == 4 and self.axis == 0 and self.channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.movedim(0, self.axis) if self.axis else tensor

    def flat(self, outputs: Sequence[Tensor], points: int) -> Tensor:
        """Outputs as (points, rows, outputs)."""
        if self.layout == "whole":
            return torch.cat([out.reshape(1, 1, -1) for out in outputs], 2)
        columns = [self._rows_first(out, i, points) for i, out in enumerate(outputs)]
        return columns[0] if len(columns) == 1 else torch.cat(columns, 2)

    def _rows_first(self, out: Tensor, number: int, points: int) -> Tensor:
        axis = self._output_axis(number)
        if out.dim() <= axis or out.shape[axis] % points:
            raise NotRowsError(
                f"An output of shape {tuple(out.shape)} does not have a row for each input."
            )
        rows = _in_front(out, axis)
        return rows.reshape(points, rows.shape[0] // points, math.prod(rows.shape[1:]))

    def _output_axis(self, number: int) -> int:
        return self.axes[number] if number < len(self.axes) else self.axis

    def shaped(self, flat: Tensor, *, wide: bool = False) -> list[Tensor]:  # (rows, outputs)
        """Flat outputs in the shapes and types of the model's.

        Variances and errors are `wide`: those of half precision are kept in float32.
        """
        assert self.parts is not None
        pairs = zip(self._shaped(flat), self.parts.tensors, strict=True)
        return [each.to(_wide(out.dtype) if wide else out.dtype) for each, out in pairs]

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        assert self.parts is not None
        tensors = self.parts.tensors
        if self.layout == "whole":
            columns = flat.split([out.numel() for out in tensors], 1)
            return [p.reshape(out.shape) for p, out in zip(columns, tensors, strict=True)]
        if len(tensors) == 1 and self._output_axis(0) == 0:
            own = tensors[0].shape[1:]
            return [flat if flat.shape[1:] == own else flat.reshape(flat.shape[0], *own)]
        found, start = [], 0
        for number, out in enumerate(tensors):
            axis = self._output_axis(number)
            rest = (*out.shape[:axis], *out.shape[axis + 1 :])
            size = math.prod(rest)
            column = flat[:, start : start + size].reshape(flat.shape[0], *rest)
            found.append(column.movedim(0, axis) if axis else column)
            start += size
        return found


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _in_front(tensor: Tensor, axis: int) -> Tensor:
    """The tensor with this axis first."""
    return tensor.movedim(axis, 0) if axis else tensor


class NotRowsError(ValueError):
    """The output does not have one row for each row of the input."""


def nothing_to_vary(parts: TensorTree | None) -> TypeError:
    """The error for outputs that have no variance, with what to do."""
    found = parts.template if parts else None
    kind, such = f"a {type(found).__name__}", "such as an attribute or a function"
    if isinstance(found, Tensor):
        kind = f"a tensor of {str(found.dtype).removeprefix('torch.')}"
        such = "such as `torch.view_as_real`" if found.is_complex() else "such as what it rounds"
    return TypeError(
        "The model returns no floating-point tensor, so nothing has a variance. It returns "
        f"{kind}; choose a part of that with `output=`, {such}."
    )


def rows_of(x: Any, axis: int = 0) -> int:
    """The length of the batch axis of the first tensor of an input."""
    tensors = tensors_of(x)
    if not tensors or tensors[0].dim() <= axis:
        raise ValueError(
            f"The input has no batch axis {axis}; give inputs of shape (batch, ...), or say with "
            "`batch_dim=None` that a call is one input."
        )
    return tensors[0].shape[axis]


def has_rows(x: Any, axis: int) -> bool:
    """Whether every tensor of an input has the declared batch axis, all of one length."""
    tensors = [tensor for tensor in tensors_of(x) if tensor.dim() > 0]
    if not tensors or any(tensor.dim() <= axis for tensor in tensors):
        return False
    return len({tensor.shape[axis] for tensor in tensors}) == 1


def tensors_of(x: Any) -> list[Tensor]:
    """All tensors of an input, in order."""
    found: list[Tensor] = []
    map_leaves(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, x)
    return found


def any_of(masks: Sequence[Tensor | None]) -> bool:
    """Whether there is a mask at all."""
    return any(mask is not None for mask in masks)
