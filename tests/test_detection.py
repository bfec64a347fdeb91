"""Boxes that survive non-maximum suppression: their std is that of Monte Carlo."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import howsure as hs

SIDE, CELLS, NOISE = 16, 4, 0.05


class Grid(nn.Module):
    """Centers, sizes and two class logits at 4 x 4 cells of an image, in any family's form."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 4, 4), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()
        )
        self.head = nn.Conv2d(8, 6, 1)
        self.form = form

    def parts(self, images):
        maps = self.head(self.layers(images)).flatten(2).mT
        middle = SIDE / CELLS * (torch.arange(CELLS) + 0.5)
        middles = torch.cartesian_prod(middle, middle).flip(1)
        return middles + maps[..., :2], 3 + maps[..., 2:4].exp(), 8 * maps[..., 4:]

    def forward(self, images):
        if isinstance(images, list):
            images = torch.stack(images)
        return self.form(*self.parts(images))


def as_detr(center, size, logits):
    none = torch.zeros_like(logits[..., :1])
    return {
        "pred_boxes": torch.cat([center, size], -1) / SIDE,
        "pred_logits": torch.cat([logits, none], -1),
    }


def as_rt_detr(center, size, logits):
    return SimpleNamespace(pred_boxes=torch.cat([center, size], -1) / SIDE, logits=logits)


def as_yolov8(center, size, logits):
    return torch.cat([center, size, logits.sigmoid()], -1).mT, [center]


def as_yolov5(center, size, logits):
    one = torch.ones_like(logits[..., :1])
    return torch.cat([center, size, one, logits.sigmoid()], -1)


def read(output):
    center, size, logits = output
    return torch.cat([center - size / 2, center + size / 2], -1), logits.sigmoid()


def as_torchvision(center, size, logits):
    boxes, classes = read((center, size, logits))
    scores, labels = classes.max(-1)
    # Like torchvision's, in the order of the scores, and only the better ones.
    orders = [score.argsort(descending=True)[: int((score > 0.3).sum())] for score in scores]
    return [
        {"boxes": b[o], "scores": s[o], "labels": label[o]}
        for b, s, label, o in zip(boxes, scores, labels, orders, strict=True)
    ]


FAMILIES = {
    "detr": as_detr,
    "rt_detr": as_rt_detr,
    "yolov5": as_yolov5,
    "yolov8": as_yolov8,
    "torchvision": as_torchvision,
}


def images(count=3):
    return torch.rand(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def monte_carlo(detector, detections, draws=1000):
    """The std of every box over noisy images, by a loop of its own."""
    generator = torch.Generator().manual_seed(2)
    (x, which), boxes = detections.inputs, []
    with torch.no_grad():
        for _ in range(draws // 500):
            noisy = x.repeat(500, 1, 1, 1)
            noisy = noisy + NOISE * torch.randn(noisy.shape, generator=generator)
            boxes.append(detector(noisy, which.repeat(500, *[1] * (which.dim() - 1))))
    return torch.cat(boxes).unflatten(0, (-1, len(x))).std(0)


@pytest.mark.parametrize("family", [*FAMILIES, "function"])
def test_the_std_of_surviving_boxes_is_that_of_monte_carlo(family):
    form = FAMILIES.get(family, lambda *parts: parts)
    detector = hs.Detector(Grid(form).eval(), read if family == "function" else family)
    x = images(1 if family == "torchvision" else 3)
    detections = detector.detect(x, max_overlap=0.3)
    assert len(detections) >= 3
    sure = hs.Uncertain(detector, noise=(hs.noise.std(NOISE), None))
    p = sure(*detections.inputs)
    torch.testing.assert_close(p.mean, detections.boxes, rtol=1e-4, atol=1e-4)
    reference = monte_carlo(detector, detections)
    stays = ~reference.isnan().any(1)  # Final boxes may vanish in the noise.
    assert stays.sum() > 0.6 * len(stays) and (stays.all() or family == "torchvision")
    ratio = p.std[stays] / reference[stays]
    assert abs(float(ratio.median()) - 1) < 0.05
    assert float(ratio.min()) > 0.75 and float(ratio.max()) < 1.3


def test_all_families_find_the_same_boxes_in_pixels():
    found = {}
    for family in ("rt_detr", "yolov5", "yolov8", "torchvision"):
        detector = hs.Detector(Grid(FAMILIES[family]).eval(), family)
        found[family] = detector.detect(images(), max_overlap=0.3)
    for detections in found.values():
        torch.testing.assert_close(detections.boxes, found["yolov8"].boxes)
        assert torch.equal(detections.image, found["yolov8"].image)
        assert torch.equal(detections.labels, found["yolov8"].labels)


def test_of_boxes_that_overlap_the_better_survives_unless_the_class_differs():
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [1, 0, 11, 10], [20, 20, 30, 30]])
    scores = torch.tensor([[0.6, 0], [0.9, 0], [0, 0.8], [0.4, 0]])

    class Fixed(nn.Module):
        def forward(self, x):
            return boxes.expand(len(x), -1, -1), scores.expand(len(x), -1, -1)

    detector = hs.Detector(Fixed().eval(), lambda output: output)
    detections = detector.detect(torch.rand(2, 1, 4, 4))
    assert detections.image.tolist() == [0, 0, 1, 1]
    assert detections.labels.tolist() == [0, 1, 0, 1]
    torch.testing.assert_close(detections.scores[:2], torch.tensor([0.9, 0.8]))
    assert len(detector.detect(torch.rand(1, 1, 4, 4), max_overlap=1)) == 3
    nothing = detector.detect(torch.rand(1, 1, 4, 4), min_score=0.95)
    assert len(nothing) == 0 and nothing.inputs[0].shape == (0, 1, 4, 4)


