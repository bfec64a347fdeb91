"""A model as the user names it: a factory in Python, or a `.pt2` file that is trusted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from howsure.data.reading.weights import load_weights
from howsure.files import check_trusted

_DROPOUT_TRAINS = 2  # the place of `train` among the arguments of aten's dropout


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
            file of `torch.export`. A factory is a function or class that returns a module, or a
            module itself.
        weights: A `.safetensors`, `.pt` or `.pth` file, for a factory.
        arguments: Keyword arguments of the factory.
        trust: Whether a `.pt2` file may be loaded. Loading one can run code that is in it.
    """
    if Path(name).suffix == ".pt2":
        if weights is not None or arguments:
            raise ValueError("A `.pt2` file has its own weights; leave out the options for them.")
        return _load_program(Path(name), trust=trust)
    module = _build(name, arguments or {})
    if weights is not None:
        load_weights(module, weights)
    return Model(module.eval())


def _load_program(path: Path, *, trust: bool) -> Model:
    """The program of a `.pt2` file, with the batch size of its example unless it takes any."""
    check_trusted(path, trust=trust)
    try:
        program = torch.export.load(path)
        module = program.module()
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ValueError(
            f"`{path}` cannot be read as a program of `torch.export`: {reason}"
        ) from error
    inputs, batch = set(program.graph_signature.user_inputs), None
    for node in reversed(program.graph.nodes):
        if "dropout" in str(node.target) and node.args[_DROPOUT_TRAINS:][:1] == (True,):
            raise ValueError(
                f"`{path}` was exported in train mode; call `model.eval()` before the export."
            )
        value = node.meta.get("val")
        if node.name in inputs and isinstance(value, Tensor) and value.dim():
            batch = value.shape[0] if isinstance(value.shape[0], int) else None
    for part in module.modules():
        part.training = False  # the graph has no modes; `eval()` itself is not supported there
    return Model(module, batch)


def _build(name: str, arguments: Mapping[str, object]) -> nn.Module:
    """The module that a factory makes."""
    factory = _import_factory(name)
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise ValueError(f"`{name}` is a {type(factory).__name__}; name a function or a class.")
    try:
        module = factory(**arguments)
    except Exception as error:
        raise ValueError(f"`{name}` failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"`{name}` gives a {type(module).__name__}; it must give a `torch.nn.Module`."
        )
    return module


def _import_factory(name: str) -> object:
    path, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*path.split("."), attribute)):
        raise ValueError(
            f"`{name}` is not a model; give `package.module:factory`, or a `.pt2` file."
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
