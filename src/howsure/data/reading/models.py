"""A model as the user names it: a factory in Python, or a `.pt2` or `.onnx` file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from howsure.data.reading.onnx_file import load_onnx
from howsure.data.reading.programs import load_program
from howsure.data.reading.weights import load_weights


@dataclass(frozen=True, eq=False)
class Model:
    """A model that is ready to run.

    Attributes:
        module: In eval mode.
        batch: The batch size that it needs; `None` for any.
    """

    module: nn.Module
    batch: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights; torch's default if it has none."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        floats = (t.dtype for t in tensors if t.dtype.is_floating_point)
        return next(floats, torch.get_default_dtype())


def load_model(
    name: str,
    weights: str | Path | None = None,
    arguments: Mapping[str, object] | None = None,
    *,
    trust: bool = False,
) -> Model:
    """The model, in eval mode.

    Args:
        name: `package.module:factory`, where the current folder is searched first, or a `.pt2`
            or `.onnx` file. A factory is a function or class that returns a module, or a module
            itself. ONNX files need the package `onnx2torch`.
        weights: A `.safetensors`, `.pt` or `.pth` file, for a factory.
        arguments: Keyword arguments of the factory.
        trust: Reads a `.pt2` file unchecked. Such a file can run code of its own.
    """
    suffix = Path(name).suffix
    if suffix in (".pt2", ".onnx"):
        if weights is not None or arguments:
            raise ValueError(
                f"A `{suffix}` file has its own weights; leave out the options for them."
            )
        path = Path(name)
        found = load_onnx(path) if suffix == ".onnx" else load_program(path, trust=trust)
        return Model(found.module, found.batch)
    module = _made(name, arguments or {})
    if weights is not None:
        load_weights(module, weights)
    return Model(module.eval())


def _made(name: str, arguments: Mapping[str, object]) -> nn.Module:
    found = _found(name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ValueError(f"`{name}` is a {type(found).__name__}; name a function or a class.")
        try:
            found = found(**arguments)
        except Exception as error:
            raise ValueError(f"`{name}` failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"`{name}` gives a {type(found).__name__}; it must give a `torch.nn.Module`."
        )
    return found


def _found(name: str) -> object:
    path, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*path.split("."), attribute)):
        raise ValueError(
            f"`{name}` is not a model; give `package.module:factory`, or a file that ends in "
            "`.pt2` or `.onnx`."
        )
    here = os.fspath(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and path.startswith(error.name):
            hint = f" Leave out `.py`: `{path[:-3]}:{attribute}`." if path.endswith(".py") else ""
            raise ValueError(
                f"There is no module `{path}`; it is looked for in the current folder and among "
                f"the installed packages.{hint}"
            ) from error
        raise ValueError(f"`{path}` needs `{error.name}`, which is not installed.") from error
    except Exception as error:
        raise ValueError(f"`{path}` failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"The module `{path}` has no `{attribute}`.")
    return getattr(module, attribute)
