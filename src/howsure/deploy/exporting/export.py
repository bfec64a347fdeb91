"""`howsure.export`: one call from a wrapper to a checked file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from howsure.deploy.exporting import onnx_file, torch_file
from howsure.deploy.exporting.checking import checked
from howsure.deploy.exporting.flat import flatten
from howsure.deploy.exporting.graphs import program
from howsure.deploy.exporting.metadata import metadata
from howsure.errors import ExportError
from howsure.files import write_atomically

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain

MASKS = ("fixed", "inputs")


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        inputs: The names of its inputs, in order.
        outputs: The names of its outputs, in order.
        batch: The batch size that it needs; `None` for any.
        difference: Largest difference to eager found when the file was run, relative to the
            largest value of each output. A variance that is nothing but rounding counts at most
            as what is allowed.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: int | None
    difference: float


def export(
    uncertain: Uncertain,
    example: object,
    path: str | Path,
    *,
    any_batch: bool | None = None,
    compiled: bool = False,
    masks: str = "fixed",
    units: str | None = None,
) -> Exported:
    """Writes mean, `data_var` and `model_var` as a program that runs without howsure.

    The file is run before the function returns, and compared with the wrapper itself. Settings
    are fixed in it: noise, rates, `residual_var`, and calibrators that scale variances.
    `howsure.deploy.exporting.read_metadata` reads them back.

    Args:
        uncertain: The wrapper, tuned and calibrated.
        example: An input as the model takes it.
        path: A file that ends in `.onnx` (for onnxruntime) or `.pt2` (for `torch.export.load`).
        any_batch: Whether the program takes any batch size; `None` if that is possible.
        compiled: For `.pt2`: machine code of AOTInductor, for this kind of processor, to be loaded
            by `torch._inductor.aoti_load_package` or from C++.
        masks: For methods that sample by dropout: "fixed" are drawn once, from the seed, so that
            the same input gives the same output; "inputs" are given in every call, one for each
            site: uniform numbers between 0 and 1, or 0 and 1 for dropped and kept.
        units: The units of the output, noted in the file.

    Raises:
        ExportError: If the method or the model cannot be exported, or the file gives other numbers.
    """
    path = Path(path)
    _check_asked(path, compiled, masks)
    if not hasattr(uncertain, "setup"):
        kind = type(uncertain).__name__
        raise ExportError(f"Wrap the {kind} first: `export(Uncertain(model, noise), x, path)`.")
    flat = flatten(uncertain, example, masks_as_inputs=masks == "inputs")
    with torch.no_grad():
        found = program(flat, any_batch)
    about = metadata(flat, found.batch, units)
    write, runner = _format(path, compiled)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        write(trial, found.exported, about)
        difference = checked(flat, found, runner(trial), path)
        write_atomically(path, lambda file: file.write(trial.read_bytes()))
    return Exported(
        path, tuple(flat.input_names), tuple(flat.output_names), found.batch, difference
    )


def _check_asked(path: Path, compiled: bool, masks: str) -> None:
    if masks not in MASKS:
        raise ExportError(f"`masks` must be one of {MASKS}, not {masks!r}.")
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
