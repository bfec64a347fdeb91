"""Novelty of a classifier against post-hoc scores: `python benchmarks/posthoc.py --data DATA`.

Trained ResNets on CIFAR-10 and the nine unknown sets of `shift_classes.py`. Every score sees the
same network; those that need known inputs have the same 2,500 training images, Mahalanobis with
their labels, and howsure with the 1,000 held-out images of its fit besides. Short versions of the
published scores, with the settings of their papers:

- MSP, entropy, energy: of the logits (Hendrycks & Gimpel 2017; Liu et al. 2020).
- ASH-S, SCALE: energy after pruning to a tenth, or scaling alone, of the last activations
  (Djurisic et al. 2023; Xu et al. 2024: percentile 85).
- ViM: what the principal half of the features leaves, beside the energy (Wang et al. 2022).
- Mahalanobis: to the nearest class mean, one covariance (Lee et al. 2018).
- deep kNN: distance to the 10th neighbor among normalized features (Sun et al. 2022).

AUROC, and the share of the unknown that passes where 95 % of the known inputs do (FPR95). Writes
posthoc.json to `--out` and the table of docs/model.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from bench import DOCS, RESULTS, into_page, markdown, write
from models.trained import cifar_resnet
from shift_classes import (
    BATCH,
    TESTED,
    TRAINED,
    TUNED,
    UNKNOWN,
    auroc,
    prepared,
    unknown,
)
from torch import Tensor
from torch.nn import functional as F

import howsure as hs
from howsure_lab.experiments.recognition.data import read_cifar

NETWORKS = {"ResNet-20": 20, "ResNet-32": 32}
OURS = "howsure"
NEIGHBORS = 10
PRUNED, SCALED = 0.90, 0.85
Score = Callable[[Tensor], Tensor]


@torch.no_grad()
def activations(net: Any, x: Tensor) -> Tensor:
    """What enters the pool before the last layer, (n, 64, 8, 8)."""
    parts: list[Tensor] = []
    hook = net.layer3.register_forward_hook(lambda _, args, output: parts.append(output))
    for batch in x.split(BATCH):
        net(batch)
    hook.remove()
    return torch.cat(parts)


def features(maps: Tensor) -> Tensor:  # (n, 64)
    """The averages over the pixels, which the last layer sees."""
    return maps.mean((2, 3))


def shaped(maps: Tensor, share: float, *, prune: bool) -> Tensor:
    """Activations scaled by exp(all / largest), the sums; only the largest are kept if pruned."""
    flat = maps.flatten(1)
    limit = flat.quantile(share, 1, keepdim=True)
    kept = torch.where(flat >= limit, flat, 0.0)
    scale = (flat.sum(1, keepdim=True) / kept.sum(1, keepdim=True)).exp()
    return ((kept if prune else flat) * scale).reshape(maps.shape)


def scores(net: Any, train: Tensor, labels: Tensor) -> dict[str, Score]:
    """Every score as a function of the last activations; larger is less known."""
    with torch.no_grad():
        known = features(activations(net, train))

    def logits(maps: Tensor) -> Tensor:
        return net.linear(features(maps))

    def energy(maps: Tensor) -> Tensor:
        return -logits(maps).logsumexp(1)

    def entropy(maps: Tensor) -> Tensor:
        return torch.special.entr(logits(maps).softmax(1)).sum(1)

    means = torch.stack([known[labels == k].mean(0) for k in range(10)])
    within = known - means[labels]
    precision = torch.linalg.inv(within.T @ within / len(known) + 1e-6 * torch.eye(64))

    def mahalanobis(maps: Tensor) -> Tensor:
        away = features(maps)[:, None] - means
        return torch.einsum("nki,ij,nkj->nk", away, precision, away).amin(1)

    bank = F.normalize(known)

    def neighbors(maps: Tensor) -> Tensor:
        return torch.cdist(F.normalize(features(maps)), bank).kthvalue(NEIGHBORS, 1).values

    # Features about the point where all logits are 0.
    origin = -torch.linalg.pinv(net.linear.weight) @ net.linear.bias
    _, vectors = torch.linalg.eigh((known - origin).T @ (known - origin))
    minor = vectors[:, : known.shape[1] // 2]

    def residual(maps: Tensor) -> Tensor:
        return ((features(maps) - origin) @ minor).norm(dim=1)

    largest = net.linear(known).amax(1).mean()
    weight = largest / ((known - origin) @ minor).norm(dim=1).mean()
    return {
        "MSP": lambda maps: -logits(maps).softmax(1).amax(1),
        "entropy": entropy,
        "energy": energy,
        "ASH-S": lambda maps: energy(shaped(maps, PRUNED, prune=True)),
        "SCALE": lambda maps: energy(shaped(maps, SCALED, prune=False)),
        "ViM": lambda maps: weight * residual(maps) + energy(maps),
        "Mahalanobis, with labels": mahalanobis,
        "deep kNN": neighbors,
    }


def false_positives(clean: Tensor, strange: Tensor) -> float:
    """The share of the unknown that passes where 95 % of the known inputs do."""
    return float((strange <= clean.quantile(0.95)).double().mean())


def study(depth: int, folder: Path, seed: int) -> dict[str, dict[str, list[float]]]:
    """AUROC and FPR95 by score and unknown set."""
    net, data = cifar_resnet(folder / "cifar10_resnets", depth), read_cifar(folder / "cifar10")
    order = torch.randperm(len(data.test_y), generator=torch.Generator().manual_seed(seed))
    tuned, tested = order[:TUNED], order[TUNED : TUNED + TESTED]
    train = prepared(data.train_x[:TRAINED] / 255)
    held_out = prepared(data.test_x[tuned] / 255)
    sure = hs.Uncertain(net, task="classification")
    sure.fit((held_out, data.test_y[tuned]), train_inputs=train, show_progress=False)

    def novelty(x: Tensor) -> Tensor:
        score = sure.predict(x.split(BATCH), show_progress=False).novelty
        assert score is not None
        return score

    rivals = scores(net, train, data.train_y[:TRAINED])
    clean = prepared(data.test_x[tested] / 255)
    sets = unknown(folder, data.test_x[order[-UNKNOWN:]] / 255)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in (*rivals, OURS)}
    with torch.no_grad():
        maps, own = activations(net, clean), novelty(clean)
        for condition, images in sets.items():
            strange = prepared(images)
            strange_maps = activations(net, strange)
            pairs = {name: (score(maps), score(strange_maps)) for name, score in rivals.items()}
            pairs[OURS] = own, novelty(strange)
            for name, pair in pairs.items():
                found[name][condition] = [auroc(*pair), false_positives(*pair)]
    return found


def table(cases: dict[str, Any]) -> str:
    """Mean AUROC and FPR95 in percent, and the AUROC on scenes; averages over splits."""
    rows = []
    for score in next(iter(cases.values()))[0]:
        cells = [f"**{score}**" if score == OURS else score]
        for splits in cases.values():
            sets = [split[score] for split in splits]
            area, rate = (
                fmean(fmean(pair[k] for pair in each.values()) for each in sets) for k in (0, 1)
            )
            scenes = fmean(each["scenes"][0] for each in sets)
            cells += [f"{100 * area:.1f} / {100 * rate:.0f}", f"{100 * scenes:.1f}"]
        rows.append(cells)
    header = [part for name in cases for part in (f"{name}, mean AUROC / FPR95", "scenes")]
    return markdown(["", *header], rows)


def main() -> None:
    """Parses the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = list(range(asked.seeds))
    cases = {
        name: [study(depth, asked.data, seed) for seed in seeds] for name, depth in NETWORKS.items()
    }
    write(asked.out / "posthoc.json", {"cases": cases}, seeds)
    print(table(cases))
    if asked.out == RESULTS:
        into_page(DOCS / "model.md", "posthoc", table(cases))


if __name__ == "__main__":
    main()
