"""Real videos: DAVIS 2016, their flow, and the objects in them, split by video.

The layout is that of the data set: `JPEGImages/480p/<video>/00000.jpg` and
`Annotations/480p/<video>/00000.png`; the name of the folder in the middle does not matter.

DAVIS has no flow. It is read from `Flow/<resolution>/<video>/00000.flo` where that is there (the
flow from this frame to the next), and else computed by OpenCV's DIS (Kroeger et al. 2016), where
the paper took FlowNet2.

A fold takes a fifth of the videos for testing, the next fifth for tuning, and the others for
training; five folds test every video once. Test objects are told apart by what their motion did:
those whose mean flow changed more than the median from one frame to the next are "changing".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from howsure.files import write_atomically
from howsure_lab.experiments.motion.data import Counts, MotionData, ObjectPairs, as_targets
from howsure_lab.experiments.motion.model import DIVISOR
from howsure_lab.experiments.training import evenly, joined
from howsure_lab.optional import imported

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
    folders = _folders(path for path in Path(folder).glob(f"**/{_IMAGES}"))[:1]
    resolutions = [found for images in folders for found in _folders(images.iterdir())][:1]
    videos = [_video(images) for each in resolutions for images in _folders(each.iterdir())]
    if not videos:
        raise FileNotFoundError(
            f"There is no video in `{folder}`: looked for `{_IMAGES}/<resolution>/<video>/*.jpg` "
            f"and `{_MASKS}/<resolution>/<video>/*.png`."
        )
    return tuple(videos)


def _folders(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_dir())


def _video(images: Path) -> Video:
    """The video of a folder of frames; masks and flows are in folders beside, of the same names."""
    root, place = images.parents[2], Path(images.parent.name) / images.name
    frames = [path for path in sorted(images.iterdir()) if path.suffix.lower() in _SUFFIXES]
    masks = [root / _MASKS / place / f"{frame.stem}.png" for frame in frames]
    if missing := [mask for mask in masks if not mask.is_file()]:
        raise FileNotFoundError(f"The frame of `{missing[0].name}` has no mask: {missing[0]}.")
    flows = [root / _FLOWS / place / f"{frame.stem}.flo" for frame in frames[:-1]]
    return Video(images.name, tuple(frames), tuple(masks), tuple(flows))


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
    size = height, width
    pictures = [_gray(path) for path in video.frames]
    frames = [_resized(torch.from_numpy(each).float()[None] / 255, size) for each in pictures]
    masks = [_resized(torch.from_numpy(_gray(each)).float()[None], size) for each in video.masks]
    flows = []
    for path, now, following in zip(video.flows, pictures[:-1], pictures[1:], strict=True):
        flow = read_flo(path) if path.is_file() else dis_flow(now, following)
        if not bool(torch.isfinite(flow).all()):
            raise ValueError(f"`{path}` has pixels without a known flow; give a dense flow.")
        scale = torch.tensor([width / flow.shape[2], height / flow.shape[1]]).view(2, 1, 1)
        flows.append(_resized(flow * scale, size))
    return Clip(torch.cat(frames), (torch.cat(masks) > 127).float(), torch.cat(flows))


def _gray(path: Path) -> NDArray[np.uint8]:
    with imported("PIL.Image", "Frames need pillow", "pillow").open(path) as image:
        return np.array(image.convert("L"))


def _resized(
    image: Tensor,  # (channels, ...)
    size: tuple[int, int],
) -> Tensor:  # (1, channels, *size)
    """The image at another size, without aliasing."""
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)


def dis_flow(now: NDArray[np.uint8], following: NDArray[np.uint8]) -> Tensor:  # (2, height, width)
    """The flow between two gray images of 8 bits by OpenCV's DIS, medium preset."""
    need = "The videos have no .flo files, and computing their flow needs OpenCV"
    cv2 = imported("cv2", need, "opencv-python-headless")
    dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    # OpenCV asks for images without gaps in memory.
    flow = dis.calc(*(np.ascontiguousarray(image) for image in (now, following)), None)
    return torch.from_numpy(flow).permute(2, 0, 1).contiguous()


FOLDS = 5
_LEAST = 16  # pixels of an object: one cell of the finest flow
_ORDER = 7  # seed of the order of the videos


@dataclass(frozen=True)
class Fold:
    """Names of the videos of each part."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


def fold_of(names: Sequence[str], index: int) -> Fold:
    """The parts of a fold; every video is in exactly one of them."""
    if len(names) < 3:
        raise ValueError(f"There are {len(names)} videos; training, tuning and testing need 3.")
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(_ORDER))
    size = max(1, len(names) // FOLDS)
    start = size * (index % FOLDS)
    turned = [str(names[int(i)]) for i in order.roll(-start)]
    return Fold(tuple(turned[2 * size :]), tuple(turned[size : 2 * size]), tuple(turned[:size]))


@dataclass(frozen=True, eq=False)
class Objects:
    """All usable frames of a video: inputs and targets, and how much the motion changed."""

    pairs: ObjectPairs
    change: Tensor  # (n,), pixels


def read_objects(folder: Path, height: int, width: int) -> dict[str, Objects]:
    """The objects of all videos of a folder, by the videos' names."""
    if height % DIVISOR or width % DIVISOR:
        raise ValueError(f"The sides must be multiples of {DIVISOR}, not {height} and {width}.")
    videos = find_videos(folder)
    return {video.name: objects_of(read_clip(video, height, width)) for video in videos}


def objects_of(clip: Clip) -> Objects:
    """Every frame that has a past and a future, and an object that can be seen."""
    now, before = slice(1, -1), slice(0, -2)
    x = torch.cat([clip.frames[now], clip.frames[before], clip.masks[now]], 1)
    y = as_targets(clip.flows[1:], clip.masks[now])

    def mean_flow(flows: Tensor, masks: Tensor) -> Tensor:  # (n, 2)
        return (flows * masks).sum((2, 3)) / masks.sum((2, 3)).clamp(min=1)

    change = mean_flow(clip.flows[1:], clip.masks[now])
    change = change - mean_flow(clip.flows[:-1], clip.masks[before])
    seen = (clip.masks[now].sum((1, 2, 3)) >= _LEAST) & (clip.masks[before].sum((1, 2, 3)) > 0)
    return Objects(ObjectPairs(x[seen], y[seen]), change.norm(dim=1)[seen])


def real_data(objects: dict[str, Objects], fold: Fold, counts: Counts) -> MotionData:
    """A fold's data; about as many objects as asked for, evenly spread in time."""

    def part(names: tuple[str, ...]) -> ObjectPairs:
        return joined([objects[name].pairs for name in names])

    test = part(fold.test)
    chosen = evenly(len(test.y), counts.test)
    change = torch.cat([objects[name].change for name in fold.test])[chosen]
    # By rank, so that neither half is empty where many are equal.
    halves = change.argsort(stable=True).tensor_split(2)
    tests = {
        kind: test.at(chosen[half.sort().values])
        for kind, half in zip(("steady", "changing"), halves, strict=True)
    }
    validation = part(fold.validation).every(counts.validation)
    train = part(fold.train).every(counts.train)
    return MotionData(joined([train, mirrored(train)]), validation, tests)


def mirrored(pairs: ObjectPairs) -> ObjectPairs:
    """The same objects seen in a mirror: left is right, and flow to the right goes left."""
    sign = torch.tensor([-1.0, 1.0, 1.0]).view(3, 1, 1)
    return ObjectPairs(pairs.x.flip(-1), sign * pairs.y.flip(-1))
