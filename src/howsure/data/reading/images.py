"""Folders of images, each read by pillow when it is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from howsure.data.reading.arrays import check_size
from howsure.data.reading.source import Inputs, Preparation

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# Pillow's names for pixels of 8 bits or fewer; others would be clipped silently.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_MAX_IMAGE_BYTES = 256 * 2**20


def image_files(folder: Path) -> tuple[Path, ...]:
    """All images in a folder and below it, in the order of their names."""
    files = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES]
    if not files:
        raise ValueError(f"The folder `{folder}` has no images ({', '.join(SUFFIXES)}).")
    return tuple(sorted(files, key=lambda path: path.relative_to(folder).as_posix()))


@dataclass(frozen=True, eq=False)
class ImageSource:
    """The images of a folder as rows of shape (3 or 1, height, width).

    Attributes:
        folder: Where they are.
        files: The images, in order.
        preparation: What is done to the pixels.
        size: Height and width to which images are brought; `None` to leave them.
        gray: Read images as gray instead of RGB.
        max_bytes: The most bytes that the pixels of an image may take; `None` for 256 MiB.
    """

    folder: Path
    files: tuple[Path, ...]
    preparation: Preparation
    size: tuple[int, int] | None = None
    gray: bool = False
    max_bytes: int | None = None

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, start: int, stop: int) -> Inputs:
        """A batch of images; all must have the same size."""
        files = self.files[start:stop]
        images = [self._pixels(path) for path in files]
        for path, image in zip(files, images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"`{path}` has {image.shape[0]} x {image.shape[1]} pixels and `{files[0]}` "
                    f"{images[0].shape[0]} x {images[0].shape[1]}; bring all to one size with "
                    "`--image-size HEIGHT,WIDTH`."
                )
        return self.preparation(np.stack(images).transpose(0, 3, 1, 2), f"`{self.folder}`", start)

    def _pixels(self, path: Path) -> np.ndarray:  # (height, width, channels)
        pillow = _pillow()
        channels = 1 if self.gray else 3
        with _reading(path):
            image = pillow.open(path)  # the header alone
        with image:
            limit = self.max_bytes or _MAX_IMAGE_BYTES
            check_size(image.width * image.height * channels, limit, f"`{path}`")
            if image.mode not in _MODES:
                raise ValueError(
                    f"`{path}` has pixels of the kind {image.mode!r}, which 8 bits cannot hold; "
                    "give such images as an array in a `.npz` file."
                )
            with _reading(path):
                pixels = image.convert("L" if self.gray else "RGB")
                if self.size is not None:
                    pixels = pixels.resize(self.size[::-1], pillow.Resampling.BILINEAR)
                return np.asarray(pixels).reshape(pixels.height, pixels.width, channels)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a decoder raises for a damaged file, as one sentence; its warnings are left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"`{path}` is not a readable image: {error}.") from None


def _pillow() -> ModuleType:
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ImportError(
            "Folders of images need `pillow`, which is not installed: `pip install 'howsure[cli]'`."
        ) from None
