"""Errors as one sentence and an exit code."""

from __future__ import annotations

import errno
from argparse import Namespace
from pathlib import Path

from howsure.cli.result import FAILED, WRONG_INPUT

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
        return _about_a_file(error)
    text = " ".join(str(error).split())
    if isinstance(error, _THEIRS) and text:
        return text
    kind = type(error).__name__
    return f"It failed ({kind}: {text}); `--debug` shows where, and please report it."


def _about_a_file(error: OSError) -> str:
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
