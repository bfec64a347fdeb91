"""How a model can be run, found out on the user's own network and input.

- The same input gives the same output: two plain passes.
- Points may run as rows of one batch: the rows of such a pass have the outputs that they have in a
  call for each point, and the gradient of one row's outputs does not reach other rows.
- If not, rows of one call may still be independent: noise on some leaves the outputs of others as
  they are. If not that either, a call is one input.

- Its gradients are those of its outputs: a part may be detached, or have a backward pass of its
  own. Whether those of a row can be relied on, each call judges by what it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.choices import choices_at
from howsure.estimators.designs import FEW_ELEMENTS
from howsure.estimators.gradients import ALL, Rows, hides_gradients
from howsure.isolation import modules_of, random_state, random_state_kept, writes_nothing
from howsure.private_torch import unwrap_compiled
from howsure.problem import MOST_OUTPUTS, Layout, NotRowsError, Probe, Problem, Sources, has_rows
from howsure.progress import say_if_slow
from howsure.trees import (
    Slot,
    TensorTree,
    batch_size,
    clone_tensors,
    is_tracing,
    map_leaves,
    tensors_of,
)

if TYPE_CHECKING:
    from howsure.setup import Setup

# What is said where the checks of a first call take a while.
CHECKING = "howsure: checking {what}, once for inputs of this shape."

# Rows that are looked at; fewer of large inputs.
_ROWS = 8
_ELEMENTS = 2**17
# Passes with masks, over few rows, by which the average log std is known to 0.08 or better: it
# differs by at most 0.15 where multipliers stand for dropout, by 0.2 to 0.5 for a maximum over
# dropped units. Fewer where these leave no doubt.
_MASKS, _FEWEST_MASKS, _MASKED_ROWS, _MASKED_GAP = 256, 64, 4, 0.15
# Pixels from which channels last pay (ResNet-18, forward and backward pass of 8 points: 1.18 times
# the time at 32 x 32, 1.07 at 128 x 128, 0.79 at 224 x 224).
_LARGE_IMAGE = 2**15
# Points at which rows in one batch are compared with rows in calls of their own.
_POINTS = 4
# Points among whose rows a gradient is looked for that reaches from one to another.
_FEW = 3
# Name of the fact whether a model draws random numbers, of torch, numpy or Python.
DRAWS = "draws from generators"
# Outputs of other rows that noise moves by so small a share of what it moves a row's own are those
# of rounding, or of a solver that takes its steps for all rows together.
_SHARE = 1e-3

RANDOM = "the model draws random numbers: the same input gave two different outputs"
WRITES_WEIGHTS = (
    "The model writes its own weights during a call, and howsure calls it many times; keep what "
    "changes in a buffer or an attribute, which is copied for every call."
)
MIXES_ROWS = (
    "The rows of a batch influence each other, or are not on the axis `batch_dim={axis}`: the "
    "whole call was treated as one input. Pass `batch_dim=None` if it is, or give rows one by one."
)


def notes_on(probe: Probe, setup: Setup) -> tuple[str, ...]:
    """What a user should know about how the model was run."""
    return (MIXES_ROWS.format(axis=setup.batch_dim),) if probe.mixes_rows else ()


def probe_model(setup: Setup, x: Any) -> Probe:
    """How the model can be run for inputs like these; ask `setup.cached(probe_model, x)`."""
    if is_tracing():
        return Probe(Layout.BATCHED)
    x = replace_nonfinite(x)
    # A model that draws random numbers leaves those of its caller as they were.
    with torch.no_grad(), random_state_kept():
        before, writes = random_state(), _weight_writes(setup.model)
        output = TensorTree(setup.run(clone_tensors(x)))
        plain, again = output.tensors, TensorTree(setup.run(clone_tensors(x))).tensors
        setup.keep(DRAWS, random_state() != before)
    if _weight_writes(setup.model) != writes:
        raise ValueError(WRITES_WEIGHTS)
    if not plain:
        raise nothing_to_vary(output)
    _check_readable(plain, x)
    with say_if_slow(CHECKING.format(what="how the model runs")), random_state_kept():
        probe = _layout(setup, x, plain, again)
    problem = Problem(setup, x, probe, Sources(()))
    try:
        outputs = problem.flatten(plain, 1).shape[2]
    except NotRowsError:  # Rows are elsewhere; nothing varies, or a call will say so.
        outputs = sum(out.numel() for out in plain)
    only_floats = [True]

    def check(leaf: Any) -> None:
        only_floats[0] &= leaf is None or isinstance(leaf, Slot)

    map_leaves(check, output.template)
    return replace(
        probe,
        outputs=outputs,
        returns_floats_only=only_floats[0],
        writes_nothing=writes_nothing(unwrap_compiled(setup.model)),
    )


def probe_gradients(setup: Setup, x: Any) -> Probe:
    """The same, with whether a part has no gradient; ask `setup.cached(probe_gradients, x)`."""
    probe = setup.cached(probe_model, x)
    x = x if is_tracing() else replace_nonfinite(x)
    problem = Problem(setup, x, probe)
    is_varied = bool(problem.sources.all) and problem.rows > 0
    if is_tracing() or probe.is_random or not is_varied or probe.outputs > MOST_OUTPUTS:
        return probe
    followed = _Followed(problem)
    try:
        with say_if_slow(CHECKING.format(what="whether the model's gradients are right")):
            hidden = hides_gradients(followed, *some_rows(problem))
            hides = bool((2 * hidden.sum(1) > hidden.shape[1]).any())
            needs_masks = not hides and followed.may_need_masks and _needs_masks(problem)
    except (RuntimeError, TypeError):  # There is no backward pass; a call will say so.
        return probe
    return replace(
        probe,
        hides_gradients=hides,
        hides_in_rows=bool(hidden.any()),
        needs_masks=needs_masks,
        chooses=followed.chooses,
        bends=followed.bends,
    )


def _needs_masks(problem: Problem) -> bool:
    """Whether the model's own dropout makes another variance than Gaussian multipliers, on average.

    As where a maximum over dropped units is taken: multipliers have no limit, kept units have one.
    A rate that was fitted makes up for it.
    """
    setup = problem.setup
    is_own = setup.placement.kind == "existing" and setup.rate is None and setup.uniforms is None
    if not problem.sources.active or not is_own:
        return False
    rows, count = some_rows(problem)
    if problem.may_choose_rows and count > _MASKED_ROWS:
        rows, count = slice(0, _MASKED_ROWS), _MASKED_ROWS
    most, fewest = (max(_ROWS, passes // count) for passes in (_MASKS, _FEWEST_MASKS))
    at_once = max(1, min(fewest, _ELEMENTS // (count * max(1, problem.elements))))
    dropped, multiplied, size, gap = [], [], problem.group_size, 0.0
    for start in range(0, most, at_once):
        groups = range(start, min(start + at_once, most))
        draws = problem.draw(groups, rows)
        noisy = {number: x[::size] for number, x in draws.noisy.items()}  # one for each mask
        masks = [None if mask is None else mask[::size] for mask in draws.masks]
        # The first points of blocks share nothing.
        points = [z[:: problem.design.points] for z in problem.points(groups, count)]
        with torch.no_grad():
            dropped.append(problem.run(len(groups), noisy, masks, rows))
            multiplied.append(problem(points, rows))
        if groups.stop >= fewest:
            gap = _gap(torch.cat(multiplied), torch.cat(dropped))
            if gap < _MASKED_GAP / 2:
                return False
    return gap > _MASKED_GAP


def _gap(multiplied: Tensor, dropped: Tensor) -> float:
    """By how much the logarithm of the std of outputs, (points, rows, outputs), differs."""
    one, two = (values.double().var(0) for values in (multiplied, dropped))
    varies = (one > 0) & (two > 0) & one.isfinite() & two.isfinite()
    return abs(float((one[varies].log() - two[varies].log()).mean()) / 2) if varies.any() else 0.0


class _Followed(Problem):
    """A problem that follows the noise through some points of its first pass without gradients.

    Attributes:
        chooses: Whether few numbers of a row choose what it returns, or Python reads one of them.
        bends: Whether they choose it or pass a function that is not linear, among many random
            numbers, of which few points show little.
        may_need_masks: Whether units with multipliers are compared, or nothing could be followed.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.setup, problem.x, problem.probe, problem.sources)
        self.chooses = self.bends = False
        self.may_need_masks = True
        # Compiled operations are not seen.
        self._is_done = unwrap_compiled(problem.setup.model) is not problem.setup.model

    def __call__(self, z: Sequence[Tensor], rows: Rows = ALL) -> Tensor:
        """As a problem does."""
        if self._is_done or torch.is_grad_enabled():
            return super().__call__(z, rows)
        self._is_done = True
        # Few points, since all that follows from them is kept until the last operation.
        count = _POINTS if self.probe.layout is Layout.BATCHED else 1
        first, others = [part[:count] for part in z], [part[count:] for part in z]
        batch = len(first[0]) * first[0].shape[1]
        run = super().__call__
        try:
            choices = choices_at(lambda points: run(points, rows), first, batch, self.inputs)
        except Exception:  # What cannot be looked at runs without.
            return run(z, rows)
        # A call that is one input may read a number of it for many reasons, such as to end a loop.
        has_rows_read = self.probe.layout is not Layout.SINGLE and choices.reads >= batch
        self.chooses = choices.decide or has_rows_read
        self.bends = choices.bend and self.elements > FEW_ELEMENTS
        self.may_need_masks = choices.ranks_multiplied
        assert choices.output is not None
        return torch.cat([choices.output, run(others, rows)])


