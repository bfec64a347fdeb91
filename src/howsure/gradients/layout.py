"""How a model can be run at many points, found out on the user's own network and input.

- The same input gives the same output: two plain passes.
- Points may run as rows of one batch: the rows of a folded pass have the outputs that they have in
  a call for each point, and the gradient of one row's outputs does not reach other rows.
- If not, rows of one call may still be independent: noise on some leaves the outputs of others as
  they are. If not that either, a call is one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import (
    ALL,
    Calls,
    Layout,
    NotRowsError,
    Rows,
    has_rows,
    nothing_to_vary,
    rows_of,
    tensors_of,
)
from howsure.gradients.sources import Sources, leaf, outputs_at, values_at
from howsure.isolation import random_state, random_state_kept
from howsure.setup import Setup
from howsure.trees import is_tracing, map_leaves

# Rows that are looked at; fewer of large inputs.
_ROWS = 8
_ELEMENTS = 2**17
# Pixels from which channels last pay (ResNet-18, forward and backward pass of 8 points: 1.18 times
# the time at 32 x 32, 1.07 at 128 x 128, 0.79 at 224 x 224).
_LARGE_IMAGE = 2**15
# Points at which rows in one batch are compared with rows in calls of their own.
_POINTS = 4

# Name of the fact whether a model draws random numbers, of torch, numpy or Python.
DRAWS = "draws from generators"
# Outputs of other rows that noise moves by so small a share of what it moves a row's own are those
# of rounding, or of a solver that takes its steps for all rows together.
_SHARE = 1e-3

RANDOM = "the model draws random numbers: the same input gave two different outputs"
TOGETHER = (
    "The rows of a batch influence each other, or are not on the axis `batch_dim={axis}`: the "
    "whole call was taken as one input. Say so with `batch_dim=None`, or give rows one by one."
)


@dataclass(frozen=True)
class Verdict:
    """How a model can be run, and why its gradients cannot be used, if so.

    Attributes:
        layout: Whether points run as one batch.
        axes: The axis of each output that counts the rows.
        channels_last: Whether images are laid out with their channels last.
        reason: Why to sample instead; `None` if the gradients can be relied on.
        note: What a user should know about the layout.
        random: Whether the model draws random numbers.
    """

    layout: Layout
    axes: tuple[int, ...] = ()
    channels_last: bool = False
    reason: str | None = None
    note: str | None = None
    random: bool = False

    def calls(self, setup: Setup, x: Any, sources: Sources) -> Calls:
        """The model at an input, to be run in this way."""
        return Calls(setup, x, self.layout, sources.sites, self.axes, self.channels_last)


def some_rows(calls: Calls) -> tuple[Rows, int]:
    """The first rows; few where inputs are large, all where none can be left out."""
    if calls.layout != "folded":
        return ALL, calls.count
    elements = sum(t.numel() for t in tensors_of(calls.x)) // max(1, calls.count)
    count = min(calls.count, max(1, min(_ROWS, _ELEMENTS // max(1, elements))))
    return slice(0, count), count


def require_gradients(setup: Setup, verdict: Verdict) -> None:
    """An error if a variance model cannot be fitted to, or used on, inputs of this kind."""
    reason = why_no_gradients(setup, verdict)
    if reason is not None:
        raise ValueError(
            f"What `fit` finds needs the network's gradients, which cannot be used: {reason}. Fit "
            'with `model="dropout"`.'
        )


def why_no_gradients(setup: Setup, verdict: Verdict) -> str | None:
    """Why the gradients do not make a variance model; `None` if they do.

    Its errors and weights are those of single inputs, which a call that mixes its rows has not.
    """
    mixes_rows = verdict.layout == "whole" and setup.batch_dim is not None
    if mixes_rows and verdict.reason is None:
        return "the rows of a batch influence each other (`batch_dim=None` if a call is one input)"
    return verdict.reason


def layout_of(setup: Setup, x: Any) -> Verdict:
    """How the model can be run for inputs like these; ask `setup.once(layout_of, x)`."""
    if is_tracing():
        return Verdict("folded")
    verdict = _layout(setup, finite(x))
    if verdict.random:
        setup.keep(RANDOM, True)
    return verdict


def finite(x: object) -> Any:
    """The input with 0 in place of NaN and infinity, to find out about inputs of its kind."""

    def leaf(item: object) -> object:
        if not isinstance(item, Tensor) or not item.dtype.is_floating_point:
            return item
        return item if bool(item.isfinite().all()) else item.nan_to_num(0.0, 0.0, 0.0)

    return map_leaves(leaf, x)


def _layout(setup: Setup, x: Any) -> Verdict:
    # A model that draws random numbers leaves those of its caller as they were.
    with torch.no_grad(), random_state_kept():
        calls, before = Calls(setup, x, "whole"), random_state()
        plain, again = calls.plain(), calls.plain()
        setup.keep(DRAWS, random_state() != before)
    if not plain:
        raise nothing_to_vary(calls.parts)
    if not _same(plain, again):
        return Verdict("whole", reason=RANDOM, random=True)
    if setup.batch_dim is None:
        return Verdict("whole")
    if rows_of(x, setup.batch_dim) == 0:
        return Verdict("folded")
    found = _folded(setup, x, plain) or _looped(setup, x, plain)
    return found or Verdict("whole", note=TOGETHER.format(axis=setup.batch_dim))


def _same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    """Equal but for rounding, NaN included."""
    return len(one) == len(two) and all(_close(a, b) for a, b in zip(one, two, strict=True))


def _close(one: Tensor, two: Tensor, among: Tensor | None = None) -> bool:
    """Equal but for the rounding of numbers as large as the largest among some, or of these."""
    if one.shape != two.shape:
        return False
    size = _largest(one if among is None else among)
    eps = torch.finfo(one.dtype).eps
    return torch.allclose(one, two, rtol=200 * eps, atol=200 * eps * size, equal_nan=True)


def _largest(values: Tensor) -> float:
    """The largest size of finite numbers; 0 if there are none."""
    return float(values.abs().nan_to_num(0, 0, 0).max()) if values.numel() else 0.0


def _folded(setup: Setup, x: Any, plain: Sequence[Tensor]) -> Verdict | None:
    """All points as one batch, if rows have the outputs that they have by themselves."""
    if not has_rows(x, setup.batch_dim or 0):
        return None
    sources = Sources.of(setup, x, "folded")
    if not sources.names:
        return next((Verdict("folded", axes) for axes in _candidates(setup, x, plain)), None)
    images = any(t.dim() == 4 and t[0, 0].numel() >= _LARGE_IMAGE for t in tensors_of(x))
    for axes in _candidates(setup, x, plain):
        for channels_last in (True, False) if images else (False,):
            verdict = Verdict("folded", axes, channels_last)
            if _is_foldable(verdict.calls(setup, x, sources), sources, plain):
                return verdict
    return None


def _candidates(setup: Setup, x: Any, plain: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """The axes of the outputs that may count the rows: the declared one, else one that is as long.

    Which it is, the check of independence decides.
    """
    first = setup.batch_dim or 0
    rows = tensors_of(x)[0].shape[first]
    usual = tuple(first if out.dim() > first else 0 for out in plain)
    long = [[a for a, size in enumerate(out.shape) if size == rows] for out in plain]
    if any(not axes for axes in long):
        return []
    pairs = list(zip(long, usual, strict=True))
    other = tuple(next((a for a in axes if a != u), axes[0]) for axes, u in pairs)
    fitting = tuple(u if u in axes else axes[0] for axes, u in pairs)
    return list(dict.fromkeys((fitting, other)))


def _is_foldable(calls: Calls, sources: Sources, plain: Sequence[Tensor]) -> bool:
    """Whether rows of a folded batch have the outputs that they have with noise of their own.

    Noisy points as one batch against one call for each: a model whose rows share anything, be it a
    statistic, a branch or a number of the first row, gives itself away.
    """
    try:
        # Of noise at masks one for each of the masks: rows that share anything share it at all.
        points = [z[:: max(1, len(z) // _POINTS)] for z in sources.drawn(range(1))]
        rows, count = some_rows(calls)
        found = values_at(calls, sources, points, rows, count)
        one_by_one = Calls(calls.setup, calls.x, "looped", calls.sites, calls.axes)
        alone = values_at(one_by_one, sources, points, ALL, calls.count)[:, rows]
        same = alone[0].shape[1] == calls.flat(plain, 1).shape[2] and _close(alone, found)
        same = same and _stands_alone(calls, sources, points, found)
        return same and _is_independent(calls, sources, points, rows, count)
    # A model that expects its own batch size can fail in any way.
    except Exception:
        return False


def _stands_alone(calls: Calls, sources: Sources, points: Sequence[Tensor], found: Tensor) -> bool:
    """Whether a row at a point has the outputs among all that it has in a call of its own.

    A branch on the largest number of a batch is taken by all rows of it, or by none.
    """
    for point in range(len(found)):
        row = point % found.shape[1]
        one = [z[point : point + 1] for z in points]
        try:
            own = values_at(calls, sources, one, slice(row, row + 1), 1)
        except Exception:  # A model that cannot do with one row may fail in any way.
            return True
        if own.shape[2] != found.shape[2]:
            return True
        gap = (found[point, row] - own[0, 0]).abs().nan_to_num(0.0)
        std = found[:, row].var(0, correction=0).sqrt().nan_to_num(0.0)
        is_same = _close(found[point : point + 1, row : row + 1], own, found)
        if not is_same and bool((gap > _SHARE * std).any()):
            return False
    return True


def _looped(setup: Setup, x: Any, plain: Sequence[Tensor]) -> Verdict | None:
    """One call per point, if its rows are independent and every noisy input has them where said."""
    try:
        sources = Sources.of(setup, x, "looped")
        for axes in _candidates(setup, x, plain):
            verdict = Verdict("looped", axes)
            if _has_own_rows(verdict.calls(setup, x, sources), sources, plain):
                return verdict
    # Inputs or masks that have their rows elsewhere can fail in the model in these ways.
    except (NotRowsError, IndexError, ValueError, RuntimeError):
        pass
    return None


def _has_own_rows(calls: Calls, sources: Sources, plain: Sequence[Tensor]) -> bool:
    """Whether rows of one call are independent: noise on some leaves the outputs of others."""
    own = [len(calls.base(noisy.number, ALL)) for noisy in sources.inputs]
    if any(rows != calls.count for rows in own):
        return False
    points = [z[:1] for z in sources.drawn(range(1))]
    alone = calls.flat(plain, 1)[0]
    for quiet in _halves(calls.count):
        leaves = [leaf(z, calls.count, calls).clone() for z in points]
        for each in leaves:
            each[:, quiet] = 0
        with torch.no_grad():
            beside_noise = outputs_at(calls, sources, leaves, ALL)[0]
        if not _close(alone[quiet], beside_noise[quiet]):
            return False
    return _is_independent(calls, sources, points, ALL, calls.count)


def _halves(rows: int) -> list[Tensor]:
    """Halves of the rows, such that of any two rows there is one that has only the first."""
    numbers = torch.arange(rows)
    bits = [numbers >> bit & 1 for bit in range((rows - 1).bit_length())]
    return [(bit == which).nonzero()[:, 0] for bit in bits for which in (0, 1)]


def _is_independent(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> bool:
    """Whether the gradient of the first row's outputs is 0 for all others."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [leaf(z, count, calls).requires_grad_() for z in points]
        try:
            outputs = outputs_at(calls, sources, leaves, rows)
        except RuntimeError:  # It runs without gradients only; the checks of gradients will say so.
            return True
        if outputs.shape[:2] != leaves[0].shape[:2]:
            return False
        if not outputs.requires_grad or not count:
            return True
        own = outputs[0, 0]
        weights = torch.linspace(1, 2, len(own), dtype=own.dtype, device=own.device)
        try:
            found = torch.autograd.grad((weights * own).sum(), leaves, allow_unused=True)
        except RuntimeError:  # There is no backward pass; the checks of gradients will say so.
            return True
    reached = [each.flatten(0, 1) for each in found if each is not None]
    others = sum(float(each[1:].square().sum()) for each in reached)
    return others <= _SHARE**2 * sum(float(each[0].square().sum()) for each in reached)
