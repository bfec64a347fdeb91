"""Small networks that read a pose off an image, under ten shifts that no fit has seen.

    PYTHONPATH=OLD/src python benchmarks/image_tasks.py --scores FILE       (another howsure)
    python benchmarks/image_tasks.py [--before FILE]

Digits of scikit-learn and clothes drawn for this file, turned, moved and scaled; a network finds
the angle, the position and the scale. The shifts leave these as they are, and none is one of the
corruptions that `fit` tries. Networks are trained once and kept in the temporary folder, so that
two versions of howsure judge the same ones. Writes benchmarks/results/image_tasks.json and the
table of docs/model.md. NLL without 1/2 log 2 pi, of the distribution that intervals are made of:
from version 0.3 a Student-t.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs

SIZE, NOISE_STD, BATCH = 28, 0.02, 100
# Each of the things: how many are for training, for the fit and for the test.
COUNTS = {"train": 1200, "held out": 250, "test": 340}
# Poses of each thing that is trained on.
POSES = 4
EPOCHS, RATE = 25, 2e-3
FIRST_SEED = 9000
Scores = dict[str, dict[str, dict[str, float]]]  # by method and condition
# Outlines of clothes, x and y from 0 to 1.
OUTLINES = {
    "shirt": (
        *((0.35, 0.1), (0.65, 0.1), (0.95, 0.3), (0.85, 0.45), (0.7, 0.36), (0.7, 0.9)),
        *((0.3, 0.9), (0.3, 0.36), (0.15, 0.45), (0.05, 0.3)),
    ),
    "trousers": (
        *((0.3, 0.08), (0.7, 0.08), (0.78, 0.92), (0.57, 0.92), (0.5, 0.35), (0.43, 0.92)),
        (0.22, 0.92),
    ),
    "dress": (*((0.4, 0.08), (0.6, 0.08), (0.62, 0.4), (0.85, 0.92), (0.15, 0.92), (0.38, 0.4)),),
    "boot": ((0.3, 0.1), (0.58, 0.1), (0.6, 0.55), (0.92, 0.72), (0.92, 0.88), (0.3, 0.88)),
    "bag": (
        *((0.1, 0.4), (0.3, 0.4), (0.38, 0.15), (0.62, 0.15), (0.7, 0.4), (0.9, 0.4)),
        *((0.85, 0.88), (0.15, 0.88)),
    ),
}


def digits() -> Tensor:
    """All digits, (n, 1, 8, 8) in [0, 1], in a fixed random order."""
    pixels, _ = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]


def clothes() -> Tensor:
    """Clothes of five kinds, each of its own shape, gray value and pattern, (n, 1, 24, 24)."""
    g, side, found = torch.Generator().manual_seed(1), 24, []
    for number in range(sum(COUNTS.values())):
        outline = torch.tensor(list(OUTLINES.values())[number % len(OUTLINES)])
        outline = outline + 0.03 * torch.randn(outline.shape, generator=g)
        image = Image.new("L", (4 * side, 4 * side))
        points = [(float(x), float(y)) for x, y in 4 * side * outline]
        ImageDraw.Draw(image).polygon(points, fill=255)
        mask = torch.as_tensor(np.array(image.resize((side, side), Image.Resampling.BOX)))
        gray, depth, waves = torch.rand(3, generator=g).tolist()
        rows = torch.linspace(0, 1, side)[:, None]
        pattern = 0.5 + 0.5 * gray - 0.3 * depth * (0.5 + 0.5 * (20 * (1 + waves) * rows).sin())
        found.append(mask / 255 * pattern)
    return torch.stack(found)[:, None]


def posed(things: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Images of turned, moved and scaled things, and their poses: angle, position and scale."""
    g = torch.Generator().manual_seed(seed)
    u = 2 * torch.rand(len(things), 4, generator=g) - 1
    angle, x, y, scale = u.unbind(1)
    turn, size = math.radians(60) * angle, 0.55 * 1.4**scale
    cos, sin = turn.cos() / size, turn.sin() / size
    move = 0.3 * torch.stack([x, y], 1)
    rotation = torch.stack([torch.stack([cos, sin], 1), torch.stack([-sin, cos], 1)], 1)
    offset = -(rotation @ move[:, :, None])
    grid = F.affine_grid(
        torch.cat([rotation, offset], 2), [len(things), 1, SIZE, SIZE], align_corners=False
    )
    images = 0.1 + 0.8 * F.grid_sample(things, grid, align_corners=False)
    images = images + NOISE_STD * torch.randn(images.shape, generator=g)
    # All of them uniform; the std is 1.
    return images, math.sqrt(3) * u[:, [0, 1, 3]]


