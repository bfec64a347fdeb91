"""What everything that scores data asks of it: rows by number, in bounded memory."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from torch import Tensor

# What a model takes: one tensor, several by position, or several by name. Rows come first.
Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


class Source(Protocol):
    """Rows of input data that are read when they are asked for.

    Any object with these three methods will do.
    """

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def rows(self, start: int, stop: int) -> Inputs:
        """The inputs of rows start to stop - 1, as the model takes them.

        The same numbers give the same rows, in whatever order and from whichever process they are
        asked for.
        """
        ...

    def fingerprint(self) -> str:
        """A digest of the data: equal for equal data, whatever the file's date or folder."""
        ...
