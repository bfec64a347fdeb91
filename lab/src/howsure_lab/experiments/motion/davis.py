"""DAVIS 2016: videos with a mask of the object in every frame, at any resolution.

The layout is that of the data set: `JPEGImages/480p/<video>/00000.jpg` and
`Annotations/480p/<video>/00000.png`; the name of the folder in the middle does not matter.

DAVIS has no flow. It is read from `Flow/<resolution>/<video>/00000.flo` where that is there (the
flow from this frame to the next), and else computed by OpenCV's DIS (Kroeger et al. 2016), where
the paper took FlowNet2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from howsure_lab.experiments.motion.flow_files import read_flo

_IMAGES, _MASKS, _FLOWS = "JPEGImages", "Annotations", "Flow"
_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Video:
    """The frames of a video with their masks, in the order of time."""

    name: str
    frames: tuple[Path, ...]
    masks: tuple[Path, ...]
    flows: tuple[Path, ...]  # from each frame to the next; they need not exist

    def __len__(self) -> int:
        return len(self.frames)


def find_videos(folder: str | Path) -> tuple[Video, ...]:
    """All videos in a folder with the layout of DAVIS, or below it, in the order of their names."""
    folder = Path(folder)
    roots = [path.parent for path in sorted(folder.glob(f"**/{_IMAGES}")) if path.is_dir()]
    videos = [video for root in roots[:1] for video in _videos(root)]
    if not videos:
        raise FileNotFoundError(
            f"There is no video in `{folder}`: looked for `{_IMAGES}/<resolution>/<video>/*.jpg` "
            f"and `{_MASKS}/<resolution>/<video>/*.png`."
        )
    return tuple(videos)


def _videos(root: Path) -> list[Video]:
    resolution = next(iter(sorted(p for p in (root / _IMAGES).iterdir() if p.is_dir())), None)
    if resolution is None:
        return []
    found = []
    for images in sorted(path for path in resolution.iterdir() if path.is_dir()):
        frames = [path for path in sorted(images.iterdir()) if path.suffix.lower() in _SUFFIXES]
        place = Path(resolution.name) / images.name
        masks = [root / _MASKS / place / f"{frame.stem}.png" for frame in frames]
        missing = [mask for mask in masks if not mask.is_file()]
        if missing:
            raise FileNotFoundError(f"The frame of `{missing[0].name}` has no mask: {missing[0]}.")
        flows = [root / _FLOWS / place / f"{frame.stem}.flo" for frame in frames[:-1]]
        found.append(Video(images.name, tuple(frames), tuple(masks), tuple(flows)))
    return found


@dataclass(frozen=True, eq=False)
class Clip:
    """A video at the size of the network's input.

    Frame i + 1 is "now" for entry i: it has a past and a future frame.
    """

    frames: Tensor  # (frames, 1, height, width), gray values in [0, 1]
    masks: Tensor  # (frames, 1, height, width), 0 or 1
    flows: Tensor  # (frames - 1, 2, height, width), pixels of this size


def read_clip(video: Video, height: int, width: int) -> Clip:
    """The video, resized; its flow is computed at the size of the files and then resized."""
    if len(video) < 3:
        raise ValueError(f"The video `{video.name}` has {len(video)} frames; it needs 3.")
    pictures = [_gray(path) for path in video.frames]
    frames = torch.cat([_resized(_as_tensor(p) / 255, height, width) for p in pictures])
    masks = torch.cat([_resized(_as_tensor(_gray(p)), height, width) for p in video.masks])
    flows = torch.cat([_flow(video, pictures, i, (height, width)) for i in range(len(video) - 1)])
    return Clip(frames, (masks > 127).float(), flows)


def _gray(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("Frames need pillow: `pip install pillow`.") from None
    with Image.open(path) as image:
        return np.array(image.convert("L"))


def _as_tensor(picture: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(picture).float()[None, None]


def _resized(image: Tensor, height: int, width: int) -> Tensor:
    """The image at another size, without aliasing."""
    return F.interpolate(image, (height, width), mode="bilinear", antialias=True)


def _flow(
    video: Video, pictures: Sequence[NDArray[np.uint8]], index: int, size: tuple[int, int]
) -> Tensor:
    """The flow from a frame to the next, (1, 2, height, width), in pixels of the new size."""
    path = video.flows[index]
    flow = read_flo(path) if path.is_file() else dis_flow(pictures[index], pictures[index + 1])
    if not bool(torch.isfinite(flow).all()):
        raise ValueError(f"`{path}` has pixels without a known flow; give a dense flow.")
    scale = torch.tensor([size[1] / flow.shape[2], size[0] / flow.shape[1]]).view(2, 1, 1)
    return _resized((flow * scale)[None], *size)


def dis_flow(now: NDArray[np.uint8], following: NDArray[np.uint8]) -> Tensor:  # (2, height, width)
    """The flow between two gray images of 8 bits by OpenCV's DIS, medium preset."""
    try:
        import cv2  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "The videos have no .flo files, and computing their flow needs OpenCV: "
            "`pip install opencv-python-headless`."
        ) from None
    dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    # OpenCV asks for images without gaps in memory.
    flow = dis.calc(*(np.ascontiguousarray(image) for image in (now, following)), None)
    return torch.from_numpy(flow).permute(2, 0, 1).contiguous()
