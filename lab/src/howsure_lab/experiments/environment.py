"""The versions, hardware and date of a result; no host or user names."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TypedDict

import torch

_PACKAGES = (
    *("howsure", "torch", "numpy", "scikit-learn", "pillow", "h5py", "laplace-torch"),
    "foundation-policy",
)


class Environment(TypedDict):
    """Where a result was made."""

    date: str
    python: str
    packages: dict[str, str]
    hardware: dict[str, str | int | None]


def environment() -> Environment:
    """Versions, hardware and date as plain data."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": "cpu",
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name: Linux has it in a file, elsewhere `platform` knows it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
