"""Runs the demonstration: `python -m howsure.demo`, or `howsure demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

NEEDED = ("matplotlib", "tqdm")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 interrupted, 2 wrong options, a package or a file at fault."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        print(
            f"The demonstration needs {', '.join(missing)}: pip install 'howsure[demo]'",
            file=sys.stderr,
        )
        return 2
    import torch

    from howsure.demo.run import run

    # On images this small, threads that compete cost more than they give.
    torch.set_num_threads(1)
    try:
        return run(arguments)
    except KeyboardInterrupt:
        print("Interrupted; what is in the folder is whole.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Cannot write the results: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
