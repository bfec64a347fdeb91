"""Models and weights as the user names them: a factory in Python, a trusted `.pt2`, weights.

No file of weights can run code: they are read as numbers. A factory is the user's own Python, and
is run; a `.pt2` can run code, and is loaded only if it is trusted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from howsure.errors import import_extra
from howsure.files import check_archive, check_trusted

# Where training scripts put the weights: the released one uses "net".
_WRAPPERS = ("net", "state_dict", "model", "model_state_dict")
_PREFIX = "module."  # of `nn.DataParallel`
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
    module = _import_factory(name)
    if not isinstance(module, nn.Module):
        if not callable(module):
            raise ValueError(f"`{name}` is a {type(module).__name__}; name a function or a class.")
        try:
            module = module(**(arguments or {}))
        except Exception as error:
            raise ValueError(f"`{name}` failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"`{name}` gives a {type(module).__name__}; it must give a `torch.nn.Module`."
        )
    if weights is not None:
        load_weights(module, weights)
    return Model(module.eval())


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
        if error.name is None or not path.startswith(error.name):
            raise ValueError(f"`{path}` needs `{error.name}`, which is not installed.") from error
        hint = f" Leave out `.py`: `{path[:-3]}:{attribute}`." if path.endswith(".py") else ""
        raise ValueError(
            f"There is no module `{path}`; it is looked for in the current folder and among the "
            f"installed packages.{hint}"
        ) from error
    except Exception as error:
        raise ValueError(f"`{path}` failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"The module `{path}` has no `{attribute}`.")
    return getattr(module, attribute)


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


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Puts the weights of a `.safetensors`, `.pt` or `.pth` file into a model; all must fit."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` with weights.")
    if path.suffix == ".safetensors":
        weights = _read_safetensors(path)
    elif path.suffix in (".pt", ".pth"):
        weights = load_checkpoint(path)
    else:
        raise ValueError(f"`{path}` must end in `.safetensors`, `.pt` or `.pth`.")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"`{name}` in `{path}` contains NaN or infinity.")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:  # torch lists what is missing, unknown or of another shape
        raise ValueError(f"`{path}` does not fit the model. {shorten(str(error), 500)}") from None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = import_extra("safetensors", f"`{path}` needs `safetensors`")
    torch_files = import_extra("safetensors.torch", f"`{path}` needs `safetensors`")
    try:
        return torch_files.load_file(path)
    # A damaged file is a SafetensorError; a type that torch does not have is a KeyError.
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"`{path}` is not a whole `.safetensors` file: {error}.") from None


def load_checkpoint(
    path: str | Path, *, map_location: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """The weights in a checkpoint, for `model.load_state_dict`; nothing in the file is executed.

    Takes a bare state dict, or one under "net", "state_dict", "model" or "model_state_dict", and
    strips the `module.` that `nn.DataParallel` puts before every name.

    Args:
        path: The file.
        map_location: Where the tensors go, whatever device they were saved from.
    """
    check_archive(Path(path))
    try:
        content = torch.load(Path(path), map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"`{path}` cannot be read as weights: {reason} Save the model's "
            "`state_dict()` by itself with a torch that can read the file."
        ) from None
    weights = content
    if isinstance(content, dict):
        inner = (content[name] for name in _WRAPPERS if isinstance(content.get(name), dict))
        weights = next(inner, content)
    is_state = isinstance(weights, dict) and all(isinstance(v, Tensor) for v in weights.values())
    if not weights or not is_state:
        raise ValueError(
            f"`{path}` has no weights: it should be a state dict, or a dict with one of "
            f"{list(_WRAPPERS)}."
        )
    return {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}
