"""The command `howsure`: picks the part that does the work and hands it the options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

# Command to its module, which has `main(arguments) -> exit code`, and what it does.
COMMANDS = {
    "demo": ("howsure.demo.__main__", "a trained network, with uncertainty"),
    "reproduce": ("howsure.experiments.cli", "the paper's experiments, each by one command"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed or interrupted, 2 wrong input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0 if given else 2
    if given[0] not in COMMANDS:
        print(f"There is no command {given[0]!r}.\n\n{usage()}", file=sys.stderr)
        return 2
    run: Callable[[Sequence[str]], int] = import_module(COMMANDS[given[0]][0]).main
    return run(given[1:])


def usage() -> str:
    """The commands, one line each."""
    lines = [f"  howsure {name:<10} {words}" for name, (_, words) in COMMANDS.items()]
    return "\n".join(["How sure is your trained network?", "", *lines, "", _HELP])


_HELP = "`howsure COMMAND --help` has the options of each."
