"""`howsure.export`: one call from a wrapper to a checked file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure.exporting import onnx_file, torch_file
from howsure.exporting.errors import ExportError
from howsure.exporting.flat import Flat, flatten
from howsure.exporting.graphs import Program, program, rows
from howsure.exporting.metadata import metadata
from howsure.files import write_atomically
from howsure.uncertain import Uncertain

# Largest difference to eager, relative to the largest value of an output.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        inputs: The names of its inputs, in order.
        outputs: The names of its outputs, in order.
        batch: The batch size that it needs; `None` for any.
        difference: Largest difference to eager found when the file was run, relative to the
            largest value of each output.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: int | None
    difference: float


def export(
    uncertain: Uncertain,
    example: Any,
    path: str | Path,
    *,
    any_batch: bool | None = None,
    compiled: bool = False,
    units: str | None = None,
) -> Exported:
    """Writes mean, `data_var` and `model_var` as a program that runs without howsure.

    The file is run before the function returns, and compared with the wrapper itself. Settings
    are fixed in it: noise, rates, masks (drawn from the seed), `tau`, and calibrators that scale
    variances. `howsure.exporting.read_metadata` reads them back.

    Args:
        uncertain: The wrapper, tuned and calibrated.
        example: An input as the model takes it.
        path: A file that ends in `.onnx` (for onnxruntime) or `.pt2` (for `torch.export.load`).
        any_batch: Whether the program takes any batch size; `None` if that is possible.
        compiled: For `.pt2`: machine code of AOTInductor, for this kind of processor, to be loaded
            by `torch._inductor.aoti_load_package` or from C++.
        units: The units of the output, noted in the file.

    Raises:
        ExportError: If the method or the model cannot be exported, or the file gives other numbers.
    """
    path = Path(path)
    _check_suffix(path, compiled)
    flat = flatten(uncertain, example)
    with torch.no_grad():
        found = program(flat, any_batch)
    about = metadata(flat, found.batch, units)
    write, runner = _format(path, compiled)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        write(trial, found.exported, about)
        difference = _checked(flat, found, runner(trial), path)
        write_atomically(path, lambda file: file.write(trial.read_bytes()))
    return Exported(
        path, tuple(flat.input_names), tuple(flat.output_names), found.batch, difference
    )


def _check_suffix(path: Path, compiled: bool) -> None:
    if path.suffix not in (".onnx", ".pt2"):
        raise ExportError(f"`{path.name}` must end in `.onnx` or `.pt2`.")
    if path.suffix == ".onnx":
        onnx_file.check_installed()
        if compiled:
            raise ExportError("`compiled=True` goes with a `.pt2` file.")


def _format(
    path: Path, compiled: bool
) -> tuple[Callable[..., None], Callable[[Path], torch_file.Run]]:
    if path.suffix == ".onnx":
        return onnx_file.write_onnx, onnx_file.onnx_runner
    if compiled:
        return torch_file.write_compiled, torch_file.compiled_runner
    return torch_file.write_program, torch_file.program_runner


def _checked(flat: Flat, found: Program, run: torch_file.Run, path: Path) -> float:
    """The largest relative difference to eager; an error if it is too large."""
    count = len(flat.tensors[0]) if flat.tensors[0].dim() else 1
    sizes = [count] if found.batch is not None else [count, 1, 2 * count + 1]
    worst = 0.0
    for size in sizes:
        tensors = flat.tensors if size == count else rows(flat.tensors, found.batched, size)
        expected = flat.eager(tensors)
        rounding = _rounding(expected)
        for name, eager, written in zip(flat.output_names, expected, run(tensors), strict=True):
            difference = _difference(eager, written, rounding)
            if not difference <= _TOLERANCE.get(eager.dtype, 1e-2):
                raise ExportError(
                    f"`{path.name}` gives another `{name}` than the wrapper for {size} inputs, by "
                    f"{difference:.1e} of its largest value; it was not written. Please report "
                    "it, and try `any_batch=False`."
                )
            worst = max(worst, difference)
    return worst


def _rounding(outputs: list[Tensor]) -> float:
    """The variance that rounding the means makes: what is smaller is 0 to any program."""
    means = [mean for mean in outputs[: len(outputs) // 3] if mean.numel()]
    largest = max((float(mean.abs().max()) for mean in means), default=0.0)
    return (10 * torch.finfo(outputs[0].dtype).eps * largest) ** 2


def _difference(expected: Tensor, found: Tensor, rounding: float) -> float:
    """max |a - b| / max |a| beyond rounding; infinity for other shapes and NaN."""
    if expected.shape != found.shape:
        return float("inf")
    if expected.numel() == 0 or torch.equal(expected, found.to(expected)):
        return 0.0
    apart = float((expected - found.to(expected)).abs().max())
    if apart <= rounding:
        return 0.0
    return apart / max(float(expected.abs().max()), torch.finfo(expected.dtype).tiny)
