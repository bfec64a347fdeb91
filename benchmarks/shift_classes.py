"""Classes under unseen shifts: ResNets on CIFAR-10, for `shift.py cifar` and `cifar32`.

The form of the temperature was the best of 24 variants on 1,500 test images, clean and under
`stress="images"`. Which layers count and from where it grows were chosen later, with a second
network, on images that are in no split here and corruptions that are neither here nor in `stress`.
Those here were made before any result was seen, and have not changed.
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from bench import fit_each, markdown
from models.trained import cifar_resnet
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from howsure_lab.demo.study import Roads
from howsure_lab.digits.data import load_digits
from howsure_lab.experiments.recognition.data import Cifar, normalized, read_cifar

# Training images without labels; held-out images that tune, test images, and images of unknown
# things, in each split.
TRAINED, TUNED, TESTED, UNKNOWN = 2500, 1000, 1000, 500
BATCH = 250
CLEAN = "clean"
SOFTMAX, CONSTANT, OURS = "softmax", "temperature", "by distance"
# Videos of DAVIS that show no class of CIFAR-10; four others show a swan, a horse or cars.
VIDEOS = "camel", "cows", "dance-twirl", "kite-surf", "paragliding-launch", "scooter-black"
# What has to hold: NLL on clean images beside that of a constant temperature, the ratio of both on
# corrupted ones, calibration error, and AUROC of the novelty of unknown things.
MOST_CLEAN, MOST_RATIO, MOST_ECE, LEAST_AUROC = 0.01, 1.65 / 1.84, 0.15, 0.98
LEAST_MEAN_AUROC, LEAST_SCENES = 0.965, 0.90
Scores = dict[str, dict[str, dict[str, float]]]  # by method and condition


def corrupted(x: Tensor) -> dict[str, Tensor]:
    """Images with values between 0 and 1 under conditions that `stress` has not."""
    g = torch.Generator().manual_seed(11)
    field = F.interpolate(torch.rand(len(x), 1, 4, 4, generator=g), size=32, mode="bicubic")
    rows = 0.15 * torch.randn(len(x), 1, 32, 1, generator=g)
    found = {
        CLEAN: x,
        "fog": 0.35 * x + 0.65 * (0.6 + 0.4 * field),
        "motion": F.avg_pool2d(F.pad(x, (4, 4, 0, 0), mode="replicate"), (1, 9), stride=1),
        "rotated": rotated(x, math.radians(30)),
        "hue": x.roll(1, 1),
        "JPEG": compressed(x, 1.0),
        "gamma": x**3,
        "rows": x + rows,
        "zoom": F.interpolate(x[..., 7:25, 7:25], size=32, mode="bilinear"),
    }
    return {name: each.clamp(0, 1) for name, each in found.items()}


def rotated(x: Tensor, angle: float) -> Tensor:
    """The images turned about their center."""
    turn = [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    grid = F.affine_grid(torch.tensor(turn).expand(len(x), 2, 3), list(x.shape), False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def compressed(x: Tensor, step: float) -> Tensor:
    """The cosines of 8 x 8 blocks rounded, the finer the more, as by a strong JPEG."""
    k = torch.arange(8.0)
    cosines = torch.cos(math.pi / 8 * (k + 0.5) * k[:, None]) * math.sqrt(2 / 8)
    cosines[0] /= math.sqrt(2)
    steps = step * (0.1 + 0.1 * (k[:, None] + k))
    blocks = x.unfold(2, 8, 8).unfold(3, 8, 8)  # (n, c, 4, 4, 8, 8)
    found = cosines @ blocks @ cosines.T
    back = cosines.T @ ((found / steps).round() * steps) @ cosines
    return back.permute(0, 1, 2, 4, 3, 5).reshape(x.shape)


def unknown(folder: Path, images: Tensor) -> dict[str, Tensor]:
    """Nine sets of things that are no class of CIFAR-10, values between 0 and 1.

    Scenes and crops are frames of DAVIS, whole and at their own resolution; `images` are those of
    CIFAR, whose pixels are permuted.
    """
    g = torch.Generator().manual_seed(12)
    digits = F.interpolate(load_digits().images[:UNKNOWN], size=32, mode="bilinear")
    coarse = torch.rand(UNKNOWN, 3, 4, 4, generator=g)
    davis = folder / "davis2016" / "JPEGImages" / "240p"
    frames = sorted(path for name in VIDEOS for path in (davis / name).glob("*.jpg"))
    video = torch.stack([picture(path) for path in spread(frames, UNKNOWN)])
    roads = sorted((folder / "udacity" / "test_ch2_001" / "center").glob("*.jpg"))
    drive = torch.stack([picture(path) for path in spread(roads, UNKNOWN)])
    scenes = video[..., (video.shape[-1] - 240) // 2 :][..., :240]
    found = {
        "digits": digits.expand(-1, 3, -1, -1),
        "noise": torch.rand(UNKNOWN, 3, 32, 32, generator=g),
        "smooth noise": F.interpolate(coarse, size=32, mode="bicubic"),
        "permuted pixels": images.flatten(2)[..., torch.randperm(1024, generator=g)].view_as(
            images
        ),
        "textures": gratings(g),
        "scenes": F.interpolate(scenes, 32, mode="bilinear", antialias=True),
        "crops": cropped(video, g),
        "roads": F.interpolate(drive, 32, mode="bilinear", antialias=True),
        "rendered roads": Roads(UNKNOWN, 5).clean().x[..., ::2, ::2].expand(-1, 3, -1, -1),
    }
    return {name: each.clamp(0, 1) for name, each in found.items()}


def picture(path: Path) -> Tensor:  # (3, height, width)
    """A picture with values between 0 and 1."""
    from PIL import Image

    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) / 255


def spread(paths: list[Path], count: int) -> list[Path]:
    """So many of them, spread evenly."""
    return [paths[number * len(paths) // count] for number in range(count)]


def gratings(g: torch.Generator) -> Tensor:
    """Three waves of any direction and color, one over the other."""
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    wave = 0.2 + 1.2 * torch.rand(UNKNOWN, 3, 1, 1, generator=g)
    angle, phase = 2 * math.pi * torch.rand(2, UNKNOWN, 3, 1, 1, generator=g)
    waves = torch.sin(wave * (x * angle.cos() + y * angle.sin()) + phase)
    colors = torch.rand(UNKNOWN, 3, 3, generator=g) - 0.5
    return 0.5 + torch.einsum("nwhv,nwc->nchv", waves, colors)


def cropped(images: Tensor, g: torch.Generator) -> Tensor:
    """A piece of 32 x 32 pixels of every image."""
    rows, columns = (
        torch.randint(side - 32, (len(images),), generator=g) for side in images.shape[2:]
    )
    return torch.stack(
        [each[:, r : r + 32, c : c + 32] for each, r, c in zip(images, rows, columns, strict=True)]
    )


def prepared(x: Tensor) -> Tensor:
    """Values between 0 and 1 as the network wants them."""
    return normalized(255 * x)


def fitted(net: nn.Module, held_out: Any, train: Tensor) -> dict[str, hs.Uncertain]:
    """The same network with each way of fitting."""
    ways: dict[str, dict[str, Any]] = {
        CONSTANT: {"model": None},
        OURS: {"train_inputs": train},
        "by distance, cross-fitted": {},
        "by distance, usual growth": {"train_inputs": train, "stress": None},
    }
    return fit_each(lambda: hs.Uncertain(net, task="classification"), ways, held_out)


@torch.no_grad()
def predicted(sures: dict[str, hs.Uncertain], x: Tensor) -> dict[str, Any]:
    """Probabilities, entropies and novelties by every method; "softmax" is the plain network."""
    found: dict[str, Any] = {}
    for name, sure in sures.items():
        p = sure.predict(x.split(BATCH), show_progress=False)
        if name == CONSTANT:
            plain = (p.logits.mean * p.temperature[:, None]).softmax(1)
            found[SOFTMAX] = (plain, torch.special.entr(plain).sum(1), None)
        found[name] = (p.mean, p.entropy, p.novelty)
    return found


def split_scores(net: nn.Module, data: Cifar, folder: Path, seed: int) -> Scores:
    """All methods under all conditions for one split of the test images."""
    order = torch.randperm(len(data.test_y), generator=torch.Generator().manual_seed(seed))
    tuned, tested = order[:TUNED], order[TUNED : TUNED + TESTED]
    x = prepared(data.test_x[tuned] / 255)
    held_out = list(zip(x.split(BATCH), data.test_y[tuned].split(BATCH), strict=True))
    sures = fitted(net, held_out, prepared(data.train_x[:TRAINED] / 255))
    scores: Scores = {name: {} for name in (SOFTMAX, *sures)}
    bad = corrupted(data.test_x[tested] / 255)
    strange = unknown(folder, data.test_x[order[-UNKNOWN:]] / 255)
    clean: dict[str, Any] = {}
    for condition, images in {**bad, **strange}.items():
        found = predicted(sures, prepared(images))
        clean = clean or found
        for name, (p, entropy, novelty) in found.items():
            if condition in bad:
                own = scored(p, data.test_y[tested])
            else:
                own = {"auroc_entropy": auroc(clean[name][1], entropy)}
                if novelty is not None:
                    own["auroc_novelty"] = auroc(clean[name][2], novelty)
            scores[name][condition] = own
            print(condition, name, {key: round(value, 3) for key, value in own.items()}, flush=True)
    return scores


def scored(p: Tensor, y: Tensor) -> dict[str, float]:
    """NLL, calibration error and accuracy of class probabilities."""
    return {
        "nll": float(hs.metrics.categorical_nll(p.double(), y)),
        "ece": float(hs.metrics.ece(p, y)),
        "accuracy": float((p.argmax(1) == y).double().mean()),
    }


def auroc(known: Tensor, strange: Tensor) -> float:
    """The probability that something unknown has the larger score."""
    both = torch.cat([known, strange]).double()
    is_strange = torch.arange(len(both)) >= len(known)
    return float(hs.metrics.auroc(both, is_strange))


def cifar(asked: argparse.Namespace) -> list[Scores]:
    """A ResNet, fitted on a part of the test images: as many splits as there are seeds."""
    folder, depth = Path(asked.data), 32 if asked.study == "cifar32" else 20
    net, data = cifar_resnet(folder / "cifar10_resnets", depth), read_cifar(folder / "cifar10")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [split_scores(net, data, folder, seed) for seed in range(asked.seeds)]


def summary(found: list[Scores], method: str) -> dict[str, float]:
    """Means over splits: clean NLL, and NLL, ECE and accuracy over all corruptions; AUROC."""
    own = [scores[method] for scores in found]
    bad = [each for s in own for name, each in s.items() if "nll" in each and name != CLEAN]
    clean = [s[CLEAN] for s in own]
    numbers = {key: fmean([each[key] for each in bad]) for key in ("nll", "ece", "accuracy")}
    numbers |= {"clean_nll": fmean([each["nll"] for each in clean])}
    numbers |= {"clean_ece": fmean([each["ece"] for each in clean])}
    for key in ("auroc_entropy", "auroc_novelty"):
        unknown = {n: [scores[n][key] for scores in own] for n in own[0] if key in own[0][n]}
        if unknown:
            numbers |= {f"{key}, {name}": fmean(each) for name, each in unknown.items()}
            numbers[f"{key}, mean"] = fmean([fmean(each) for each in unknown.values()])
    return numbers


def must_hold(found: list[Scores]) -> dict[str, Any]:
    """What has to hold for the default, what was found, and whether it does."""
    ours, constant = summary(found, OURS), summary(found, CONSTANT)
    asked = {
        "clean NLL above a constant temperature": (
            ours["clean_nll"] - constant["clean_nll"],
            MOST_CLEAN,
        ),
        "NLL on corruptions, ratio": (ours["nll"] / constant["nll"], MOST_RATIO),
        "ECE on corruptions": (ours["ece"], MOST_ECE),
        "1 - AUROC of digits": (1 - ours["auroc_novelty, digits"], 1 - LEAST_AUROC),
        "1 - AUROC of noise": (1 - ours["auroc_novelty, noise"], 1 - LEAST_AUROC),
        "1 - mean AUROC": (1 - ours["auroc_novelty, mean"], 1 - LEAST_MEAN_AUROC),
        "1 - AUROC of scenes": (1 - ours["auroc_novelty, scenes"], 1 - LEAST_SCENES),
    }
    return {
        name: {"found": value, "most": most, "holds": value <= most}
        for name, (value, most) in asked.items()
    }


def table(found: list[Scores]) -> str:
    """Likelihood and calibration of every method, then AUROC by unknown set; means over splits."""
    header = ("", "clean NLL / ECE %", "corrupted NLL / ECE %", "mean AUROC")
    rows = []
    for method in found[0]:
        numbers = summary(found, method)
        clean = f"{numbers['clean_nll']:.3f} / {100 * numbers['clean_ece']:.1f}"
        corrupted = f"{numbers['nll']:.2f} / {100 * numbers['ece']:.1f}"
        rows.append((method, clean, corrupted, _by_both(numbers, "mean")))
    sets = [name for name, each in found[0][OURS].items() if "auroc_novelty" in each]
    numbers = summary(found, OURS)
    by_set = ["entropy / novelty", *(_by_both(numbers, name) for name in sets)]
    return f"{markdown(header, rows)}\n\n{markdown([f'AUROC, {OURS}', *sets], [by_set])}"


def _by_both(numbers: dict[str, float], name: str) -> str:
    """The AUROC by entropy, and by novelty where there is one."""
    keys = [f"auroc_{kind}, {name}" for kind in ("entropy", "novelty")]
    return " / ".join(f"{numbers[key]:.3f}" for key in keys if key in numbers)
