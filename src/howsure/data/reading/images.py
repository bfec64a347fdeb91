"""Folders of images, each read when it is asked for."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from howsure.data.reading.choice import Choice
from howsure.data.reading.prepared import Preparation
from howsure.data.reading.source import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# Pillow's names for pixels of 8 bits or fewer; others would be clipped without a word.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def image_files(folder: Path) -> tuple[Path, ...]:
    """All images in a folder and below it, in the order of their names."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES]
    if not found:
        raise ValueError(f"The folder `{folder}` has no images ({', '.join(SUFFIXES)}).")
    return tuple(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))


@dataclass(frozen=True, eq=False)
class ImageSource:
    """The images of a folder as rows of shape (3 or 1, height, width).

    Attributes:
        folder: Where they lie.
        files: The images, in order.
        choice: Size, colour and what is done to the pixels.
    """

    folder: Path
    files: tuple[Path, ...]
    choice: Choice

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, start: int, stop: int) -> Inputs:
        """A batch of images; all must have the same size."""
        images = [self._pixels(path) for path in self.files[start:stop]]
        if not images:
            raise ValueError(f"There are no images in rows {start} to {stop}.")
        for path, image in zip(self.files[start:stop], images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"`{path}` has {_size(image)} pixels and `{self.files[start]}` "
                    f"{_size(images[0])}; bring all to one size with `--image-size HEIGHT,WIDTH`."
                )
        return self._preparation(np.stack(images).transpose(0, 3, 1, 2), str(self.folder), start)

    @property
    def _preparation(self) -> Preparation:
        return self.choice.preparation

    def fingerprint(self) -> str:
        """A digest of names, content of the files and options; a camera reuses names."""
        digest = hashlib.sha256(repr(self.choice).encode())
        for path in self.files:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(self.folder).as_posix()}\0{content}\0".encode())
        return digest.hexdigest()

    def _pixels(self, path: Path) -> np.ndarray:  # (height, width, channels)
        pillow = _pillow()
        try:
            with warnings.catch_warnings():
                # Size is checked below, by the user's own limit.
                warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
                with pillow.open(path) as image:
                    return self._converted(image, path, pillow)
        except pillow.DecompressionBombError as error:
            raise ValueError(f"`{path}` is too large: {error}") from None
        except FileNotFoundError:
            raise
        except (OSError, SyntaxError, EOFError) as error:
            raise ValueError(f"`{path}` is not a readable image: {error}.") from None

    def _converted(self, image: Image, path: Path, pillow: ModuleType) -> np.ndarray:
        width, height = image.size
        channels = 1 if self.choice.gray else 3
        self.choice.limits.check_image(width * height * channels, f"`{path}`")
        if image.mode not in _MODES:
            raise ValueError(
                f"`{path}` has pixels of the kind {image.mode!r}, which 8 bits cannot hold; give "
                "such images as an array in a `.npz` file."
            )
        image = image.convert("L" if self.choice.gray else "RGB")
        if self.choice.image_size is not None:
            rows, columns = self.choice.image_size
            image = image.resize((columns, rows), pillow.Resampling.BILINEAR)
        pixels = np.asarray(image)
        return pixels[..., None] if pixels.ndim == 2 else pixels


def _size(image: np.ndarray) -> str:
    return f"{image.shape[0]} x {image.shape[1]}"


def _pillow() -> ModuleType:
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ImportError(
            "Folders of images need `pillow`, which is not installed; `pip install pillow` brings "
            "it, or give the images as an array in a `.npz` file."
        ) from None
