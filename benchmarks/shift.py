"""Under shift that nobody announced: NLL and coverage of what `fit` finds, against its rivals.

    python benchmarks/shift.py roads [--seeds 3] [--scenes 100] [--before FILE]   (networks for it)
    python benchmarks/shift.py demo [--seeds 3] [--scenes 100]     (that of the demonstration)
    python benchmarks/shift.py drive --data DATA
    python benchmarks/shift.py uci --data DATA [--resume] [--peer-python PYTHON]
    python benchmarks/shift.py cifar --data DATA        (classes, ResNet-20: shift_classes.py)
    python benchmarks/shift.py cifar32 --data DATA      (ResNet-32)

writes benchmarks/results/shift.json or uci.json, and the tables of docs/model.md. NLL without
1/2 log 2 pi, of a Gaussian unless a row says otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shift_classes
import torch
import uci
from bench import DOCS, RESULTS, fit_each, into_page, markdown, record
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from howsure.student import central_reach, student_nll
from howsure_lab.demo.study import BATCH, CONDITIONS, Roads
from howsure_lab.experiments.runs import write_json
from howsure_lab.experiments.steering.data import Counts, rendered_data, split_drives
from howsure_lab.experiments.steering.model import SMALL, DroNet, load_trained, load_weights
from howsure_lab.experiments.steering.ship import NOISE_STD, SIZE
from howsure_lab.experiments.training import PlainRecipe, made, train_plain

PAGE = DOCS / "model.md"
# Seeds that were not used while the method was chosen.
FIRST_SEED = 7000
# The posterior's predictions, judged by the distribution that their intervals are made of.
STUDENT = "posterior, Student-t"
DROPOUT, CROSS_FITTED = "dropout + residual_var", "posterior, cross-fitted"
METHODS = ("constant", "oracle", DROPOUT, "posterior", STUDENT, CROSS_FITTED)
Scores = dict[str, dict[str, dict[str, float]]]  # by method and condition


def scored(mean: Tensor, var: Tensor, y: Tensor, nu: float = math.inf) -> dict[str, float]:
    """NLL, coverage of 95 % intervals, and rank correlation of std and absolute error."""
    error, var = (mean - y).double().square(), var.double()
    std = var.sqrt().flatten()
    is_constant = bool(std.max() == std.min())
    rank = 0.0 if is_constant else float(hs.metrics.rank_correlation(std, error.flatten()))
    return {
        "nll": float(student_nll(error, var, nu).mean()),
        "coverage": float((error <= central_reach(0.95, nu) ** 2 * var).double().mean()),
        "rank": rank,
    }


def oracle(mean: Tensor, y: Tensor) -> dict[str, float]:
    """A constant that knows the condition's own error."""
    return scored(mean, (mean - y).square().mean().expand_as(mean), y)


def fitted(
    net: nn.Module, noise: Any, held_out: Any, train: Any, only: Sequence[str] | None
) -> dict[str, hs.Uncertain]:
    """The same network with each way of fitting, or with those asked for."""
    ways: dict[str, dict[str, Any]] = {
        DROPOUT: {"model": "dropout", "fit_residual_var": True},
        "posterior": {"model": "posterior", "train_inputs": train},
        CROSS_FITTED: {"model": "posterior"},
    }
    chosen = {name: ways[name] for name in ways if only is None or name in only}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_each(lambda: hs.Uncertain(net, noise, "gradients"), chosen, held_out)


def judged(sures: dict[str, hs.Uncertain], tests: dict[str, Any], constant: float) -> Scores:
    """All methods under all conditions; a test is (inputs, targets, noise)."""
    scores: Scores = {name: {} for name in ("constant", "oracle", *sures)}
    if "posterior" in sures:
        scores[STUDENT] = {}
    for condition, (x, y, noise) in tests.items():
        for name, sure in sures.items():
            sure.setup = sure.setup.replace(noise=noise)
            with torch.no_grad():
                p = sure.predict(x.split(BATCH), show_progress=False)
            scores[name][condition] = scored(p.mean, p.total_var, y)
            if p.novelty is not None:
                scores[name][condition]["novelty"] = float(p.novelty.median())
            if name == "posterior":
                scores[STUDENT][condition] = scored(p.mean, p.total_var, y, p.degrees_of_freedom)
        scores["oracle"][condition] = oracle(p.mean, y)
        scores["constant"][condition] = scored(p.mean, torch.full_like(p.mean, constant), y)
        print(
            condition,
            {n: {k: round(v, 2) for k, v in s[condition].items()} for n, s in scores.items()},
            flush=True,
        )
    return scores


def roads(asked: argparse.Namespace) -> list[Scores]:
    """Networks trained on clear roads, or that of the demonstration, fitted on 200 more."""
    train = rendered_data(Counts(6000, 1, 1), SIZE, NOISE_STD**2).train
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
        net = load_trained() if asked.study == "demo" else made(lambda: DroNet(SIZE, SMALL), seed)
        if asked.study == "roads":
            train_plain(net, train, F.mse_loss, PlainRecipe(epochs=12), seed)
        scenes = Roads(asked.scenes, seed)
        held = Roads(100, seed).held_out()
        batches = list(zip(held.x.split(BATCH), held.y.split(BATCH), strict=True))
        sures = fitted(net, hs.noise.std(NOISE_STD), batches, train.x[:1500], asked.only)
        tests = {c.name: (*scenes.read(c), c.noise) for c in CONDITIONS}
        with torch.no_grad():
            constant = float((net(held.x) - held.y).square().mean())
        found.append(judged(sures, tests, constant))
    return found


