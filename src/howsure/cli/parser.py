"""The parser of all commands, made from the commands' own files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import howsure
from howsure.cli.options import add_common

# In the order of a user's work; `command` finds each.
COMMANDS = (
    "init",
    "check",
    "noise",
    "fit",
    "predict",
    "budget",
    "audit",
    "report",
    "export",
    "rules",
    "demo",
    "reproduce",
    "completion",
)
# Commands of the laboratory, with their line of help where it is not installed.
OF_THE_LAB = {
    "demo": "a trained network, with uncertainty (needs howsure-lab)",
    "reproduce": "the paper's experiments, each by one command (needs howsure-lab)",
}
# The group of entry points under which another package offers commands.
GROUP = "howsure.commands"

_HELP = """
`howsure COMMAND --help` has the options and examples of each. Exit codes: 0 done, 1 failed or
interrupted, 2 wrong input. Begin with `howsure init first`, or with `howsure demo`.
"""


class UsageError(ValueError):
    """Options that do not fit; the message says which, and where the help is."""


class Parser(argparse.ArgumentParser):
    """A parser that raises where argparse would end the program."""

    def error(self, message: str) -> NoReturn:
        """One sentence, and where to look."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see `{self.prog} --help`.")


def build_parser() -> Parser:
    """The parser with a subparser for each command."""
    parser = Parser(
        prog="howsure",
        description="How sure is your trained network?",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"howsure {howsure.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        module = command(name)
        added = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            epilog=f"examples:\n{module.EXAMPLES.rstrip()}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # an abbreviation would change its meaning with a new option
        )
        module.add(added)
        add_common(added)
        added.set_defaults(run=module.run)
    return parser


def commands_of(parser: Parser) -> dict[str, Parser]:
    """The subparsers by command."""
    (group,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(group.choices)


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The options; an error tells what does not fit."""
    listed = ", ".join(COMMANDS)
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        raise UsageError(f"There is no command {given[0]!r}; the commands are {listed}.")
    options = build_parser().parse_args(given)
    if options.command is None:
        raise UsageError(f"Name a command: {listed}; see `howsure --help`.")
    return options


def command(name: str) -> ModuleType | SimpleNamespace:
    """The command's module; for one of the laboratory that is not installed, a refusal."""
    if name not in OF_THE_LAB:
        return import_module(f"howsure.cli.commands.{name}")
    offered = [point for point in entry_points(group=GROUP) if point.name == name]
    if offered:
        return offered[0].load()
    absent = f"`howsure {name}` is in the package howsure-lab, which is not installed"

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("options", nargs=argparse.REMAINDER, help="as howsure-lab takes them")

    def run(arguments: argparse.Namespace) -> NoReturn:
        raise ImportError(f"{absent}: `pip install ./lab` in a clone of howsure.")

    return SimpleNamespace(
        __doc__=f"{absent}.", HELP=OF_THE_LAB[name], EXAMPLES=f"  howsure {name}", add=add, run=run
    )
