"""`howsure reproduce TASK`: one command per experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from howsure.experiments.options import Options

# Where each task's `run(options)` is; imported when it is asked for.
TASKS = {
    "steering": "howsure.experiments.steering.run",
    "recognition": "howsure.experiments.recognition.run",
    "sensitivity": "howsure.experiments.sensitivity.run",
    "runtime": "howsure.experiments.runtime.run",
    "uci": "howsure.experiments.uci.run",
    "quadrotor": "howsure.experiments.quadrotor.run",
    "motion": "howsure.experiments.motion.run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 interrupted, 2 wrong options or data."""
    options = parse(arguments)
    run: Callable[[Options], Path] = import_module(TASKS[options.task]).run
    try:
        table = run(options)
    except KeyboardInterrupt:
        print(
            f"Interrupted; finished parts are in {options.folder}, and the same command goes on "
            "from there.",
            file=sys.stderr,
        )
        return 1
    except (OSError, ValueError, ImportError) as error:  # data or packages that are not as needed
        print(f"{error}", file=sys.stderr)
        return 2
    print(table.read_text(encoding="utf-8"))
    print(f"Results: {options.folder}")
    return 0


def parse(arguments: Sequence[str] | None) -> Options:
    """The options; wrong ones end the program with a sentence and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="howsure reproduce", description="Repeats an experiment of the paper."
    )
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--data", type=Path, help="folder with the real data (default: none)")
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    parser.add_argument("--seeds", type=int, help="how many (3, quick 1)")
    parser.add_argument("--out", type=Path, help="folder of the run (out/TASK)")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs finished")
    found = parser.parse_args(arguments)
    if found.seeds is not None and found.seeds < 1:
        parser.error(f"--seeds must be 1 or more, and is {found.seeds}")
    if found.data is not None and not found.data.is_dir():
        parser.error(f"--data must be a folder, and {found.data} is none")
    return Options(**vars(found))


if __name__ == "__main__":
    sys.exit(main())