def corrupted(x: Tensor) -> dict[str, Tensor]:
    """Frames under conditions of this benchmark's own making."""
    g = torch.Generator().manual_seed(5)
    fog = torch.linspace(0.85, 0.35, x.shape[-2])[:, None]
    dark = 0.35 * x
    wide = F.avg_pool2d(F.pad(x, (3, 3, 3, 3), mode="replicate"), 7, stride=1)
    occluded = x.clone()
    for image in occluded:
        top, left = (int(v) for v in torch.randint(0, 130, (2,), generator=g))
        image[:, top : top + 70, left : left + 70] = 0.1
    return {
        "clean": x,
        "dark": dark + 0.01 * torch.randn(x.shape, generator=g),
        "fog": (1 - fog) * x + 0.75 * fog,
        "blur": wide,
        "noise": x + 0.06 * torch.randn(x.shape, generator=g),
        "low contrast": 0.5 + 0.35 * (x - 0.5),
        "occlusion": occluded,
        "dusk": 0.25 * x**1.5 + 0.02 + 0.01 * torch.randn(x.shape, generator=g),
    }


def drive(asked: argparse.Namespace) -> list[Scores]:
    """The authors' DroNet on the real drive, fitted on alternate blocks of it."""
    data = Path(asked.data)
    split, net = split_drives(data / "udacity"), load_weights(data / "dronet" / "dronet_torch.pt")
    held, test = (frames[:: asked.step] for frames in (split.validation_frames, split.test_frames))
    step = max(1, sum(len(d) for d in split.train) // 1200)
    train = torch.cat([d.images(torch.arange(0, len(d), step)) for d in split.train])
    x, y = split.test.images(held), split.test.angles[held]
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    noise = hs.noise.gray_levels(2)
    sures = fitted(net, noise, batches, train, asked.only)
    x_test, y_test = split.test.images(test), split.test.angles[test]
    tests = {name: (each, y_test, noise) for name, each in corrupted(x_test).items()}
    with torch.no_grad():
        constant = float((net(x) - y).square().mean())
    return [judged(sures, tests, constant)]


def table(found: list[Scores]) -> str:
    """NLL / coverage in percent for every method and condition, mean and spread over seeds."""
    conditions = list(found[0]["constant"])

    def cell(method: str, condition: str) -> str:
        if condition not in found[0][method]:
            return "-"
        nll = torch.tensor([scores[method][condition]["nll"] for scores in found])
        cover = torch.tensor([100 * scores[method][condition]["coverage"] for scores in found])
        spread = f" ± {nll.std():.2f}" if len(found) > 1 else ""
        return f"{nll.mean():.2f}{spread} / {cover.mean():.0f}"

    rows = [(method, *(cell(method, each) for each in conditions)) for method in found[0]]
    return markdown(["", *conditions], rows)


def main() -> int:
    """Runs one study and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=("roads", "demo", "drive", "uci", "cifar", "cifar32"))
    parser.add_argument("--data")
    parser.add_argument("--resume", action="store_true", help="uci: go on with what was written")
    parser.add_argument("--ours", action="store_true", help="uci: only what `fit` finds, anew")
    parser.add_argument("--peer-python", help="uci: an interpreter that has laplace-torch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scenes", type=int, default=300)
    parser.add_argument("--only", nargs="+", help="ways of fitting; others stay as they were")
    parser.add_argument("--step", type=int, default=1, help="every how many-th frame")
    parser.add_argument("--before", type=Path, help="roads: what 0.2 wrote for the same networks")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.study == "uci":
        shown(asked.study, uci.table(uci.study(asked)))
        return 0
    is_cifar = asked.study.startswith("cifar")
    study = shift_classes.cifar if is_cifar else drive if asked.study == "drive" else roads
    found = study(asked)
    file = RESULTS / "shift.json"
    known = json.loads(file.read_text())
    first = FIRST_SEED if study is roads else 0
    if asked.only is not None:
        both = zip(known[asked.study]["scores"], found, strict=True)
        merged = [{**before, **now} for before, now in both]
        found = [{name: each[name] for name in METHODS if name in each} for each in merged]
    if asked.before is not None:
        before = json.loads(asked.before.read_text())[asked.study]["scores"]
        pairs = zip(found, before, strict=True)
        found = [{**now, "0.2": earlier["posterior"]} for now, earlier in pairs]
    known[asked.study] = {**record([first + k for k in range(len(found))]), "scores": found}
    if is_cifar:
        known[asked.study]["must_hold"] = shift_classes.must_hold(found)
        print(json.dumps(known[asked.study]["must_hold"], indent=1))
    write_json(file, known)
    shown(asked.study, shift_classes.table(found) if is_cifar else table(found))
    return 0


def shown(study: str, text: str) -> None:
    """Prints a table, and puts it into the page where that has a place for it."""
    print(text)
    if f"<!-- {study}:begin -->" in PAGE.read_text():
        into_page(PAGE, study, text)


if __name__ == "__main__":
    sys.exit(main())
