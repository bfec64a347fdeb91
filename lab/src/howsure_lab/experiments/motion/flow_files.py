"""`.flo` files, Middlebury's format of optical flow: a tag, width, height, (u, v) by rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from howsure.files import write_atomically

_TAG = b"PIEH"  # 202021.25 as a little-endian float
_HEADER = 12  # bytes
_UNKNOWN = 1e9  # larger values mark pixels without a known flow


def read_flo(path: str | Path) -> Tensor:  # (2, height, width)
    """The flow in pixels, to the right and down; NaN where the file says that it is unknown."""
    content = Path(path).read_bytes()
    if content[:4] != _TAG or len(content) < _HEADER:
        raise ValueError(f"`{path}` is not a .flo file: it does not begin with `PIEH`.")
    width, height = (int(n) for n in np.frombuffer(content, "<i4", 2, 4))
    expected = _HEADER + 8 * width * height
    if width < 1 or height < 1 or len(content) != expected:
        raise ValueError(
            f"`{path}` says that it has {width} x {height} pixels, which are {expected} bytes, but "
            f"it has {len(content)}."
        )
    values = np.frombuffer(content, "<f4", offset=_HEADER).reshape(height, width, 2)
    flow = torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1).contiguous()
    return torch.where(flow.abs() > _UNKNOWN, torch.nan, flow)


def write_flo(
    path: str | Path,
    flow: Tensor,  # (2, height, width)
) -> None:
    """Writes a flow; NaN is marked as unknown."""
    if flow.dim() != 3 or flow.shape[0] != 2:
        raise ValueError(f"A flow has shape (2, height, width), not {tuple(flow.shape)}.")
    known = torch.nan_to_num(flow.detach().cpu().float(), nan=2 * _UNKNOWN)
    header = _TAG + np.array([flow.shape[2], flow.shape[1]], "<i4").tobytes()
    body = known.permute(1, 2, 0).contiguous().numpy().astype("<f4").tobytes()
    write_atomically(Path(path), lambda file: file.write(header + body))
