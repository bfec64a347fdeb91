"""The program: parses, runs a command, prints its result, and turns errors into sentences."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from howsure.cli.early import check_early
from howsure.cli.failures import code_of, sentence
from howsure.cli.overwriting import check_outputs
from howsure.cli.parser import UsageError, parse
from howsure.cli.result import FAILED, WRONG_INPUT, Result, as_json


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed or interrupted, 2 wrong input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse(given)
    except SystemExit as end:  # after --help and --version
        return int(end.code or 0)
    except UsageError as error:
        return _told(str(error), WRONG_INPUT, json="--json" in given)
    try:
        return _run(options)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _forget_stdout()
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if options.debug:
            raise
        return _told(sentence(error, options), code_of(error), json=options.json)


def _run(options: Namespace) -> int:
    notes: list[str] = []
    check_outputs(options)
    check_early(options)
    with _warnings_told(notes, quiet=options.quiet):
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


def _told(message: str, code: int, *, json: bool) -> int:
    print(message, file=sys.stderr)
    if json:
        print(as_json({"error": message, "exit_code": code}))
    return code


@contextmanager
def _warnings_told(notes: list[str], *, quiet: bool) -> Iterator[None]:
    """Warnings as sentences on stderr, and collected; `quiet` does without the former."""

    def tell(message: Warning | str, category: object, filename: str, *rest: object) -> None:
        if "/torch/" in Path(filename).as_posix():  # about torch's insides, which users cannot fix
            return
        notes.append(str(message))
        if not quiet:
            print(f"Note: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.resetwarnings()
        for silent in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", silent)
        warnings.showwarning = tell
        yield


def _forget_stdout() -> None:
    """Points stdout to nowhere, so that Python does not complain about it on leaving."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
