"""What the method takes for granted, checked on the user's own network before it is relied on.

The first call for a model makes all checks; a later one those for shapes that are new.

- The same input gives the same output: two plain passes.
- Rows do not influence each other, and points may run as rows of one batch: the outputs of a
  folded pass against a plain one, and a backward pass of one row, which must not reach others.
- Gradients are what they say: directional derivatives against differences of outputs (`no_grad`,
  `detach`, a backward pass of its own), and the variance against that of plain samples (steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from howsure.calls import ALL, Calls, Layout, NotRowsError, Rows, has_rows, tensors_of
from howsure.concrete import is_traced
from howsure.gradients.backward import MOST_OUTPUTS, gradients_at
from howsure.gradients.sources import Sources, leaf, outputs_at, values_at
from howsure.gradients.sums import sums_of
from howsure.structure import Parts, map_leaves

if TYPE_CHECKING:
    from howsure.methods.setup import Setup

# Plain samples, blocks of points and rows that are looked at, the latter fewer for large inputs.
SAMPLES = 64
BLOCKS = 4
_ROWS = 8
_ELEMENTS = 2**17
# Steps of the differences, in std of the noise. A gradient is believed if the differences agree
# with it at one of them: a long step is blurred by curvature, a short one by rounding.
STEPS = (0.3, 0.1, 0.03, 0.01)
# Largest relative difference of the two: its square is the share of the variance that is hidden.
HIDDEN = 0.15
# The variance by gradients differs from that of samples: by so many standard errors, and so much.
ERRORS = 4.0
MATERIAL = 0.25

RANDOM = "the model draws random numbers: the same input gave two different outputs"
HIDES = (
    "the model hides its gradient (no_grad, detach, rounding, or a backward pass of its own): "
    "outputs change with the noise and their gradients do not tell how"
)
STEPWISE = "the outputs are flat or have steps: their variance is not that of their gradients"
TOGETHER = (
    "The rows of a batch influence each other, or are not on the axis `batch_dim={axis}`: the "
    "whole call was taken as one input. Say so with `batch_dim=None`, or give rows one by one."
)
TOO_MANY = (
    "rows influence each other, so that a call is one input, and its outputs are too many for a "
    "backward pass each"
)


@dataclass(frozen=True)
class Verdict:
    """How a model can be run, and why its gradients cannot be used, if so.

    Attributes:
        layout: Whether points run as one batch.
        channels_last: Whether images are laid out with their channels last.
        reason: Why to sample instead; `None` if the gradients can be relied on.
        note: What a user should know about the layout.
        random: Whether the model draws random numbers.
    """

    layout: Layout
    channels_last: bool = False
    reason: str | None = None
    note: str | None = None
    random: bool = False


def layout_of(setup: Setup, x: Any) -> Verdict:
    """How the model can be run for inputs of these shapes; looked up if it is known.

    Inside a trace, where there are no values to check, it is as for the inputs before.
    """
    if is_traced():
        return setup._verdicts.get("last", Verdict("folded"))
    key = ("layout", *_key(setup, x), _shapes(x))
    if key not in setup._verdicts:
        setup._verdicts[key] = _layout(setup, x)
    setup._verdicts["last"] = setup._verdicts[key]
    return setup._verdicts[key]


def verdict_of(setup: Setup, x: Any) -> Verdict:
    """The layout, and whether gradients can be relied on for inputs of this kind."""
    verdict = layout_of(setup, x)
    if verdict.reason is not None or is_traced():
        return verdict
    rows = _shapes(x, without=setup.batch_dim) if verdict.layout == "folded" else _shapes(x)
    key = ("gradients", *_key(setup, x), rows)
    if key not in setup._verdicts:
        sources = Sources.of(setup, x, verdict.layout)
        calls = Calls(setup, x, verdict.layout, sources.sites, verdict.channels_last)
        setup._verdicts[key] = _doubt(calls, sources)
    reason = setup._verdicts[key]
    return verdict if reason is None else replace(verdict, reason=reason)


def _key(setup: Setup, x: Any) -> tuple[Any, ...]:
    """The model, its weights and what is random."""
    tensors = (
        [*setup.model.parameters(), *setup.model.buffers()]
        if isinstance(setup.model, nn.Module)
        else []
    )
    versions = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)
    kinds = (setup.has_masks(x), setup.placement, setup.batch_dim, repr(setup.output))
    return id(setup.model), hash(versions), id(setup.noise), setup.task, kinds


def _shapes(x: Any, without: int | None = None) -> str:
    """Shapes and types of the tensors of an input, and everything in it that is no tensor."""

    def leaf(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return repr(item)
        shape = list(item.shape)
        if without is not None and item.dim() > without:
            del shape[without]
        return (tuple(shape), str(item.dtype))

    return str(map_leaves(leaf, x))


def _layout(setup: Setup, x: Any) -> Verdict:
    with torch.no_grad():
        whole = Calls(setup, x, "whole")
        plain = whole.plain()
        again = Calls(setup, x, "whole").plain()
    if not plain:
        raise TypeError("The model returns no floating-point tensor, so nothing has a variance.")
    if not _same(plain, again):
        return Verdict("whole", reason=RANDOM, random=True)
    axis = setup.batch_dim
    if axis is None:
        return Verdict("whole")
    if has_rows(x, axis):
        sources = Sources.of(setup, x, "folded")
        images = any(tensor.dim() == 4 for tensor in tensors_of(x))
        for channels_last in (True, False) if images else (False,):
            calls = Calls(setup, x, "folded", sources.sites, channels_last)
            if _is_foldable(calls, sources, plain):
                return Verdict("folded", channels_last)
    if _has_own_rows(setup, x, plain):
        return Verdict("looped")
    return Verdict("whole", note=TOGETHER.format(axis=axis))


def _same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    """Equal but for rounding, NaN included."""
    return len(one) == len(two) and all(_close(a, b) for a, b in zip(one, two, strict=True))


def _close(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    size = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    eps = torch.finfo(one.dtype).eps
    return torch.allclose(one, two, rtol=200 * eps, atol=200 * eps * size, equal_nan=True)


def _is_foldable(calls: Calls, sources: Sources, plain: Sequence[Tensor]) -> bool:
    """Whether rows of a folded batch have the outputs that they have by themselves."""
    try:
        noisy = [z[:1] for z in sources.drawn(range(1))]
        both = [torch.cat([torch.zeros_like(z), z]) for z in noisy]
        rows, count = _some_rows(calls)
        found = values_at(calls, sources, both, rows, count)
        alone = calls.flat(plain, 1)[0][rows]
        return _close(alone, found[0]) and _is_independent(calls, sources, both, rows, count)
    # A model that expects its own batch size can fail in any way.
    except Exception:
        return False


def _has_own_rows(setup: Setup, x: Any, plain: Sequence[Tensor]) -> bool:
    """Whether rows of one call are independent, with the rows of every noisy input where said."""
    try:
        sources = Sources.of(setup, x, "looped")
        calls = Calls(setup, x, "looped", sources.sites)
        tensors = Parts(x).tensors
        own = [calls.base(tensors[noisy.number]).shape[0] for noisy in sources.inputs]
        if any(rows != calls.count for rows in (*own, calls.flat(plain, 1).shape[1])):
            return False
        points = [z[:1] for z in sources.drawn(range(1))]
        return _is_independent(calls, sources, points, ALL, calls.count)
    except (NotRowsError, IndexError, ValueError):
        return False


def _is_independent(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> bool:
    """Whether the gradient of the first row's outputs is 0 for all others."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [leaf(z, count, calls.x).requires_grad_() for z in points]
        outputs = outputs_at(calls, sources, leaves, rows)
        if not outputs.requires_grad or outputs.shape[:2] != leaves[0].shape[:2]:
            return outputs.shape[:2] == leaves[0].shape[:2]
        own = outputs[0, 0]
        weights = torch.linspace(1, 2, len(own), dtype=own.dtype, device=own.device)
        found = torch.autograd.grad((weights * own).sum(), leaves, allow_unused=True)
    reached = [each.flatten(0, 1)[1:] for each in found if each is not None]
    return not any(bool((each != 0).any()) for each in reached)


