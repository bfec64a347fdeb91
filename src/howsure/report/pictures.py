"""Pictures inside the page: tensors as PNG in data URIs, with nothing but zlib."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

# Small images are enlarged by whole factors to about this many pixels.
_SIDE = 96


def as_images(images: object) -> Tensor | None:
    """Images in [0, 1], (inputs, 1 or 3, height, width), or `None` if the tensor holds none.

    Values outside [0, 1] are scaled by the smallest and largest of all images, since one that is
    normalised cannot be shown as it is.
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        return None
    if min(images.shape[2:]) < 2 or not images.dtype.is_floating_point:
        return None
    low, high = float(images.min()), float(images.max())
    if low >= 0 and high <= 1:
        return images
    return (images - low) / (high - low)


def data_uri(
    image: Tensor,  # (1 or 3, height, width), in [0, 1]
) -> str:
    """The image as `data:image/png;base64,...`."""
    factor = max(1, _SIDE // max(image.shape[1:]))
    large = image.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    pixels = (large.clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).cpu()
    return "data:image/png;base64," + base64.b64encode(_png(pixels)).decode("ascii")


def _png(
    pixels: Tensor,  # (height, width, 1 or 3), uint8
) -> bytes:
    """A PNG file: signature, header, one compressed block of unfiltered rows, end."""
    height, width, channels = pixels.shape
    rows = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), pixels.reshape(height, -1)], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    body = zlib.compress(rows.numpy().tobytes(), 9)
    parts = (_chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
