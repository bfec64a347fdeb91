"""Classes at every pixel under shift that nobody announced: NLL and ECE of what `fit` finds.

    python benchmarks/dense_classes.py [--scenes 100] [--seeds 3]

writes benchmarks/results/dense_classes.json and a table of docs/model.md.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from bench import into_page, record
from torch import Tensor
from torch.nn import functional as F

import howsure as hs
from howsure.metrics import auroc, ece
from howsure_lab.depth import CONDITIONS, labeled, trained_classes
from howsure_lab.experiments.runs import write_json

RESULTS = Path(__file__).parent / "results" / "dense_classes.json"
PAGE = Path(__file__).parents[1] / "docs" / "model.md"
BATCH = 10
WAYS: dict[str, dict[str, Any] | None] = {
    "softmax": None,
    "constant temperature": {"model": None},
    "temperature by distance": {"train_inputs": True},
    "the same, cross-fitted": {},
    "the same, with stress": {"train_inputs": True, "stress": "images"},
}
Row = dict[str, float]


def fitted(net: torch.nn.Module, scenes: int, seed: int) -> dict[str, hs.Uncertain]:
    """The network with each way of fitting, on clear scenes that it has not seen."""
    x, y = labeled(scenes, 5000 + seed)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    known = labeled(300, seed)[0]
    sures = {}
    for name, options in WAYS.items():
        sures[name] = sure = hs.Uncertain(net, method="noise_sampling", task="classification")
        if options is None:
            continue
        sure.method = "auto"
        given = {"train_inputs": known} if options.get("train_inputs") else {}
        print(f"{name}: {sure.fit(held_out, show_progress=False, **{**options, **given})}\n")
    return sures


@torch.no_grad()
def judged(sure: hs.Uncertain, x: Tensor, y: Tensor) -> tuple[Row, Tensor | None]:
    """Scores over all pixels, and the novelty of the images."""
    if sure.method != "auto":
        mean, novelty = sure.model(x).softmax(1), None
    else:
        p = sure.predict(x.split(BATCH), show_progress=False)
        mean, novelty = p.mean, p.joint_novelty
    rows, labels = mean.movedim(1, -1).flatten(0, 2), y.flatten()
    nll = float(F.nll_loss(rows.clamp(min=1e-12).log(), labels))
    right = float((rows.argmax(1) == labels).double().mean())
    return {"nll": nll, "ece": float(ece(rows, labels)), "accuracy": right}, novelty


def study(scenes: int, seed: int) -> dict[str, dict[str, Row]]:
    """All ways under all conditions, of one network."""
    sures = fitted(trained_classes(seed=seed), scenes, seed)
    scores: dict[str, dict[str, Row]] = {name: {} for name in WAYS}
    known: dict[str, Tensor | None] = {}
    for condition in CONDITIONS:
        x, y = labeled(scenes, 9000 + seed, condition)
        for name, sure in sures.items():
            row, novelty = judged(sure, x, y)
            known.setdefault(name, novelty)
            clear = known[name]
            if novelty is not None and clear is not None:
                is_new = torch.cat([torch.ones(len(novelty)), torch.zeros(len(clear))]).bool()
                row["auroc"] = float(auroc(torch.cat([novelty, clear]), is_new))
            scores[name][condition] = row
        print(condition, {name: row[condition] for name, row in scores.items()}, flush=True)
    return scores


def table(found: list[dict[str, dict[str, Row]]]) -> str:
    """NLL / ECE in percent, and the AUROC of the novelty against clear scenes; means over seeds."""
    lines = ["| | " + " | ".join(CONDITIONS) + " |", "|---" * (len(CONDITIONS) + 1) + "|"]

    def mean(name: str, condition: str, key: str) -> float:
        return statistics.fmean(each[name][condition][key] for each in found)

    for name in WAYS:
        cells = [
            f"{mean(name, c, 'nll'):.3f} / {100 * mean(name, c, 'ece'):.1f}" for c in CONDITIONS
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    shown = "temperature by distance"
    cells = [f"{mean(shown, c, 'auroc'):.3f}" for c in CONDITIONS]
    lines.append("| AUROC of its novelty against clear scenes | " + " | ".join(cells) + " |")
    right = [f"{100 * mean(shown, c, 'accuracy'):.1f} %" for c in CONDITIONS]
    lines.append("| accuracy of the network | " + " | ".join(right) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs the study and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=100, help="held out, and of each condition")
    parser.add_argument("--seeds", type=int, default=3, help="networks, each with its own scenes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [100_000 * (each + 1) for each in range(asked.seeds)]
    found = [study(asked.scenes, seed) for seed in seeds]
    write_json(RESULTS, {**record(seeds), "scores": found})
    print(table(found))
    into_page(PAGE, "dense-classes", table(found))


if __name__ == "__main__":
    main()
