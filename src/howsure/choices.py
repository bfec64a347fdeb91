"""Where few numbers of a row choose, clip or bend: noisy points may all lie on one side of it.

A maximum of four scores, a sorted list, a rectifier or a steep sigmoid at the output: a few points
tell the slope on the side where they are, and nothing of the other. Where all that a model returns
depends on an operation that chooses, it is recorded what it chose: which score was the largest,
which side of 0. A smooth function tells by how much its slope varies that it has another side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.private_torch import TorchDispatchMode, pytree

# So few numbers of a row do not average what one of them does.
NARROW = 8


def _whole_steps(args: Sequence[Any], out: Tensor) -> Tensor:
    return ((args[0] - out) / args[1]).round()


def _branch(imaginary: Tensor, real: Tensor) -> Tensor:
    return (imaginary > 0) & (real < 0)


def _largest(args: Sequence[Any], out: Tensor) -> Tensor:
    kept = out if out.dim() == args[0].dim() else out.reshape(_kept_shape(args))
    return args[0] == kept


def _kept_shape(args: Sequence[Any]) -> list[int]:
    shape = list(args[0].shape)
    dims = args[1] if len(args) > 1 and args[1] else range(len(shape))
    for dim in [dims] if isinstance(dims, int) else dims:
        shape[dim] = 1
    return shape


def _of_output(args: Sequence[Any], out: Tensor) -> Tensor:
    return out


def _is_kept(args: Sequence[Any], out: Tensor) -> Tensor:
    return args[0] == out


def _is_positive(args: Sequence[Any], out: Tensor) -> Tensor:
    return args[0] > 0


# What an operation with real results chose, from its arguments and its result. Operations with
# whole numbers as results, such as `argmax`, `sort` and comparisons, choose what they return.
_CHOICES: dict[str, Callable[[Sequence[Any], Tensor], Tensor]] = {
    **dict.fromkeys(("ceil", "floor", "heaviside", "round", "sign", "sgn", "trunc"), _of_output),
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min", "hardtanh", "threshold"), _is_kept),
    **dict.fromkeys(
        ("_prelu_kernel", "abs", "leaky_relu", "relu", "rrelu_with_noise"), _is_positive
    ),
    **dict.fromkeys(("fmod", "remainder"), _whole_steps),
    **dict.fromkeys(("amax", "amin"), _largest),
    **dict.fromkeys(("maximum", "minimum"), lambda args, out: args[0] > args[1]),
    **dict.fromkeys(("hardshrink", "softshrink"), lambda args, out: out.sign()),
    "angle": lambda args, out: _branch(args[0].imag, args[0].real),
    "atan2": lambda args, out: _branch(args[0], args[1]),
    "copysign": lambda args, out: args[1] > 0,
    "frac": lambda args, out: (args[0] - out).round(),
}


# Operations that return the largest or smallest of many numbers, besides those that say its place.
_EXTREMES = frozenset(
    "amax amin max min maximum minimum max_pool1d max_pool2d max_pool3d mkldnn_max_pool2d".split()  # noqa: SIM905
)
# Operations that are linear in what owes to the noise, if a single operand of them does.
_LINEAR = frozenset(
    """
    add sub rsub neg sum mean cumsum cat stack clone copy _to_copy alias detach real imag complex
    view_as_real index index_select gather select slice take flip roll repeat constant_pad_nd fill
    lift_fresh index_add index_copy index_put _unsafe_index scatter scatter_add select_scatter
    slice_scatter as_strided_scatter masked_fill masked_select tril triu diagonal_copy diag_embed
    native_batch_norm _native_batch_norm_legit_no_training avg_pool2d avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d
    upsample_linear1d upsample_bilinear2d _fft_r2c _fft_c2c _fft_c2r
    mul div mm addmm bmm baddbmm mv addmv dot addcmul convolution _sparse_mm _sparse_addmm
    """.split()  # noqa: SIM905
)
# Of these, sums of their operands, of which many may owe to the noise.
_SUMS = frozenset(
    """
    add sub rsub cat stack copy index_add index_copy index_put scatter scatter_add select_scatter
    slice_scatter as_strided_scatter complex
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class _Way:
    """How the noise reaches a tensor, with respect to some kind of operation.

    Attributes:
        is_free: Whether a way leads to it past all narrow operations of the kind.
        is_marked: Whether it is narrow and owes something to one of them.
    """

    is_free: bool
    is_marked: bool

    @property
    def is_decided(self) -> bool:
        """Whether a tensor owes all to operations of the kind, or some of its numbers do."""
        return self.is_marked or not self.is_free

    def __or__(self, other: _Way) -> _Way:
        """Of a tensor that was written in part."""
        return _Way(self.is_free or other.is_free, self.is_marked or other.is_marked)


@dataclass(frozen=True)
class _Flow:
    """What a tensor owes to the noise.

    Attributes:
        choice: By way of what chooses.
        bend: By way of what chooses or is not linear.
        is_multiplied: Whether it owes something to multipliers of units.
    """

    choice: _Way
    bend: _Way
    is_multiplied: bool

    def __or__(self, other: _Flow) -> _Flow:
        """Of a tensor that was written in part."""
        is_multiplied = self.is_multiplied or other.is_multiplied
        return _Flow(self.choice | other.choice, self.bend | other.bend, is_multiplied)


_FREE, _MARKED = _Way(is_free=True, is_marked=False), _Way(is_free=False, is_marked=True)