def shifts(x: Tensor) -> dict[str, Tensor]:
    """The images as they are, and under ten shifts."""
    g = torch.Generator().manual_seed(5)
    rows, columns = (torch.linspace(0, 1, SIZE)[:, None], torch.linspace(0, 1, SIZE)[None])
    fog = 0.4 + 0.4 * (1 - rows)
    place = torch.rand(len(x), 2, 1, 1, 1, generator=g)
    glare = (-((rows - place[:, 0]).square() + (columns - place[:, 1]).square()) / 0.03).exp()
    smooth = F.avg_pool2d(torch.randn(len(x), 1, SIZE + 6, SIZE + 6, generator=g), 7, stride=1)
    clutter = x.clone()
    for image in clutter:
        for top, left in torch.randint(0, SIZE - 5, (3, 2), generator=g).tolist():
            image[:, top : top + 5, left : left + 5] = 0.9
    return {
        "clean": x,
        "fog": (1 - fog) * x + 0.7 * fog,
        "night": 0.3 * x.clamp(min=0).square() + 0.02 * torch.randn(x.shape, generator=g),
        "motion": F.avg_pool2d(F.pad(x, (3, 3, 0, 0), mode="replicate"), (1, 7), stride=1),
        "glare": (x + glare).clamp(max=1),
        "stripes": x + 0.15 * (40 * (rows + columns)).sin(),
        "inverted": 1 - x,
        "speckle": x * (1 + 0.4 * torch.randn(x.shape, generator=g)),
        "texture": x + 0.2 * smooth / smooth.std(),
        "three grays": (2 * x).round() / 2,
        "clutter": clutter,
    }