def _some_rows(calls: Calls) -> tuple[Rows, int]:
    """The first rows; few where inputs are large, all where none can be left out."""
    if calls.layout != "folded":
        return ALL, calls.count
    elements = sum(t.numel() for t in tensors_of(calls.x)) // max(1, calls.count)
    count = min(calls.count, max(1, min(_ROWS, _ELEMENTS // max(1, elements))))
    return slice(0, count), count


def _doubt(calls: Calls, sources: Sources) -> str | None:
    """Why the gradients cannot be relied on; `None` if they can."""
    if calls.layout == "whole" and calls.outputs() > MOST_OUTPUTS:
        return TOO_MANY
    rows, count = _some_rows(calls)
    design, points = sources.design, sources.drawn(range(BLOCKS))
    found = gradients_at(calls, sources, points, rows, count)
    if _is_hidden(calls, sources, points, rows, count):
        return HIDES
    own = [slice(b * design.points, (b + 1) * design.points) for b in range(BLOCKS)]
    sums = [sums_of(found.at(block), design, len(sources.inputs), 0) for block in own]
    variances = torch.stack([each.variance.mean for each in sums])  # (blocks, rows, outputs)
    return STEPWISE if _disagrees(calls, sources, rows, count, variances) else None


def _is_hidden(
    calls: Calls, sources: Sources, points: Sequence[Tensor], rows: Rows, count: int
) -> bool:
    """Whether directional derivatives differ from what the gradients say, for any output."""
    size = sources.design.points
    first = [z[:size] for z in points]
    # Another block's points are independent directions.
    directions = [z[size : 2 * size] for z in points]
    found = gradients_at(calls, sources, first, rows, count)
    slopes = sum(
        torch.einsum("kprd,pd->prk", g, d.flatten(1).to(g))
        for g, d in zip(found.by_source, directions, strict=True)
    )
    assert isinstance(slopes, Tensor)
    eps = torch.finfo(found.values.dtype).eps
    scale = found.values.abs().amax((0, 1))
    suspicious = torch.ones_like(scale, dtype=torch.bool)
    for step in STEPS:
        both = [
            [z + sign * step * d for z, d in zip(first, directions, strict=True)]
            for sign in (1, -1)
        ]
        ends = [values_at(calls, sources, each, rows, count) for each in both]
        change = ((ends[0] - ends[1]) / (2 * step)).to(slopes.dtype)
        allowed = HIDDEN * _rms(change) + 20 * eps * scale / step
        suspicious &= ~(_rms(change - slopes) <= allowed)
    return bool(suspicious.any())


def _rms(values: Tensor) -> Tensor:
    """Over points and rows, for every output."""
    return values.square().mean((0, 1)).sqrt()


def _disagrees(calls: Calls, sources: Sources, rows: Rows, count: int, variances: Tensor) -> bool:
    """Whether plain samples have another variance than the gradients say, for any output."""
    # Independent points: of each block the first one is enough, and no two share anything.
    size = sources.design.points
    drawn = [z[::size] for z in sources.drawn(range(1000, 1000 + SAMPLES))]
    parts = [
        values_at(calls, sources, [z[s : s + 16] for z in drawn], rows, count)
        for s in range(0, SAMPLES, 16)
    ]
    values = torch.cat(parts).to(variances.dtype)
    eps = torch.finfo(parts[0].dtype).eps
    deviations = (values - values.mean(0)).square() * (SAMPLES / (SAMPLES - 1))
    spread = deviations.mean(0)  # (rows, outputs)
    rounding = (20 * eps * values.abs().amax(0)).square()
    seen = spread > rounding
    weight = torch.where(seen, 1 / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0)
    weight = weight / seen.sum(0).clamp(min=1)
    ratios = (variances * weight).sum(1)  # (blocks, outputs)
    chances = (deviations * weight).sum(1)  # (samples, outputs)
    error = (ratios.var(0) / len(ratios) + chances.var(0) / SAMPLES).sqrt()
    gap = (ratios.mean(0) - 1).abs()
    return bool(((gap > ERRORS * error) & (gap > MATERIAL) & seen.any(0)).any())
