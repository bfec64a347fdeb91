"""A written file against the wrapper itself: the same numbers, or an error."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from howsure.deploy.exporting.flat import Flat
from howsure.deploy.exporting.graphs import Program, rows
from howsure.deploy.exporting.torch_file import Run
from howsure.errors import ExportError

# Largest difference to eager, relative to what `_scales` says.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def checked(flat: Flat, found: Program, run: Run, path: Path) -> float:
    """The largest relative difference to eager; an error if it is too large."""
    count = len(flat.tensors[0]) if flat.tensors[0].dim() else 1
    sizes = [count] if found.batch is not None else [count, 1, 2 * count + 1]
    worst = 0.0
    for size in sizes:
        tensors = flat.tensors if size == count else rows(flat, size)
        expected = flat.eager(tensors)
        scales, rounding = _scales(expected), _rounding(expected)
        written = run(tensors)
        for name, eager, own, scale in zip(
            flat.output_names, expected, written, scales, strict=True
        ):
            allowed = _TOLERANCE.get(eager.dtype, 1e-2)
            difference = _difference(eager, own, scale)
            if difference > allowed and _is_rounding(name, eager, own, rounding):
                difference = allowed
            if not difference <= allowed:
                raise ExportError(
                    f"`{path.name}` gives another `{name}` than the wrapper for {size} inputs, by "
                    f"{difference:.1e} of its largest value; it was not written. Please report "
                    "it, and try `any_batch=False`."
                )
            worst = max(worst, difference)
    return worst


def _scales(outputs: list[Tensor]) -> list[float]:
    """What differences are relative to: the largest mean or std, and the largest total variance.

    A part of the variance that is 0, or nearly, is no scale for itself.
    """
    count = len(outputs) // 3
    means, data, model = (outputs[k * count : (k + 1) * count] for k in range(3))
    totals = [_largest(one + two) for one, two in zip(data, model, strict=True)]
    pairs = zip(means, totals, strict=True)
    return [*(max(_largest(mean), total**0.5) for mean, total in pairs), *totals, *totals]


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _difference(expected: Tensor, found: Tensor, scale: float) -> float:
    """max |a - b| / scale; infinity for other shapes, NaN for NaN."""
    if expected.shape != found.shape:
        return float("inf")
    if expected.numel() == 0 or torch.equal(expected, found.to(expected)):
        return 0.0
    apart = _largest(expected - found.to(expected))
    return apart / max(scale, torch.finfo(expected.dtype).tiny)


def _rounding(outputs: list[Tensor]) -> float:
    """How far the rounding of many operations may move a mean."""
    largest = max((_largest(mean) for mean in outputs[: len(outputs) // 3]), default=0.0)
    return 10 * torch.finfo(outputs[0].dtype).eps * largest


def _is_rounding(name: str, expected: Tensor, found: Tensor, rounding: float) -> bool:
    """Whether moved means explain another variance: samples that are almost equal have such ones.

    If means move by d, the variance of their samples moves by at most d**2 + 2 d std.
    """
    if name.startswith("mean") or expected.shape != found.shape:
        return False
    apart = (expected - found.to(expected)).abs()
    return bool((apart <= rounding * (rounding + 2 * expected.clamp(min=0).sqrt())).all())
