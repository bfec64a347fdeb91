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
    """Refuses what would be unpickled, and names that two readers could understand differently."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise ValueError(f"`{path}` has entries with the same name; it is damaged.")
            for name in names:
                _check_entry(archive, name, path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise _unreadable(path, error) from None


def _check_entry(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    # How files were written before torch 2.8: pickles under other names.
    is_pickle = name.endswith(".pt") or "serialized_" in name.rpartition("/")[2]
    if name.endswith(("_weights_config.json", "_constants_config.json")):
        config = json.loads(archive.read(name))["config"]
        objects = "constants" in name.rpartition("/")[2]
        for entry in config.values():
            plain = not objects or str(entry["path_name"]).startswith(_PLAIN_CONSTANT)
            if entry["use_pickle"] or not plain:
                raise _unsafe(path)
    elif is_pickle and not name.endswith("exported_program.json"):
        try:
            content = archive.read(name)
            if content:
                torch.load(io.BytesIO(content), weights_only=True)
        except Exception:
            raise _unsafe(path) from None


def _unsafe(path: Path) -> ValueError:
    return ValueError(
        f"`{path}` contains pickled Python objects, which are not read because they can run code; "
        "export the model again with plain tensors only."
    )


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
