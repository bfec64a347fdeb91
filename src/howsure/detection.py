"""Detectors of boxes: every box that survives non-maximum suppression as a row with a variance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from howsure.isolation import isolated
from howsure.trees import select_output

Family = Literal["torchvision", "detr", "rt_detr", "yolov5", "yolov8"]
# Boxes (batch, proposals, 4) as left, top, right, bottom, and probabilities (batch, proposals,
# classes), from what the model returns.
Reader = Callable[[Any], tuple[Tensor, Tensor]]

# A final box of a noisy image that overlaps less is that of another object.
_SAME_OBJECT = 0.3
# Two boxes of a YOLO network that overlap more are one object.
_YOLO_OVERLAP = 0.45


@dataclass(frozen=True, eq=False)
class Detections:
    """The boxes that a detector finds, one row for each.

    Attributes:
        inputs: What `sure(*detections.inputs)` takes: every box's image, and which box it is.
        image: The number of every box's image in the batch, (boxes,).
        boxes: Left, top, right, bottom in pixels, (boxes, 4).
        scores: The probability of every box's class, (boxes,).
        labels: Every box's class, (boxes,).
    """

    inputs: tuple[Tensor, Tensor]
    image: Tensor
    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """How many boxes there are in all images."""
        return len(self.boxes)

    def match(
        self, true_boxes: Sequence[Tensor], *, min_overlap: float = 0.5
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The inputs and the true boxes of all detections that meet an object, as `fit` takes them.

        Args:
            true_boxes: The boxes of the objects of every image, (objects, 4).
            min_overlap: Intersection over union above which a detection meets an object.
        """
        rows, targets = [], []
        for row, (number, box) in enumerate(zip(self.image.tolist(), self.boxes, strict=True)):
            truths = true_boxes[number].to(box)
            overlaps = intersection_over_union(box, truths)
            if len(truths) and overlaps.max() > min_overlap:
                rows.append(row)
                targets.append(truths[overlaps.argmax()])
        images, which = self.inputs
        return (images[rows], which[rows]), torch.stack(targets) if targets else self.boxes[:0]