def trained(images: Tensor, poses: Tensor, seed: int) -> nn.Module:
    """A small convolutional network for these images."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 3)),
    )

    file = Path(tempfile.gettempdir()) / f"howsure_image_tasks_{seed}_{EPOCHS}.pt"
    if not file.is_file():
        steps = EPOCHS * (len(images) // 64)
        optimizer = torch.optim.AdamW(net.parameters(), RATE)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            some = torch.randint(len(images), (64,))
            optimizer.zero_grad()
            F.mse_loss(net(images[some]), poses[some]).backward()
            optimizer.step()
            falling.step()
        torch.save(net.state_dict(), file)
    net.load_state_dict(torch.load(file, weights_only=True))
    return net.eval().requires_grad_(requires_grad=False)


def gaussian(mean: Tensor, var: Tensor, y: Tensor) -> dict[str, float]:
    """NLL and coverage of 95 % intervals."""
    error = (mean - y).square()
    covered = (error <= 1.959964**2 * var).double().mean()
    return {"nll": float(0.5 * (var.log() + error / var).mean()), "coverage": float(covered)}


def scored(p: Any, y: Tensor) -> dict[str, float]:
    """The same of a prediction and of its own distribution, where it has one."""
    found = gaussian(p.mean.double(), p.total_var.double(), y.double())
    found["gaussian_nll"] = found["nll"]
    found["novelty"] = float(p.novelty.amax(1).median())
    if hasattr(p, "distribution"):  # Before version 0.3 all were Gaussian.
        found["nll"] = float(-p.distribution().log_prob(y).mean()) - 0.5 * math.log(2 * math.pi)
        low, high = p.interval(0.95)
        found["coverage"] = float(((low <= y) & (y <= high)).double().mean())
    return found


def judged(things: Tensor, seed: int) -> Scores:
    """One network, and its errors under every shift."""
    train, held_out, test = things[: sum(COUNTS.values())].split(list(COUNTS.values()))
    images, poses = posed(train.repeat(POSES, 1, 1, 1), seed)
    net = trained(images, poses, seed)
    x, y = posed(held_out, seed + 100)
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    sure, start = hs.Uncertain(net, hs.noise.std(NOISE_STD), "gradients"), time.process_time()
    fit = sure.fit(batches, train_inputs=images[: len(train)], show_progress=False)
    print(f"{time.process_time() - start:.0f} s\n{fit}\n", flush=True)
    constant = (net(x) - y).square().mean(0)
    scores: Scores = {"constant": {}, "oracle": {}, "posterior": {}}
    x_test, y_test = posed(test, seed + 200)
    for condition, each in shifts(x_test).items():
        predicted = net(each)
        own = (predicted - y_test).square().mean(0)
        for name, var in (("constant", constant), ("oracle", own)):
            scores[name][condition] = gaussian(predicted, var.expand_as(y_test), y_test)
        p = sure.predict(each.split(BATCH), show_progress=False)
        scores["posterior"][condition] = scored(p, y_test)
        print(condition, {n: s[condition] for n, s in scores.items()}, flush=True)
    return scores


TASKS: dict[str, Callable[[], Tensor]] = {"digits": digits, "clothes": clothes}


def table(found: dict[str, Any]) -> str:
    """NLL / coverage in percent, mean and spread over networks; shifted: mean over the shifts."""
    from bench import markdown

    columns = [(task, kind) for task in TASKS for kind in ("clean", "shifted")]
    parts = [(way, "scores", way) for way in ("constant", "oracle")]
    parts += [("0.2", "before", "posterior")] * ("before" in found)
    rows = []
    for name, part, way in [*parts, ("posterior", "scores", "posterior")]:
        networks = {task: [each[way] for each in found[part][task]] for task in TASKS}
        rows.append([name, *(_cell(networks[task], kind) for task, kind in columns)])
    return markdown(["", *map(", ".join, columns)], rows)


def _cell(networks: Sequence[dict[str, dict[str, float]]], kind: str) -> str:
    def over(measure: str) -> list[float]:
        return [
            mean(by[measure] for name, by in each.items() if (name == "clean") == (kind == "clean"))
            for each in networks
        ]

    nll, coverage = over("nll"), over("coverage")
    spread = f" ± {stdev(nll):.2f}" if len(nll) > 1 else ""
    return f"{mean(nll):.2f}{spread} / {100 * mean(coverage):.0f}"


def main() -> int:
    """Judges all networks and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scores", type=Path, help="write the scores alone, into this file")
    parser.add_argument("--before", type=Path, help="scores of version 0.2 on the same networks")
    asked = parser.parse_args()
    seeds = list(range(FIRST_SEED, FIRST_SEED + asked.seeds))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    scores = {
        task: [judged(things(), seed + 10 * k) for seed in seeds]
        for k, (task, things) in enumerate(TASKS.items())
    }
    if asked.scores is not None:
        asked.scores.write_text(json.dumps(scores))
        return 0
    # Another version of howsure has other rooms; its own run needs none of these.
    from bench import DOCS, RESULTS, into_page, write

    found = {"scores": scores}
    if asked.before is not None:
        found["before"] = json.loads(asked.before.read_text())
    write(RESULTS / "image_tasks.json", found, seeds)
    print(table(found))
    into_page(DOCS / "model.md", "image-tasks", table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
