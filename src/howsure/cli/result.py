"""What a command gives back: text for people, plain data for programs, an exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DONE, FAILED, WRONG_INPUT = 0, 1, 2


@dataclass(frozen=True)
class Result:
    """The outcome of a command.

    Attributes:
        text: For people, on stdout.
        data: The same and more as plain data, for `--json`.
        code: The exit code.
        in_file: Whether what was asked for is in a file; `--quiet` then prints nothing.
    """

    text: str
    data: Mapping[str, object] = field(default_factory=dict)
    code: int = DONE
    in_file: bool = False


def as_json(data: Mapping[str, object]) -> str:
    """One JSON object; what JSON lacks (NaN, infinity) becomes null."""
    return json.dumps(plain(data), indent=1, allow_nan=False, ensure_ascii=False)


def plain(value: Any) -> object:
    """Nested values as numbers, strings, lists and dicts."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return value.as_posix()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
