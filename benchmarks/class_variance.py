"""Variances of class probabilities, ResNet-20 on CIFAR-10: by Monte Carlo, and by a second network.

    python benchmarks/class_variance.py --data DATA

Under sensor noise of 10 gray levels: how far probabilities and their std are from Monte Carlo, with
what was fitted on 400 noisy images, and their NLL. Without noise: the model variance, summed over
classes and averaged over images, beside half the squared difference of the probabilities of
ResNet-20 and ResNet-32, which is the variance of two networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from models.cifar_resnet import STD, load
from shift_classes import BATCH, TRAINED, auroc, corrupted, prepared, unknown
from torch import Tensor

import howsure as hs
from howsure_lab.experiments.recognition.data import read_cifar

GRAY_LEVELS, TUNED, TESTED, SAMPLES = 10, 400, 100, 300


def main() -> None:
    """Prints both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    folder = parser.parse_args().data
    torch.set_num_threads(1)
    data = read_cifar(folder / "cifar10")
    nets = [load(folder / "cifar10_resnets", depth) for depth in (20, 32)]
    order = torch.randperm(len(data.test_y), generator=torch.Generator().manual_seed(0))
    tuned, tested = order[:TUNED], order[TUNED : TUNED + TESTED]
    g = torch.Generator().manual_seed(1)
    std = (GRAY_LEVELS / 255 / torch.tensor(STD))[:, None, None].expand(3, 32, 32).contiguous()

    def read(rows: Tensor) -> Tensor:
        clean = prepared(data.test_x[rows] / 255)
        return clean + std * torch.randn(clean.shape, generator=g)

    known, x = read(tuned), read(tested)
    with torch.no_grad():
        draws = [nets[0](x + std * torch.randn(x.shape, generator=g)) for _ in range(SAMPLES)]
    logits = torch.stack(draws)
    for prediction in ("network", "mean"):
        sure = hs.Uncertain(
            nets[0], hs.noise.std(std), task="classification", prediction=prediction
        )
        before = sure(x)
        sure.fit([(known, data.test_y[tuned])], stress=None, show_progress=False)
        for name, p in (("before fit", before), ("after fit", sure(x))):
            t = 1.0 if p.temperature is None else p.temperature[:, None]
            truth = (logits / t).softmax(2)
            spread, varies = truth.std(0), truth.std(0) > 0.02
            print(
                f'prediction="{prediction}", {name}: distance of probabilities from Monte Carlo '
                f"{float((p.mean - truth.mean(0)).abs().sum(1).mean()):.3f}, ratio of the data std "
                f"{float((p.data_var.sqrt() / spread)[varies].log().mean().exp()):.2f}, NLL "
                f"{float(hs.metrics.categorical_nll(p.mean.double(), data.test_y[tested])):.3f}",
                flush=True,
            )
    sure = hs.Uncertain(nets[0], task="classification")
    held_out = [(prepared(data.test_x[tuned] / 255), data.test_y[tuned])]
    sure.fit(held_out, train_inputs=prepared(data.train_x[:TRAINED] / 255), show_progress=False)
    rows = order[1000:1500]
    images = corrupted(data.test_x[rows] / 255) | unknown(folder, data.test_x[order[-500:]] / 255)
    clean: Tensor | None = None
    for name, each in images.items():
        p = sure.predict(prepared(each).split(BATCH), show_progress=False)
        with torch.no_grad():
            one, two = (net(prepared(each)).softmax(1) for net in nets)
        clean = p.mutual_information if clean is None else clean
        print(
            f"{name}: model variance {float(p.model_var.sum(1).mean()):.3f}, two networks "
            f"{float(((one - two).square().sum(1) / 2).mean()):.3f}, AUROC of the mutual "
            f"information {auroc(clean, p.mutual_information):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