def _onward(ways: Sequence[_Way], *, is_narrow: bool, is_marking: bool) -> _Way:
    """The way to the result of an operation."""
    if is_narrow and (is_marking or any(way.is_marked for way in ways)):
        return _Way(is_free=False, is_marked=True)
    return _Way(any(way.is_free for way in ways), is_marked=False)


class Choices(TorchDispatchMode):
    """Follows the noise through a pass inside a `with` block, and records what is chosen.

    Attributes:
        chosen: What every narrow operation has chosen, (rows of the batch, numbers).
        reads: How many real numbers that owe something to the noise became Python's.
        ranks_multiplied: Whether units with multipliers are compared with each other, as in a
            maximum of them.
        output: What the pass returned.
    """

    def __init__(self, z: Sequence[Tensor], batch: int, inputs: int) -> None:
        """Prepares a pass of so many rows; the random numbers of the inputs come first in z."""
        super().__init__()
        self.chosen: list[Tensor] = []
        self.reads = 0
        self.ranks_multiplied = False
        self.output: Tensor | None = None
        self._batch = batch
        # By memory, so that views are what they show; it is held until the pass has ended.
        self._flows: dict[int, tuple[object, _Flow]] = {}
        for number, numbers in enumerate(z):
            self._note(numbers, _Flow(_FREE, _FREE, is_multiplied=number >= inputs))

    def by_row(self) -> Tensor:  # (rows of the batch, numbers)
        """All that was chosen; NaN counts as 0."""
        nothing = torch.zeros(self._batch, 0, dtype=torch.float64)
        return torch.cat([nothing, *(c.double() for c in self.chosen)], 1).nan_to_num(0.0)

    @property
    def decide(self) -> bool:
        """Whether the output owes all to narrow choices, or some of its numbers do."""
        flow = None if self.output is None else self._flow(self.output)
        return bool(self.chosen) and flow is not None and flow.choice.is_decided

    @property
    def bend(self) -> bool:
        """Whether it owes all, or some, to narrow operations that are not linear."""
        flow = None if self.output is None else self._flow(self.output)
        return flow is not None and flow.bend.is_decided

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation and notes what its results owe to the noise."""
        kwargs = kwargs or {}
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = {_memory(t): self._flow(t) for t in tensors}
        flows = [flow for t in tensors if (flow := before[_memory(t)]) is not None]
        if not flows:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        is_written = func._schema.is_mutable
        was = args[0].clone() if is_written and name.rstrip("_") in _CHOICES else None
        results = func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.reads += args[0].is_floating_point()
        returned = [out for out in pytree.tree_leaves(results) if isinstance(out, Tensor)]
        # The values of a sorted list go with the places that they had.
        has_places = len(returned) > 1 and not all(map(_is_real, returned))
        for out in returned:
            if _memory(out) in before and not is_written:
                continue
            given = args if was is None else (was, *args[1:])
            flow = self._follow(name.rstrip("_"), given, out, flows, has_places=has_places)
            known = before.get(_memory(out))
            if known is not None and out.numel() < out.untyped_storage().nbytes() // out.itemsize:
                flow = known | flow
            self._note(out, flow)
        return results

    def _follow(
        self,
        name: str,
        args: Sequence[Any],
        out: Tensor,
        flows: Sequence[_Flow],
        *,
        has_places: bool,
    ) -> _Flow:
        """What a result owes to the noise; notes what was chosen."""
        rows = self._by_row(out)
        is_narrow = rows is not None and rows.shape[1] <= NARROW
        is_multiplied = any(flow.is_multiplied for flow in flows)
        self.ranks_multiplied |= is_multiplied and (has_places or name in _EXTREMES)
        if not _is_real(out):
            if is_narrow and rows is not None:
                self.chosen.append(rows)
            return _Flow(_MARKED, _MARKED, is_multiplied)
        choices = [flow.choice for flow in flows]
        is_choice = has_places or name in _CHOICES
        choice = _onward(choices, is_narrow=is_narrow, is_marking=is_choice)
        if choice.is_marked and name in _CHOICES:
            made = self._by_row(_CHOICES[name](args, out))
            if made is not None:
                self.chosen.append(made)
        is_linear = name in _SUMS or (name in _LINEAR and len(flows) == 1)
        bends = [flow.bend for flow in flows]
        bend = _onward(bends, is_narrow=is_narrow, is_marking=is_choice or not is_linear)
        return _Flow(choice, bend, is_multiplied)

    def _by_row(self, tensor: Tensor) -> Tensor | None:
        """The tensor with one row for each of the batch, in front; `None` if it has none."""
        shape = list(tensor.shape)
        if self._batch == 1:
            return tensor.reshape(1, -1)
        if self._batch in shape:
            return tensor.movedim(shape.index(self._batch), 0).reshape(self._batch, -1)
        if shape and shape[0] and shape[0] % self._batch == 0:
            return tensor.reshape(self._batch, -1)
        return None

    def _flow(self, tensor: Tensor) -> _Flow | None:
        return self._flows.get(_memory(tensor), (None, None))[1]

    def _note(self, tensor: Tensor, flow: _Flow) -> None:
        self._flows[_memory(tensor)] = (tensor.untyped_storage(), flow)


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def choices_at(
    function: Callable[[Sequence[Tensor]], Tensor],
    z: Sequence[Tensor],
    batch: int,
    inputs: int | None = None,
) -> Choices:
    """What a function of noise chooses in one pass of so many rows.

    The first of z, by default all, belong to the inputs, the others to multipliers.
    """
    inputs = len(z) if inputs is None else inputs
    with torch.no_grad(), Choices(z, batch, inputs) as choices:
        choices.output = function(z)
    return choices
