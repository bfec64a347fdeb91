"""How much a file may claim to hold before it is read."""

from __future__ import annotations

from dataclasses import dataclass

_ARRAY = 4 * 2**30
_IMAGE = 256 * 2**20


@dataclass(frozen=True)
class Limits:
    """The most bytes that one array, or one image, may take once it is unpacked.

    A small file can declare any size. What it declares is compared with this before anything is
    read.

    Attributes:
        max_bytes: The limit; `None` for 4 GiB for an array and 256 MiB for an image.
    """

    max_bytes: int | None = None

    def check_array(self, declared: int, what: str) -> None:
        """An error if an array that has to be unpacked is too large."""
        _check(declared, self.max_bytes or _ARRAY, what)

    def check_image(self, declared: int, what: str) -> None:
        """An error if an image is too large."""
        _check(declared, self.max_bytes or _IMAGE, what)


def _check(declared: int, limit: int, what: str) -> None:
    if declared > limit:
        raise ValueError(
            f"{what} declares {declared:,} bytes once unpacked, more than the limit of {limit:,}; "
            f"if that is right, allow it with `--max-bytes {declared}`."
        )
