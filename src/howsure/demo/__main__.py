"""Runs the demonstration: `python -m howsure.demo`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = {
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "sklearn": "scikit-learn",
    "tqdm": "tqdm",
}


def main() -> int:
    """The exit code: 2 if a package is missing or an option is wrong, else 0."""
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        print(
            f"The demonstration needs {', '.join(missing)}: pip install 'howsure[demo]'",
            file=sys.stderr,
        )
        return 2
    from howsure.demo.run import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
