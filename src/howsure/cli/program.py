"""The program: parses, runs a command, prints its result, and turns errors into sentences."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

import howsure
from howsure.cli.commands import COMMANDS, Command
from howsure.cli.options import COMMON, check_files, option
from howsure.cli.result import FAILED, WRONG_INPUT, Result, as_json

# Commands of the laboratory, with their line of help where it is not installed.
OF_THE_LAB = {
    "demo": "a trained network, with uncertainty (needs howsure-lab)",
    "reproduce": "the paper's experiments, each by one command (needs howsure-lab)",
}
NAMES = (*COMMANDS, *OF_THE_LAB)

_HELP = """
`howsure COMMAND --help` has the options and examples of each. Exit codes: 0 done, 1 failed or
interrupted, 2 wrong input. Begin with `howsure init first`, or with `howsure demo`.
"""


# --- Parsing ----------------------------------------------------------------------------------


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
    for name in NAMES:
        command = command_of(name)
        subparser = commands.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=f"examples:\n{command.examples.rstrip()}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # an abbreviation would change its meaning with a new option
        )
        for add in (*command.options, COMMON):
            add(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def subparsers(parser: Parser) -> dict[str, Parser]:
    """The subparsers by command."""
    (group,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(group.choices)


def command_of(name: str) -> Command:
    """The command; for one of the laboratory that is not installed, a refusal.

    Another package offers a command as a module, by an entry point of the group `howsure.commands`:
    `HELP`, `EXAMPLES`, `add(parser)`, `run(arguments) -> Result`, and its docstring.
    """
    if name in COMMANDS:
        return COMMANDS[name]
    for point in entry_points(group="howsure.commands"):
        if point.name == name:
            module = point.load()
            return Command(module.HELP, module.__doc__, module.EXAMPLES, (module.add,), module.run)
    absent = f"`howsure {name}` is in the package howsure-lab, which is not installed"

    def refuse(arguments: argparse.Namespace) -> NoReturn:
        raise ImportError(f"{absent}: `pip install ./lab` in a clone of howsure.")

    rest = option("options", nargs=argparse.REMAINDER, help="as howsure-lab takes them")
    return Command(OF_THE_LAB[name], f"{absent}.", f"  howsure {name}", (rest,), refuse)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; an error names what does not fit."""
    listed = ", ".join(NAMES)
    if words and not words[0].startswith("-") and words[0] not in NAMES:
        raise UsageError(f"There is no command {words[0]!r}; the commands are {listed}.")
    options = build_parser().parse_args(words)
    if options.command is None:
        raise UsageError(f"Name a command: {listed}; see `howsure --help`.")
    return options


# --- Running ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed or interrupted, 2 wrong input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse(words)
    except SystemExit as end:  # after --help and --version
        return int(end.code or 0)
    except UsageError as error:
        return _print_error(str(error), WRONG_INPUT, json="--json" in words)
    try:
        return _run(options)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        # Python would complain about a closed stdout on leaving.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if options.debug:
            raise
        code = WRONG_INPUT if isinstance(error, _OF_USERS) else FAILED
        return _print_error(_sentence(error, options), code, json=options.json)


def _run(options: argparse.Namespace) -> int:
    notes: list[str] = []
    check_files(options)
    logging.getLogger("howsure").setLevel(logging.ERROR if options.quiet else logging.NOTSET)
    with _warnings_as_notes(notes, quiet=options.quiet):
        if options.json:
            with redirect_stdout(sys.stderr):  # a user's model may print
                result: Result = options.run(options)
        else:
            result = options.run(options)
    if options.json:
        print(as_json({"command": options.command, **result.data, "warnings": notes}))
    elif not (options.quiet and result.in_file):
        print(result.text)
    sys.stdout.flush()
    return result.code


def _print_error(message: str, code: int, *, json: bool) -> int:
    print(message, file=sys.stderr)
    if json:
        print(as_json({"error": message, "exit_code": code}))
    return code


@contextmanager
def _warnings_as_notes(notes: list[str], *, quiet: bool) -> Iterator[None]:
    """Warnings as sentences on stderr, and collected; `quiet` does without the former."""

    def note(message: Warning | str, category: object, filename: str, *rest: object) -> None:
        if "/torch/" in Path(filename).as_posix():  # about torch's insides, which users cannot fix
            return
        notes.append(str(message))
        if not quiet:
            print(f"Note: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.resetwarnings()
        for silent in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", silent)
        warnings.showwarning = note
        yield


# What users can fix: values, types, files, packages, operations without a rule.
_OF_USERS = (ValueError, TypeError, OSError, ImportError, NotImplementedError)
_FULL = "; free some space, or write elsewhere. Nothing was left half-written"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "; write elsewhere. Nothing was left half-written",
    errno.EACCES: "; choose a place that you may read and write",
    errno.EROFS: "; choose a folder that can be written to",
    errno.ENOENT: "; check the name",
}


def _sentence(error: BaseException, options: argparse.Namespace) -> str:
    """What went wrong and what to do, on one line."""
    if isinstance(error, KeyboardInterrupt):
        if getattr(options, "resumes", False):
            return "Interrupted; finished parts are kept, and the same command resumes from there."
        return "Interrupted; no file was left half-written."
    if isinstance(error, OSError) and error.errno is not None:
        path = Path(str(error.filename or ""))
        # The name of one of our temporary files says nothing.
        place = path.parent if path.name.startswith(".") else path
        what = f"`{place}`: " if error.filename else ""
        reason = error.strerror or type(error).__name__
        return f"{what}{reason}{_REMEDIES.get(error.errno, '')}."
    text = " ".join(str(error).split())
    if isinstance(error, _OF_USERS) and text:
        return text
    kind = type(error).__name__
    return f"Unexpected error ({kind}: {text}); `--debug` shows where. Please report it."
