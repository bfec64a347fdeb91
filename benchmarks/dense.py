"""Depth at every pixel under shift that nobody announced: NLL and coverage of what `fit` finds.

    python benchmarks/dense.py [--scenes 20] [--before FILE]

writes benchmarks/results/dense.json and the tables of docs/model.md. NLL without 1/2 log 2 pi, of a
Gaussian unless a row says Student-t. FILE is what version 0.2 wrote on the same machine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from bench import into_page, record
from shift import STUDENT, Scores, oracle, scored, table

import howsure as hs
from howsure_lab.depth import CONDITIONS, NOISE_STD, pairs, trained
from howsure_lab.experiments.runs import write_json

RESULTS = Path(__file__).parent / "results" / "dense.json"
PAGE = Path(__file__).parents[1] / "docs" / "model.md"
SAMPLES, BATCH = 30, 10
POSTERIOR = "posterior, all layers"
WAYS: dict[str, dict[str, Any]] = {POSTERIOR: {}}


def fitted(scenes: int, noise: Any) -> dict[str, hs.Uncertain]:
    """The network with each way of fitting, on clear scenes that it has not seen."""
    start = time.process_time()
    net = trained()
    print(f"training: {time.process_time() - start:.0f} s of processor time", flush=True)
    x, y = pairs(scenes, 5000)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    known = pairs(60, 0)[0].split(BATCH)
    sures = {"sensor noise alone": hs.Uncertain(net, noise, samples=SAMPLES)}
    for name, options in WAYS.items():
        sures[name] = hs.Uncertain(net, noise, samples=SAMPLES)
        start = time.process_time()
        fit = sures[name].fit(held_out, train_inputs=known, show_progress=False, **options)
        print(f"{name}: {time.process_time() - start:.0f} s\n{fit}\n", flush=True)
    return sures


@torch.no_grad()
def judged(sures: dict[str, hs.Uncertain], scenes: int) -> tuple[Scores, dict[str, Any]]:
    """All ways under all conditions, and the mean novelty of a pixel."""
    net = next(iter(sures.values())).model
    held_x, held_y = pairs(scenes, 5000)
    constant = (net(held_x) - held_y).square().mean()
    rows = ("sensor noise alone", "constant", *WAYS, STUDENT, "oracle")
    scores: Scores = {name: {} for name in rows}
    novelty: dict[str, Any] = {name: {} for name in WAYS}
    for condition in CONDITIONS:
        x, y = pairs(scenes, 9000, condition)
        for name, sure in sures.items():
            p = sure.predict(x.split(BATCH), show_progress=False)
            scores[name][condition] = scored(p.mean, p.total_var.clamp(min=1e-12), y)
            if name in WAYS:
                novelty[name][condition] = float(p.novelty.mean())
            if name == POSTERIOR:
                scores[STUDENT][condition] = scored(p.mean, p.total_var, y, p.degrees_of_freedom)
        mean = net(x)
        scores["constant"][condition] = scored(mean, constant.expand_as(mean), y)
        scores["oracle"][condition] = oracle(mean, y)
        print(condition, {n: s[condition] for n, s in scores.items()}, flush=True)
    return scores, novelty


def table_of_novelty(novelty: dict[str, Any], scores: Scores) -> str:
    """Mean novelty of a pixel, and the rank correlation of std and error."""
    lines = ["| | " + " | ".join(CONDITIONS) + " |", "|---" * (len(CONDITIONS) + 1) + "|"]
    for name, by_condition in novelty.items():
        cells = [f"{by_condition[c]:.1f} / {scores[name][c]['rank']:.2f}" for c in CONDITIONS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs the study and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=40, help="held out, and of each condition")
    parser.add_argument("--before", type=Path, help="what version 0.2 wrote on this machine")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sures = fitted(asked.scenes, hs.noise.std(NOISE_STD))
    scores, novelty = judged(sures, asked.scenes)
    if asked.before is not None:
        scores["0.2"] = json.loads(asked.before.read_text())["scores"][POSTERIOR]
    write_json(RESULTS, {**record(), "scores": scores, "novelty": novelty})
    for name, content in (
        ("dense", table([scores])),
        ("dense-novelty", table_of_novelty(novelty, scores)),
    ):
        print(content)
        if f"<!-- {name}:begin -->" in PAGE.read_text():
            into_page(PAGE, name, content)


if __name__ == "__main__":
    main()
