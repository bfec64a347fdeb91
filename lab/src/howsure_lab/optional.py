"""Packages that only some experiments need."""

from importlib import import_module
from typing import Any


def imported(module: str, need: str, package: str) -> Any:
    """A module of a package that may be missing, or one sentence with the remedy."""
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(f"{need}: `pip install {package}`.") from None
