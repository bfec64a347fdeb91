"""Programs of `torch.export`, from `.pt2` files that hold nothing but numbers and a graph.

`torch.export.load` unpickles parts of some files, which can run code. Such files are refused.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

_PLAIN_CONSTANT = "tensor_"  # other constants are objects
_DROPOUT_TRAINS = 2  # the place of `train` among the arguments of aten's dropout


@dataclass(frozen=True, eq=False)
class Program:
    """An exported network.

    Attributes:
        module: Runs it; in eval mode.
        batch: The batch size of the example it was exported with, unless it takes any.
    """

    module: nn.Module
    batch: int | None


def load_program(path: Path) -> Program:
    """The program of a `.pt2` file."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}`.")
    _check_archive(path)
    try:
        program = torch.export.load(path)
        module = program.module()
    except Exception as error:
        raise _unreadable(path, error) from error
    _check_eval_mode(program, path)
    for part in module.modules():
        part.training = False  # the graph has no modes; `eval()` itself is not supported there
    return Program(module, _batch(program))


def _unreadable(path: Path, error: Exception) -> ValueError:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"`{path}` cannot be read as a program of `torch.export`: {first}")


def _check_archive(path: Path) -> None:
    """Refuses what would be unpickled, and what two readers could understand differently."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            size = sum(entry.file_size for entry in archive.infolist())
            if len(set(names)) < len(names) or size > path.stat().st_size:
                raise zipfile.BadZipFile("its entries are repeated or packed")
            safe = all(_is_safe(archive, name) for name in names)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise _unreadable(path, error) from None
    if not safe:
        raise ValueError(
            f"`{path}` contains pickled Python objects, which are not read because they can run "
            "code; export the model again with plain tensors only."
        )


def _is_safe(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether an entry can be read without unpickling more than tensors."""
    file = name.rpartition("/")[2]
    if file.endswith(("_weights_config.json", "_constants_config.json")):
        return _is_plain(archive.read(name), constants="_constants_" in file)
    # The second is how files were written before torch 2.8: pickles under other names.
    if file.endswith(".pt") or (file.startswith("serialized_") and "exported_program" not in file):
        return _holds_tensors(archive.read(name))
    return True


def _is_plain(config: bytes, *, constants: bool) -> bool:
    """Whether all tensors are raw numbers."""
    try:
        entries = list(json.loads(config)["config"].values())
        names = [str(entry["path_name"]) for entry in entries]
        raw = not any(entry["use_pickle"] for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return raw and (not constants or all(name.startswith(_PLAIN_CONSTANT) for name in names))


def _holds_tensors(content: bytes) -> bool:
    try:
        if content:
            torch.load(io.BytesIO(content), weights_only=True)
    except Exception:
        return False
    return True


def _check_eval_mode(program: torch.export.ExportedProgram, path: Path) -> None:
    """An error if dropout was on when the program was exported."""
    for node in program.graph.nodes:
        trains = len(node.args) > _DROPOUT_TRAINS and node.args[_DROPOUT_TRAINS] is True
        if "dropout" in str(node.target) and trains:
            raise ValueError(
                f"`{path}` was exported in train mode; call `model.eval()` before the export."
            )


def _batch(program: torch.export.ExportedProgram) -> int | None:
    """The first size of the first input, if it is fixed."""
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.name in inputs and isinstance(value, Tensor) and value.dim():
            return value.shape[0] if isinstance(value.shape[0], int) else None
    return None
