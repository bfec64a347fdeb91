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
from bench import DOCS, RESULTS, fit_each, into_page, markdown, write
from shift import STUDENT, Scores, oracle, scored, table

import howsure as hs
from howsure_lab.depth import CONDITIONS, NOISE_STD, pairs, trained

SAMPLES, BATCH = 30, 10
POSTERIOR = "posterior, all layers"


def fitted(scenes: int, noise: Any) -> dict[str, hs.Uncertain]:
    """The network with each way of fitting, on clear scenes that it has not seen."""
    start = time.process_time()
    net = trained()
    print(f"training: {time.process_time() - start:.0f} s of processor time", flush=True)
    x, y = pairs(scenes, 5000)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    known = pairs(60, 0)[0].split(BATCH)

    def wrapped() -> hs.Uncertain:
        return hs.Uncertain(net, noise, samples=SAMPLES)

    ways = {POSTERIOR: {"train_inputs": known}}
    return {"sensor noise alone": wrapped(), **fit_each(wrapped, ways, held_out)}


@torch.no_grad()
def judged(sures: dict[str, hs.Uncertain], scenes: int) -> tuple[Scores, dict[str, Any]]:
    """All ways under all conditions, and the mean novelty of a pixel."""
    net = next(iter(sures.values())).model
    held_x, held_y = pairs(scenes, 5000)
    constant = (net(held_x) - held_y).square().mean()
    rows = ("sensor noise alone", "constant", POSTERIOR, STUDENT, "oracle")
    scores: Scores = {name: {} for name in rows}
    novelty: dict[str, Any] = {POSTERIOR: {}}
    for condition in CONDITIONS:
        x, y = pairs(scenes, 9000, condition)
        for name, sure in sures.items():
            p = sure.predict(x.split(BATCH), show_progress=False)
            scores[name][condition] = scored(p.mean, p.total_var.clamp(min=1e-12), y)
            if name == POSTERIOR:
                novelty[name][condition] = float(p.novelty.mean())
                scores[STUDENT][condition] = scored(p.mean, p.total_var, y, p.degrees_of_freedom)
        mean = net(x)
        scores["constant"][condition] = scored(mean, constant.expand_as(mean), y)
        scores["oracle"][condition] = oracle(mean, y)
        print(condition, {n: s[condition] for n, s in scores.items()}, flush=True)
    return scores, novelty


def table_of_novelty(novelty: dict[str, Any], scores: Scores) -> str:
    """Mean novelty of a pixel, and the rank correlation of std and error."""
    rows = []
    for name, by_condition in novelty.items():
        cells = [f"{by_condition[c]:.1f} / {scores[name][c]['rank']:.2f}" for c in CONDITIONS]
        rows.append([name, *cells])
    return markdown(["", *CONDITIONS], rows)


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
    write(RESULTS / "dense.json", {"scores": scores, "novelty": novelty})
    tables = {"dense": table([scores]), "dense-novelty": table_of_novelty(novelty, scores)}
    for name, content in tables.items():
        print(content)
        into_page(DOCS / "model.md", name, content)


if __name__ == "__main__":
    main()
