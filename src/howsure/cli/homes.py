"""Where each command lives: a module here, or one of the laboratory beside howsure.

A command is a module with `HELP` (one line), `EXAMPLES`, `add(parser)` for its options and
`run(arguments) -> Result`.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace
from typing import NoReturn

# The group of entry points under which another package offers commands.
GROUP = "howsure.commands"
# Commands of the laboratory, with their line of help where it is not installed.
OF_THE_LAB = {
    "demo": "a trained network, with uncertainty (needs howsure-lab)",
    "reproduce": "the paper's experiments, each by one command (needs howsure-lab)",
}


def command(name: str) -> ModuleType | SimpleNamespace:
    """The command's module; for one of the laboratory that is not installed, a refusal."""
    if name not in OF_THE_LAB:
        return import_module(f"howsure.cli.commands.{name}")
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    return found[0].load() if found else _absent(name)


def _absent(name: str) -> SimpleNamespace:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("options", nargs=argparse.REMAINDER, help="as howsure-lab takes them")

    def run(arguments: argparse.Namespace) -> NoReturn:
        raise ImportError(
            f"`howsure {name}` is in the package howsure-lab, which is not installed: "
            "`pip install ./lab` in a clone of howsure."
        )

    about = f"`howsure {name}` is in the package howsure-lab, which is not installed."
    examples = f"  howsure {name}"
    return SimpleNamespace(
        __doc__=about, HELP=OF_THE_LAB[name], EXAMPLES=examples, add=add, run=run
    )
