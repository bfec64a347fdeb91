"""The folder of a run: finished parts are kept, so that an interrupted run goes on where it was.

A part is a value (JSON) or weights (a state dict). Its file appears whole or not at all, and ends
with a seal: a part that was damaged since is computed again. Parts live
in a folder named after the configuration: a run with other settings never meets them. The number
of seeds does not belong to it, so that more seeds can be added to a finished run.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from howsure.files import sealed, unsealed, write_atomically


class RunFolder:
    """Where one run writes its parts and results."""

    def __init__(self, path: Path, config: Mapping[str, object], *, fresh: bool = False) -> None:
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

    def value(self, name: str, compute: Callable[[], object]) -> Any:
        """The part of this name: from its file, else computed and written; plain data only."""
        return json.loads(self._part(f"{name}.json", lambda: _as_json(compute()).encode()))

    def trained(self, name: str, model: nn.Module, train: Callable[[nn.Module], object]) -> None:
        """Gives the model the weights of this name: from their file, else by training it."""

        def compute() -> bytes:
            train(model)
            buffer = io.BytesIO()
            torch.save(
                {key: each.detach().cpu() for key, each in model.state_dict().items()}, buffer
            )
            return buffer.getvalue()

        content = io.BytesIO(self._part(f"{name}.pt", compute))
        weights: dict[str, Tensor] = torch.load(content, weights_only=True)
        model.load_state_dict(weights)
        model.eval()

    def _part(self, name: str, compute: Callable[[], bytes]) -> bytes:
        file = self.parts / name
        content = unsealed(file)
        if content is None:
            content = compute()
            write_atomically(file, lambda opened: opened.write(sealed(content)))
        return content

    def write(self, name: str, content: object) -> Path:
        """Writes a result: text as it is, anything else as JSON."""
        path = self.path / name
        if isinstance(content, str):
            write_atomically(path, lambda file: file.write(content), text=True)
        else:
            write_json(path, content)
        return path


def write_json(path: Path, content: object) -> None:
    """Writes plain data; NaN and infinity become null, which every reader of JSON understands."""
    write_atomically(path, lambda file: file.write(_as_json(content)), text=True)


def _as_json(content: object) -> str:
    return json.dumps(_finite(content), indent=1, allow_nan=False, sort_keys=False) + "\n"


def _finite(content: object) -> object:
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not abs(content) < float("inf"):
        return None
    return content
