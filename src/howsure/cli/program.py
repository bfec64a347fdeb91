"""The program: parses, runs a command, prints its result, and turns errors into sentences."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from howsure.cli.parser import UsageError, parse
from howsure.cli.paths import check_files
from howsure.cli.result import FAILED, WRONG_INPUT, Result, as_json


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed or interrupted, 2 wrong input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse(given)
    except SystemExit as end:  # after --help and --version
        return int(end.code or 0)
    except UsageError as error:
        return _print_error(str(error), WRONG_INPUT, json="--json" in given)
    try:
        return _run(options)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _discard_stdout()
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if options.debug:
            raise
        return _print_error(sentence(error, options), code_of(error), json=options.json)


def _run(options: Namespace) -> int:
    notes: list[str] = []
    check_files(options)
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


def _discard_stdout() -> None:
    """Points stdout to nowhere, so that Python does not complain about it on leaving."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# What users can fix: values, types, files, packages, operations without a rule.
_THEIRS = (ValueError, TypeError, OSError, ImportError, NotImplementedError)
_RESUMES = "Interrupted; finished parts are kept, and the same command goes on from there."


def code_of(error: BaseException) -> int:
    """2 for wrong input, 1 for what failed otherwise."""
    return WRONG_INPUT if isinstance(error, _THEIRS) else FAILED


def sentence(error: BaseException, options: Namespace) -> str:
    """What went wrong and what to do, on one line."""
    if isinstance(error, KeyboardInterrupt):
        resumes = getattr(options, "resumes", False)
        return _RESUMES if resumes else "Interrupted; no file was left half-written."
    if isinstance(error, OSError) and error.errno is not None:
        return _file_sentence(error)
    text = " ".join(str(error).split())
    if isinstance(error, _THEIRS) and text:
        return text
    kind = type(error).__name__
    return f"It failed ({kind}: {text}); `--debug` shows where, and please report it."


def _file_sentence(error: OSError) -> str:
    what = f"`{_place(error.filename)}`: " if error.filename else ""
    reason = error.strerror or type(error).__name__
    remedy = {
        errno.ENOSPC: "; free some space, or write elsewhere. Nothing was left half-written",
        errno.EDQUOT: "; free some space, or write elsewhere. Nothing was left half-written",
        errno.EFBIG: "; write elsewhere. Nothing was left half-written",
        errno.EACCES: "; choose a place that you may read and write",
        errno.EROFS: "; choose a folder that can be written to",
        errno.ENOENT: "; check the name",
    }.get(error.errno or 0, "")
    return f"{what}{reason}{remedy}."


def _place(filename: object) -> str:
    """The file, or the folder of one of our temporary files, whose name says nothing."""
    path = Path(str(filename))
    return str(path.parent if path.name.startswith(".") else path)