def test_fit_on_matched_boxes_covers_their_sides():
    detector = hs.Detector(Grid(as_yolov8).eval(), "yolov8")
    detections = detector.detect(images(60), max_overlap=0.3)
    generator = torch.Generator().manual_seed(3)
    truth = detections.boxes + 0.4 * torch.randn(detections.boxes.shape, generator=generator)
    objects = [truth[detections.image == number] for number in range(60)]
    inputs, targets = detections.match(objects, min_overlap=0.4)
    assert 60 < len(targets) <= len(detections)
    sure = hs.Uncertain(detector, noise=(hs.noise.std(NOISE), None))
    sure.fit([(inputs, targets)], show_progress=False)
    p = sure(*inputs)
    coverage = hs.metrics.coverage(p.mean, p.total_var, targets, level=0.95)
    assert abs(float(coverage) - 0.95) < 0.04
    (no_inputs, _), no_targets = detections.match([torch.empty(0, 4)] * 60)
    assert len(no_inputs) == 0 and no_targets.shape == (0, 4)


def test_a_box_that_vanishes_in_the_noise_has_no_std():
    def sometimes(center, size, logits):
        final = as_torchvision(center, size, logits)
        bright = center[:, 0, 0] > center[:, 0, 0].median()
        keep = [slice(None) if bool(b) else slice(0) for b in bright]
        return [{k: v[s] for k, v in one.items()} for one, s in zip(final, keep, strict=True)]

    detector = hs.Detector(Grid(as_torchvision).eval(), "torchvision")
    inputs = detector.detect(images()).inputs
    detector.model.form = sometimes
    p = hs.Uncertain(detector, noise=(hs.noise.std(NOISE), None), method="noise_sampling")(*inputs)
    assert p.std.isnan().all(1).any()


def test_what_the_family_cannot_be_is_refused():
    with pytest.raises(ValueError, match="one of 'torchvision', 'detr'"):
        hs.Detector(Grid(as_detr).eval(), "yolo")
    with pytest.raises(ValueError, match=r"call `model.eval\(\)`"):
        hs.Detector(Grid(as_detr), "detr").detect(images())
    with pytest.raises(TypeError, match="without `pred_boxes`"):
        hs.Detector(Grid(as_yolov5).eval(), "detr").detect(images())
    with pytest.raises(TypeError, match="decoded proposals"):
        hs.Detector(Grid(as_detr).eval(), "yolov8").detect(images())
    with pytest.raises(ValueError, match="not probabilities"):
        hs.Detector(Grid(as_yolov5).eval(), "yolov8").detect(images())
    with pytest.raises(ValueError, match="in place of"):
        hs.Detector(Grid(lambda c, s, x: (c, x)).eval(), lambda out: out).detect(images())