def replace_nonfinite(x: object) -> Any:
    """The input with 0 in place of NaN and infinity, to find out about inputs of its kind."""

    def leaf(item: object) -> object:
        if not isinstance(item, Tensor) or not item.dtype.is_floating_point:
            return item
        return item if bool(item.isfinite().all()) else item.nan_to_num(0.0, 0.0, 0.0)

    return map_leaves(leaf, x)


def some_rows(problem: Problem) -> tuple[Rows, int]:
    """The first rows; few where inputs are large, all where none can be left out."""
    if not problem.may_choose_rows:
        return ALL, problem.rows
    elements = sum(t.numel() for t in tensors_of(problem.x)) // max(1, problem.rows)
    count = min(problem.rows, max(1, min(_ROWS, _ELEMENTS // max(1, elements))))
    return slice(0, count), count


def _layout(setup: Setup, x: Any, plain: Sequence[Tensor], again: Sequence[Tensor]) -> Probe:
    is_same = len(plain) == len(again) and all(map(_close, plain, again))
    if not is_same:
        return Probe(Layout.SINGLE, is_random=True)
    if setup.batch_dim is None:
        return Probe(Layout.SINGLE)
    if batch_size(x, setup.batch_dim) == 0:
        return Probe(Layout.BATCHED)
    probe = _as_batch(setup, x, plain) or _call_by_call(setup, x, plain)
    return probe or Probe(Layout.SINGLE, mixes_rows=True)


def _close(one: Tensor, two: Tensor, among: Tensor | None = None) -> bool:
    """Equal but for the rounding of numbers as large as the largest among some; NaN included."""
    if one.shape != two.shape:
        return False
    values = one if among is None else among
    size = float(values.abs().nan_to_num(0, 0, 0).max()) if values.numel() else 0.0
    eps = torch.finfo(one.dtype).eps
    return torch.allclose(one, two, rtol=200 * eps, atol=200 * eps * size, equal_nan=True)


def _as_batch(setup: Setup, x: Any, plain: Sequence[Tensor]) -> Probe | None:
    """All points as one batch, if rows have the outputs that they have by themselves."""
    if not has_rows(x, setup.batch_dim or 0):
        return None
    sources = Sources.of(setup, x, Layout.BATCHED)
    if not sources.all:
        axes = next(iter(_output_axes(setup, x, plain)), None)
        return None if axes is None else Probe(Layout.BATCHED, axes)
    images = any(t.dim() == 4 and t[0, 0].numel() >= _LARGE_IMAGE for t in tensors_of(x))
    for axes in _output_axes(setup, x, plain):
        for channels_last in (True, False) if images else (False,):
            probe = Probe(Layout.BATCHED, axes, channels_last)
            if _runs_as_batch(Problem(setup, x, probe, sources), plain):
                return probe
    return None


def _output_axes(setup: Setup, x: Any, plain: Sequence[Tensor]) -> list[tuple[int, ...]]:
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


def _runs_as_batch(problem: Problem, plain: Sequence[Tensor]) -> bool:
    """Whether batched points give the same outputs as one call per point.

    Noisy points as one batch against one call for each: a model whose rows share anything, be it a
    statistic, a branch or a number of the first row, gives itself away.
    """
    try:
        rows, count = some_rows(problem)
        # All points of a call are one batch; four of them, and the plain one, run by themselves.
        points = problem.points(range(2), plain=True)
        size = problem.design.points
        chosen = [0, *range(1, 1 + size, max(1, size // _POINTS))]
        some = [z[chosen][:, rows] for z in points]
        looped = replace(problem.probe, layout=Layout.LOOPED, channels_last=False)
        one_by_one = Problem(problem.setup, problem.x, looped, problem.sources)
        with torch.no_grad():
            together = problem([z[:, rows] for z in points], rows)[chosen]
            alone = one_by_one([z[chosen] for z in points])[:, rows]
        same = alone.shape[2] == problem.flatten(plain, 1).shape[2] and _close(alone, together)
        # A call for each point is one for each row, where there is one row.
        same = same and (problem.rows == 1 or _stands_alone(problem, some, together))
        return same and _is_independent(problem, [z[:_FEW] for z in some], rows, count)
    # A model that expects its own batch size can fail in any way.
    except Exception:
        return False


def _stands_alone(problem: Problem, points: Sequence[Tensor], together: Tensor) -> bool:
    """Whether a row at a point has the outputs among all that it has in a call of its own.

    A branch on the largest number of a batch is taken by all rows of it, or by none.
    """
    for point in range(len(together)):
        row = point % together.shape[1]
        one = [z[point : point + 1, row : row + 1] for z in points]
        try:
            with torch.no_grad():
                alone = problem(one, slice(row, row + 1))
        except Exception:  # A model that cannot do with one row may fail in any way.
            return True
        if alone.shape[2] != together.shape[2]:
            return True
        gap = (together[point, row] - alone[0, 0]).abs().nan_to_num(0.0)
        std = together[:, row].var(0, correction=0).sqrt().nan_to_num(0.0)
        is_same = _close(together[point : point + 1, row : row + 1], alone, together)
        if not is_same and bool((gap > _SHARE * std).any()):
            return False
    return True


def _call_by_call(setup: Setup, x: Any, plain: Sequence[Tensor]) -> Probe | None:
    """One call per point, if its rows are independent and every noisy input has them where said."""
    try:
        sources = Sources.of(setup, x, Layout.LOOPED)
        for axes in _output_axes(setup, x, plain):
            probe = Probe(Layout.LOOPED, axes)
            if _has_independent_rows(Problem(setup, x, probe, sources), plain):
                return probe
    # Inputs or multipliers that have their rows elsewhere can fail in the model in these ways.
    except (NotRowsError, IndexError, ValueError, RuntimeError):
        pass
    return None


def _has_independent_rows(problem: Problem, plain: Sequence[Tensor]) -> bool:
    """Whether rows of one call are independent: noise on some leaves the outputs of others."""
    lengths = [len(problem.input_rows(s.number, ALL)) for s in problem.sources.inputs]
    if any(length != problem.rows for length in lengths):
        return False
    points = [z[:1] for z in problem.points(range(1))]
    alone = problem.flatten(plain, 1)[0]
    # Halves of the rows, such that of any two rows there is one that has only the first.
    numbers = torch.arange(problem.rows)
    bits = [numbers >> bit & 1 for bit in range((problem.rows - 1).bit_length())]
    for quiet in [(bit == which).nonzero()[:, 0] for bit in bits for which in (0, 1)]:
        noisy = [z.clone() for z in points]
        for z in noisy:
            z[:, quiet] = 0
        with torch.no_grad():
            beside_noise = problem(noisy)[0]
        if not _close(alone[quiet], beside_noise[quiet]):
            return False
    return _is_independent(problem, points, ALL, problem.rows)


def _is_independent(problem: Problem, points: Sequence[Tensor], rows: Rows, count: int) -> bool:
    """Whether the gradient of the first row's outputs is 0 for all others."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [z.detach().clone().requires_grad_() for z in points]
        try:
            outputs = problem(leaves, rows)
        except RuntimeError:  # It runs without gradients only; a call will say so.
            return True
        if outputs.shape[:2] != leaves[0].shape[:2]:
            return False
        if not outputs.requires_grad or not count:
            return True
        first = outputs[0, 0]
        weights = torch.linspace(1, 2, len(first), dtype=first.dtype, device=first.device)
        try:
            gradients = torch.autograd.grad((weights * first).sum(), leaves, allow_unused=True)
        except RuntimeError:  # There is no backward pass; a call will say so.
            return True
    reached = [g.flatten(0, 1) for g in gradients if g is not None]
    others = sum(float(g[1:].square().sum()) for g in reached)
    return others <= _SHARE**2 * sum(float(g[0].square().sum()) for g in reached)


def _weight_writes(model: Any) -> list[int]:
    """How often every weight was written."""
    weights = [weight for module in modules_of(model) for weight in module._parameters.values()]
    return [w._version for w in weights if w is not None and not w.is_inference()]


def _check_readable(plain: Sequence[Tensor], x: Any) -> None:
    """An error for outputs whose elements cannot be read one by one, or that have none."""
    for out in plain:
        if out.is_nested or out.layout is not torch.strided or out.is_meta:
            kind, way = "nested", "to_padded_tensor(0.0)"
            if not out.is_nested:
                kind, way = ("without values", "cpu()") if out.is_meta else ("sparse", "to_dense()")
            raise TypeError(
                f"An output of the model is {kind}, and every element of it has a variance; "
                f"choose one that is not, such as `output=lambda y: y.{way}`."
            )
    if any(t.numel() for t in tensors_of(x)) and not any(out.numel() for out in plain):
        shapes = ", ".join(str(tuple(out.shape)) for out in plain)
        raise TypeError(f"The model returns no numbers, so nothing has a variance: {shapes}.")


def nothing_to_vary(output: TensorTree) -> TypeError:
    """The error for outputs that have no variance, with what to do."""
    value = output.template
    kind, such = f"a {type(value).__name__}", "such as an attribute or a function"
    if isinstance(value, Tensor):
        kind = f"a tensor of {str(value.dtype).removeprefix('torch.')}"
        such = "such as `torch.view_as_real`" if value.is_complex() else "such as what it rounds"
    return TypeError(
        "The model returns no floating-point tensor, so nothing has a variance. It returns "
        f"{kind}; choose a part of that with `output=`, {such}."
    )
