"""Error bars for trained neural networks.

The public names are listed in `__init__.pyi`, where type checkers look. Each is imported when it is
first asked for, so that `import howsure` takes no time and the command line prints its help without
torch.
"""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """The module of every public name, and its name there."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    return {
        alias.asname or alias.name: (statement.module or __name__, alias.name)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package."""
    if name == "__version__":
        value = _version()
    elif name == "__all__":
        value = sorted(_homes())
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        module, attribute = _homes().get(name, (__name__, name))
        if module != __name__ and hasattr(import_module(module), attribute):
            value = getattr(import_module(module), attribute)
        elif find_spec(f"{module}.{attribute}") is not None:
            value = import_module(f"{module}.{attribute}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # run from its source
        return "unknown"


def __dir__() -> list[str]:
    """The public names, before and after they are imported."""
    return sorted(_homes())