class Detector(nn.Module):
    """A detector with a row for every box: `forward` returns the boxes, (boxes, 4).

    Examples:
        >>> layers = nn.Linear(64, 6), nn.Sigmoid(), nn.Unflatten(1, (6, 1))
        >>> model = nn.Sequential(nn.Flatten(), *layers).eval()  # one box, two classes
        >>> detector = hs.Detector(model, "yolov8")
        >>> sure = hs.Uncertain(detector, noise=(hs.noise.std(0.1), None))
        >>> detections = detector.detect(torch.rand(2, 1, 8, 8), min_score=0.1)
        >>> p = sure(*detections.inputs)
        >>> p.std.shape  # pixels, for every side of every box
        torch.Size([2, 4])

    Which boxes survive is decided once, on the image as it is, and each is then followed through
    the noise: by its number among the proposals, or, where a model returns final boxes alone
    ("torchvision"), as the box of the same class that overlaps it most. If there is none in one
    of the noisy images that are tried, the box has vanished, and its std is NaN.

    Args:
        model: The trained detector, in eval mode, which takes a batch of images.
        outputs: What it returns. "torchvision": a list of dicts with final `boxes`, `labels` and
            `scores`. "detr": `pred_boxes` (center and size, in parts of the image) and
            `pred_logits` or `logits`, whose last class is "no object". "rt_detr": the same with
            independent classes (sigmoid). "yolov8": (batch, 4 + classes, proposals), "yolov5":
            (batch, proposals, 5 + classes), both with centers and sizes in pixels and with
            probabilities. Or a function of the output that returns corners, (batch, proposals, 4),
            and probabilities, (batch, proposals, classes).
    """

    def __init__(self, model: nn.Module, outputs: Family | Reader) -> None:
        super().__init__()
        if not callable(outputs) and outputs not in ("torchvision", *_READERS):
            names = ", ".join(map(repr, ("torchvision", *_READERS)))
            raise ValueError(
                f"`outputs` must be one of {names}, or a function that returns boxes and "
                f"probabilities, not {outputs!r}."
            )
        self.model = model
        self.outputs = outputs
        self.train(model.training)

    def forward(self, images: Tensor, which: Tensor) -> Tensor:
        """The box of every row, (rows, 4), in pixels."""
        if self.outputs == "torchvision":
            final = self.model(list(images))
            return torch.stack([_follow(*row) for row in zip(final, which, strict=True)])
        boxes, _ = self._read(self.model(images), images)
        return boxes.gather(1, which[:, None, None].expand(-1, 1, 4))[:, 0]

    @torch.no_grad()
    def detect(
        self, images: Tensor, *, min_score: float = 0.5, max_overlap: float | None = None
    ) -> Detections:
        """The boxes of all images that survive.

        Args:
            images: A batch, (batch, channels, height, width).
            min_score: The least probability of a box.
            max_overlap: Of two boxes of a class whose intersection over union is larger, the one
                with the higher score survives. `None`: 0.45 for YOLO and for a function; 1, which
                suppresses nothing, where the model itself makes sure of it.
        """
        if self.model.training:
            raise ValueError("The detector is in train mode; call `model.eval()` first.")
        if max_overlap is None:
            suppresses_itself = self.outputs in ("torchvision", "detr", "rt_detr")
            max_overlap = 1.0 if suppresses_itself else _YOLO_OVERLAP
        model = isolated(self.model)
        candidates = []  # of every image: which, boxes, scores, labels
        if self.outputs == "torchvision":
            for final in model(list(images)):
                boxes, scores, labels = (final[key] for key in ("boxes", "scores", "labels"))
                which = torch.cat([boxes, labels[:, None].to(boxes)], 1)
                candidates.append((which, boxes, scores, labels))
        else:
            for boxes, classes in zip(*self._read(model(images), images), strict=True):
                which = torch.arange(len(boxes), device=boxes.device)
                candidates.append((which, boxes, *classes.max(1)))
        parts = []
        for number, (which, boxes, scores, labels) in enumerate(candidates):
            kept = _suppress(boxes, scores, labels, min_score, max_overlap)
            owner = torch.full_like(kept, number)
            parts.append((owner, which[kept], boxes[kept], scores[kept], labels[kept]))
        image, which, *values = (torch.cat(part) for part in zip(*parts, strict=True))
        return Detections((images[image], which), image, *values)

    def _read(self, output: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        """Corners of all proposals in pixels, and the probabilities of their classes."""
        if callable(self.outputs):
            boxes, scores = self.outputs(output)
        else:
            size = images.new_tensor([images.shape[-1], images.shape[-2]])
            center, extent, scores = _READERS[self.outputs](output, size)
            boxes = torch.cat([center - extent / 2, center + extent / 2], -1)
        if boxes.dim() != 3 or boxes.shape[2] != 4 or scores.shape[:2] != boxes.shape[:2]:
            raise ValueError(
                f"The boxes have shape {tuple(boxes.shape)} and their probabilities "
                f"{tuple(scores.shape)}, in place of (batch, proposals, 4) and (batch, proposals, "
                "classes); name another kind of `outputs`, or give a function."
            )
        outside = scores.detach().nan_to_num(0.5)
        if bool(((outside < -1e-4) | (outside > 1.0001)).any()):
            raise ValueError(
                f"Scores from {outside.min():.3g} to {outside.max():.3g} are not probabilities; "
                "name another kind of `outputs`, or give a function that applies the sigmoid."
            )
        return boxes, scores


def _part(output: Any, *names: str) -> Tensor:
    """The part of a dict or object that has one of the names."""
    for name in names:
        if name in output if isinstance(output, dict) else hasattr(output, name):
            return select_output(output, name)
    raise TypeError(
        f"The detector returns a {type(output).__name__} without `{names[0]}`; name another kind "
        "of `outputs`, or give a function."
    )


def _proposals(output: Any) -> Tensor:
    """The decoded proposals, which YOLO networks return first, before their feature maps."""
    first = output[0] if isinstance(output, (tuple, list)) else output
    if not isinstance(first, Tensor) or first.dim() != 3:
        raise TypeError(
            "A YOLO network returns its decoded proposals as one tensor of three axes; this one "
            f"returns a {type(first).__name__}. Give the network in eval mode, without its "
            "non-maximum suppression, or a function as `outputs`."
        )
    return first


def _queries(
    output: Any, size: Tensor, probabilities: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes in parts of the image and logits, which networks of the DETR kind return."""
    boxes, logits = _part(output, "pred_boxes"), _part(output, "pred_logits", "logits")
    return boxes[..., :2] * size, boxes[..., 2:] * size, probabilities(logits)


def _read_yolov5(output: Any, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = _proposals(output)
    return rows[..., :2], rows[..., 2:4], rows[..., 4:5] * rows[..., 5:]


def _read_yolov8(output: Any, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = _proposals(output).mT
    return rows[..., :2], rows[..., 2:4], rows[..., 4:]


# Centers, sizes and probabilities of the classes, of an output for images of (width, height).
_READERS = {
    "detr": partial(_queries, probabilities=lambda logits: logits.softmax(-1)[..., :-1]),
    "rt_detr": partial(_queries, probabilities=torch.sigmoid),
    "yolov5": _read_yolov5,
    "yolov8": _read_yolov8,
}


def _follow(final: dict[str, Tensor], which: Tensor) -> Tensor:
    """The final box of the same class that overlaps a given one most; NaN if it has vanished."""
    boxes = final["boxes"][final["labels"] == which[4].to(final["labels"])]
    if len(boxes):
        overlaps = intersection_over_union(which[:4].to(boxes), boxes.detach())
        if overlaps.max() >= _SAME_OBJECT:
            return boxes[overlaps.argmax()]
    return torch.full_like(which[:4], torch.nan)


def _suppress(
    boxes: Tensor, scores: Tensor, labels: Tensor, min_score: float, max_overlap: float
) -> Tensor:
    """The numbers of the boxes that overlap none of their class with a higher score."""
    waiting = scores.argsort(descending=True, stable=True)
    waiting = waiting[scores[waiting] >= min_score]
    if max_overlap >= 1:
        return waiting
    kept = []
    while len(waiting):
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        others = labels[waiting] != labels[best]
        overlaps = intersection_over_union(boxes[best], boxes[waiting])
        waiting = waiting[others | (overlaps <= max_overlap)]
    return torch.stack(kept) if kept else waiting


def intersection_over_union(box: Tensor, others: Tensor) -> Tensor:
    """Overlap of a box, (4,), with others, (n, 4): 1 for the same box, 0 for none in common."""
    low, high = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    common = (high - low).clamp(min=0).prod(1)
    areas = [(corners[..., 2:] - corners[..., :2]).prod(-1) for corners in (box, others)]
    return common / (areas[0] + areas[1] - common)
