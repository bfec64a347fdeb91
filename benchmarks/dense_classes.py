"""Classes at every pixel under shift that nobody announced: NLL and ECE of what `fit` finds.

    python benchmarks/dense_classes.py [--scenes 100] [--seeds 3]

writes benchmarks/results/dense_classes.json and a table of docs/model.md.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from bench import DOCS, RESULTS, fit_each, into_page, markdown, write
from shift_classes import auroc
from torch import Tensor
from torch.nn import functional as F

import howsure as hs
from howsure.metrics import ece
from howsure_lab.depth import CONDITIONS, labeled, trained_classes

BATCH = 10
PLAIN, BY_DISTANCE = "softmax", "temperature by distance"
Row = dict[str, float]


def fitted(net: torch.nn.Module, scenes: int, seed: int) -> dict[str, hs.Uncertain]:
    """The network with each way of fitting, on clear scenes that it has not seen."""
    x, y = labeled(scenes, 5000 + seed)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    known = labeled(300, seed)[0]
    ways: dict[str, dict[str, Any]] = {
        "constant temperature": {"model": None},
        BY_DISTANCE: {"train_inputs": known},
        "the same, cross-fitted": {},
        "the same, with stress": {"train_inputs": known, "stress": "images"},
    }
    return fit_each(lambda: hs.Uncertain(net, task="classification"), ways, held_out)


def scored(mean: Tensor, y: Tensor) -> Row:
    """Over all pixels."""
    rows, labels = mean.movedim(1, -1).flatten(0, 2), y.flatten()
    nll = float(F.nll_loss(rows.clamp(min=1e-12).log(), labels))
    right = float((rows.argmax(1) == labels).double().mean())
    return {"nll": nll, "ece": float(ece(rows, labels)), "accuracy": right}


def study(scenes: int, seed: int) -> dict[str, dict[str, Row]]:
    """All ways under all conditions, of one network."""
    net = trained_classes(seed=seed)
    sures = fitted(net, scenes, seed)
    scores: dict[str, dict[str, Row]] = {name: {} for name in (PLAIN, *sures)}
    clear: dict[str, Tensor | None] = {}  # the novelty of the first condition's images
    for condition in CONDITIONS:
        x, y = labeled(scenes, 9000 + seed, condition)
        with torch.no_grad():
            scores[PLAIN][condition] = scored(net(x).softmax(1), y)
            predictions = {
                name: sure.predict(x.split(BATCH), show_progress=False)
                for name, sure in sures.items()
            }
        for name, p in predictions.items():
            row = scores[name][condition] = scored(p.mean, y)
            known = clear.setdefault(name, p.joint_novelty)
            if known is not None and p.joint_novelty is not None:
                row["auroc"] = auroc(known, p.joint_novelty)
        print(condition, {name: row[condition] for name, row in scores.items()}, flush=True)
    return scores


def table(found: list[dict[str, dict[str, Row]]]) -> str:
    """NLL / ECE in percent, and the AUROC of the novelty against clear scenes; means over seeds."""

    def mean(name: str, condition: str, key: str) -> float:
        return statistics.fmean(each[name][condition][key] for each in found)

    rows = []
    for name in found[0]:
        both = ((mean(name, c, "nll"), 100 * mean(name, c, "ece")) for c in CONDITIONS)
        rows.append([name, *(f"{nll:.3f} / {off:.1f}" for nll, off in both)])
    areas = [f"{mean(BY_DISTANCE, c, 'auroc'):.3f}" for c in CONDITIONS]
    right = [f"{100 * mean(BY_DISTANCE, c, 'accuracy'):.1f} %" for c in CONDITIONS]
    rows.append(["AUROC of its novelty against clear scenes", *areas])
    rows.append(["accuracy of the network", *right])
    return markdown(["", *CONDITIONS], rows)


def main() -> None:
    """Runs the study and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=100, help="held out, and of each condition")
    parser.add_argument("--seeds", type=int, default=3, help="networks, each with its own scenes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [100_000 * (each + 1) for each in range(asked.seeds)]
    found = [study(asked.scenes, seed) for seed in seeds]
    write(RESULTS / "dense_classes.json", {"scores": found}, seeds)
    print(table(found))
    into_page(DOCS / "model.md", "dense-classes", table(found))


if __name__ == "__main__":
    main()
