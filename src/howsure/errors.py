"""What howsure refuses or warns of: operations without a rule, options that do not exist."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class NoRuleError(NotImplementedError):
    """An operation met a Gaussian and has no moment rule, or none that makes sense.

    Attributes:
        operation: The torch operation, once the error has left the rule.
        reason: Why there is no rule and what to do, without the place.
        can_fall_back: Whether a first-order or sampled answer makes sense.

    Examples:
        >>> try:
        ...     hs.propagate(torch.sort, torch.zeros(3), 0.01)
        ... except hs.NoRuleError as error:
        ...     print(error.operation.__name__, error.can_fall_back)
        ...
        sort False
    """

    operation: Callable[..., object]
    reason: str

    def __init__(self, message: str, *, can_fall_back: bool = False) -> None:
        super().__init__(message)
        self.can_fall_back = can_fall_back


class HowsureWarning(UserWarning):
    """The category of every warning of howsure, so that a program can filter them by it.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("ignore", hs.HowsureWarning)
    """


def warn(sentence: str) -> None:
    """Warns, and names the line of the user's that called the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("howsure."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, HowsureWarning, stacklevel=level)


class ExportError(ValueError):
    """The prediction cannot be exported as asked; the message says why and what to do."""


def import_extra(name: str, need: str, extra: str = "cli") -> Any:
    """A module of a package that an extra of howsure brings, or one sentence with the remedy."""
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(
            f"{need}, which is not installed: `pip install 'howsure[{extra}]'`."
        ) from None


def check_option(name: str, names: Iterable[str], place: str) -> None:
    """One clear sentence if a function has no such option."""
    names = sorted(names)
    if name in names:
        return
    near = get_close_matches(name, names, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(names)}."
    raise TypeError(f"`{place}` has no option `{name}`; {hint}")
