"""Where few numbers of a row choose, round or clip: noisy points may all lie on one side of it.

A maximum of four scores, a sorted list, a rectifier at the output: a few points tell the slope on
the side where they are, and nothing of the other. Where all that a model returns depends on such an
operation, it is recorded what the operation chose: which score was the largest, which side of 0.
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


@dataclass(frozen=True)
class _Flow:
    """What a tensor owes to the noise.

    Attributes:
        is_free: Whether a way leads to it past all narrow choices.
        is_chosen: Whether it is narrow and owes something to a choice, or is one.
    """

    is_free: bool
    is_chosen: bool


class Choices(TorchDispatchMode):
    """Follows the noise through a pass inside a `with` block, and records what is chosen.

    Attributes:
        chosen: What every narrow operation has chosen, (rows of the batch, numbers).
        reads: How many real numbers that owe something to the noise became Python's.
        output: What the pass returned.
    """

    def __init__(self, noise: Sequence[Tensor], batch: int) -> None:
        """Prepares a pass of so many rows with some noise."""
        super().__init__()
        self.chosen: list[Tensor] = []
        self.reads = 0
        self.output: Tensor | None = None
        self._batch = batch
        # By memory, so that views are what they show; it is held until the pass has ended.
        self._flows: dict[int, tuple[object, _Flow]] = {}
        for z in noise:
            self._note(z, _Flow(is_free=True, is_chosen=False))

    def by_row(self) -> Tensor:  # (rows of the batch, numbers)
        """All that was chosen; NaN counts as 0."""
        return torch.cat([c.double() for c in self.chosen], 1).nan_to_num(0.0)

    @property
    def decide(self) -> bool:
        """Whether the output owes all to narrow choices, or some of its numbers do."""
        flow = None if self.output is None else self._flow(self.output)
        return bool(self.chosen) and flow is not None and (flow.is_chosen or not flow.is_free)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation and notes what its results owe to the noise."""
        kwargs = kwargs or {}
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = {_memory(t): self._flow(t) for t in tensors}
        flows = [flow for flow in before.values() if flow is not None]
        name = func.overloadpacket.__name__
        if not flows:
            return func(*args, **kwargs)
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
                free, chosen = known.is_free or flow.is_free, known.is_chosen or flow.is_chosen
                flow = _Flow(free, chosen)
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
        if not _is_real(out):
            if is_narrow and rows is not None:
                self.chosen.append(rows)
            return _Flow(is_free=False, is_chosen=True)
        choice = _CHOICES.get(name)
        is_chosen = has_places or any(flow.is_chosen for flow in flows)
        if not is_narrow or not (is_chosen or choice is not None):
            return _Flow(any(flow.is_free for flow in flows), is_chosen=False)
        if choice is not None:
            made = self._by_row(choice(args, out))
            if made is not None:
                self.chosen.append(made)
        return _Flow(is_free=False, is_chosen=True)

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
    function: Callable[[Sequence[Tensor]], Tensor], z: Sequence[Tensor], batch: int
) -> Choices:
    """What a function of noise chooses in one pass of so many rows."""
    with torch.no_grad(), Choices(z, batch) as choices:
        choices.output = function(z)
    return choices
