"""Classes at every pixel: how sure may a segmentation be in fog and at night?

A small U-Net has learned sky, ground and boxes on clear scenes. `fit` gives every image a
temperature that grows with its distance from known images, from clear scenes alone. Then come fog
and night, which nobody announced. Run from the repository: `python examples/segmentation.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import howsure as hs
from howsure.prediction import entropy
from howsure.values.files import write_atomically
from howsure_lab.depth import NOISE_STD, labelled, trained_classes

BATCH = 10
SHOWN = ("clear", "fog", "night")


def main() -> None:
    parser = argparse.ArgumentParser(description="Classes and entropy of every pixel.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_segmentation.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    net = trained_classes(steps=20 if options.quick else 150, count=300)
    x, y = labelled(60, 5000)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    sure = hs.Uncertain(net, hs.noise.std(NOISE_STD), task="classification", samples=20)
    print(sure.fit(held_out, train_inputs=labelled(100, 0)[0], show_progress=False))

    figure = Figure(figsize=(11, 5.6), dpi=100, layout="constrained")
    axes = figure.subplots(len(SHOWN), 5)
    for row, name in zip(axes, SHOWN, strict=True):
        x, y = labelled(6, 9000, name)
        p = sure(x)
        assert p.temperature is not None and p.joint_novelty is not None
        plain = net(x).softmax(1)
        wrong = (p.mean.argmax(1) != y).double()
        print(
            f"{name}: {100 * wrong.mean():.0f} % of the pixels are wrong; the network itself is "
            f"{100 * (1 - plain.amax(1).mean()):.0f} % unsure, at its temperature "
            f"{100 * (1 - p.mean.amax(1).mean()):.0f} %"
        )
        classes = {"cmap": "viridis", "vmin": 0, "vmax": 2}
        unsure = {"cmap": "magma", "vmin": 0, "vmax": 1.1}
        columns = {
            "reading": (x[:, 0].clamp(0, 1), {"cmap": "gray", "vmin": 0, "vmax": 1}),
            "predicted class": (p.mean.argmax(1), classes),
            "wrong": (wrong, {"cmap": "gray_r", "vmin": 0, "vmax": 1}),
            "entropy of the network": (entropy(plain, dim=1), unsure),
            "entropy after fit": (p.entropy, unsure),
        }
        for ax, (title, (values, how)) in zip(row, columns.items(), strict=True):
            drawn = ax.imshow(torch.as_tensor(values)[2].numpy(), **how)
            ax.set(xticks=[], yticks=[], title=title if name == "clear" else "")
        row[0].set_ylabel(f"{name}\nnovelty {p.joint_novelty[2]:.1f}\nT {p.temperature[2]:.2f}")
    figure.colorbar(drawn, ax=axes[:, 3:], location="right", shrink=0.6, label="nats")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
