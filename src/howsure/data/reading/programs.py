"""Programs of `torch.export`, from `.pt2` files that hold nothing but numbers and a graph.

`torch.export.load` can run what a file contains; it gets a checked copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_unflatten

from howsure.data.reading.pt2_expressions import Refused

# torch's schema is not public. Before this version, files hold pickled weights.
OLDEST_CHECKED = "2.9"
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


def load_program(path: Path, *, trust: bool = False) -> Program:
    """The program of a `.pt2` file.

    Args:
        path: What `torch.export.save` wrote.
        trust: Whether torch may load the file as it is, and run the code that may be in it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}`.")
    try:
        program = torch.export.load(path) if trust else _load_safely(path)
        module = program.module()
    except Refused as error:
        raise ValueError(
            f"`{path}` is not read, because {error}; if you know where it comes from, `--trust` "
            "(in Python `trust=True`) reads it and lets it run code."
        ) from None
    except Exception as error:
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ValueError(
            f"`{path}` cannot be read as a program of `torch.export`: {first}"
        ) from error
    _check_eval_mode(program, path)
    for part in module.modules():
        part.training = False  # the graph has no modes; `eval()` itself is not supported there
    return Program(module, _batch(program))


def _load_safely(path: Path) -> torch.export.ExportedProgram:
    """The program of a checked copy, with an example of the same form as the one left out.

    torch checks the sizes of inputs only for programs that have an example.
    """
    if TorchVersion(torch.__version__) < OLDEST_CHECKED:
        found = f"this is torch {torch.__version__}"
        raise Refused(f"to check it takes torch {OLDEST_CHECKED} or newer, and {found}")
    try:
        from howsure.data.reading.pt2_archive import load_checked
    except ImportError as error:
        raise Refused(f"it cannot be checked with torch {torch.__version__} ({error})") from None
    program = load_checked(path)
    spec = program.call_spec.in_spec
    if spec is not None:
        program.example_inputs = tree_unflatten([None] * spec.num_leaves, spec)
    return program


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
