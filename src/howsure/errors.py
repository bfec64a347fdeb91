"""What howsure refuses: an operation without a rule, a prediction that cannot be exported."""

from __future__ import annotations

from collections.abc import Callable


class NoRuleError(NotImplementedError):
    """An operation met a Gaussian and has no moment rule, or none that makes sense.

    Attributes:
        operation: The torch operation, once the error has left the rule.
        reason: Why there is no rule and what to do, without the place.
        can_fall_back: Whether a first-order or sampled answer makes sense.
    """

    operation: Callable[..., object]
    reason: str

    def __init__(self, message: str, *, can_fall_back: bool = False) -> None:
        super().__init__(message)
        self.can_fall_back = can_fall_back


class ExportError(ValueError):
    """The prediction cannot be exported as asked; the message says why and what to do."""


def missing_packages(error: ImportError) -> ImportError:
    """The error with the line that installs what is missing."""
    return ImportError(
        f"Exporting to ONNX needs `{error.name}`, which is not installed; "
        "`pip install 'howsure[export]'` brings it. A `.pt2` file needs no further package."
    )
