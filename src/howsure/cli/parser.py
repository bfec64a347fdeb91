"""The parser of all commands, made from the commands' own files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from howsure.cli.homes import command
from howsure.cli.options import add_common

# In the order of a user's work; `howsure.cli.homes` finds each.
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

# Commands of version 0.1, and what takes their place.
RENAMED = {"tune": "fit"}

_ABOUT = "How sure is your trained network?"
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
        description=_ABOUT,
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"howsure {_version()}")
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


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The options; an error tells what does not fit."""
    if given and given[0] in RENAMED:
        new = RENAMED[given[0]]
        raise UsageError(f"`howsure {given[0]}` is now called `howsure {new}`.")
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        raise UsageError(
            f"There is no command {given[0]!r}; the commands are {', '.join(COMMANDS)}."
        )
    parser = build_parser()
    found = parser.parse_args(given)
    if found.command is None:
        raise UsageError(f"Name a command: {', '.join(COMMANDS)}; see `howsure --help`.")
    return found


def _version() -> str:
    try:
        return version("howsure")
    except PackageNotFoundError:  # run from its source
        return "unknown"
