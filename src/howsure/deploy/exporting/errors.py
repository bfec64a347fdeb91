"""What goes wrong when a prediction is written to a file."""

from __future__ import annotations


class ExportError(ValueError):
    """The prediction cannot be exported as asked; the message says why and what to do."""


def missing_packages(error: ImportError) -> ImportError:
    """The error with the line that installs what is missing."""
    return ImportError(
        f"Exporting to ONNX needs `{error.name}`, which is not installed; "
        "`pip install 'howsure[export]'` brings it. A `.pt2` file needs no further package."
    )
