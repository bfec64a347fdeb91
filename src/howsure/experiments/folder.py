"""The folder of a run: finished parts are kept, so that an interrupted run goes on where it was.

A part is a value (JSON) or weights (a state dict). Its file appears whole or not at all. Parts live
in a folder named after the configuration: a run with other settings never meets them. The number
of seeds does not belong to it, so that more seeds can be added to a finished run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from howsure.files import write_atomically


class RunFolder:
    """Where one run writes its parts and results."""

    def __init__(self, path: Path, config: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Opens the folder.

        Args:
            path: The folder; it is made if it is not there.
            config: Everything that the parts depend on.
            fresh: Forget the parts of earlier runs with this configuration.
        """
        self.path = path
        text = json.dumps(config, sort_keys=True, default=str)
        self.parts = path / "parts" / hashlib.sha256(text.encode()).hexdigest()[:12]
        if fresh and self.parts.is_dir():
            shutil.rmtree(self.parts)
        self.parts.mkdir(parents=True, exist_ok=True)

    def value(self, name: str, compute: Callable[[], Any]) -> Any:
        """The part of this name: from its file, else computed and written; plain data only."""
        file = self.parts / f"{name}.json"
        if not file.is_file():
            write_json(file, compute())
        return json.loads(file.read_text(encoding="utf-8"))

    def trained(self, name: str, model: nn.Module, train: Callable[[nn.Module], object]) -> None:
        """Gives the model the weights of this name: from their file, else by training it."""
        file = self.parts / f"{name}.pt"
        if not file.is_file():
            train(model)
            state = {key: tensor.detach().cpu() for key, tensor in model.state_dict().items()}
            write_atomically(file, lambda opened: torch.save(state, opened))
        weights: dict[str, Tensor] = torch.load(file, weights_only=True)
        model.load_state_dict(weights)
        model.eval()

    def write(self, name: str, content: Any) -> Path:
        """Writes a result: text as it is, anything else as JSON."""
        path = self.path / name
        if isinstance(content, str):
            write_atomically(path, lambda file: file.write(content), text=True)
        else:
            write_json(path, content)
        return path


def write_json(path: Path, content: Any) -> None:
    """Writes plain data; NaN and infinity become null, which every reader of JSON understands."""
    text = json.dumps(_finite(content), indent=1, allow_nan=False, sort_keys=False) + "\n"
    write_atomically(path, lambda file: file.write(text), text=True)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not abs(content) < float("inf"):
        return None
    return content
