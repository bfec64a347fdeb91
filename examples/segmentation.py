"""Classes at every pixel: how sure may a segmentation be in fog and at night?

A small U-Net has learned sky, ground and boxes on clear scenes. `fit` gives every image a
temperature that grows with its distance from known images, from clear scenes alone. Then come fog
and night, which nobody announced. Run from the repository: `python examples/segmentation.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import howsure as hs
from howsure.prediction import entropy
from howsure_lab.depth import NOISE_STD, labeled, trained_classes
from howsure_lab.experiments.figures import GRAY, draw_maps

BATCH = 10
NATS = {"cmap": "magma", "vmin": 0, "vmax": 1.1}


def main() -> None:
    parser = argparse.ArgumentParser(description="Classes and entropy of every pixel.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_segmentation.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    net = trained_classes(steps=20 if options.quick else 150, count=300)
    x, y = labeled(60, 5000)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    sure = hs.Uncertain(net, hs.noise.std(NOISE_STD), task="classification", samples=20)
    print(sure.fit(held_out, train_inputs=labeled(100, 0)[0], show_progress=False))

    rows = {}
    for name in ("clear", "fog", "night"):
        x, y = labeled(6, 9000, name)
        p = sure(x)
        assert p.temperature is not None and p.joint_novelty is not None
        plain = net(x).softmax(1)
        wrong = (p.mean.argmax(1) != y).double()
        print(
            f"{name}: {100 * wrong.mean():.0f} % of the pixels are wrong; the network itself is "
            f"{100 * (1 - plain.amax(1).mean()):.0f} % unsure, at its temperature "
            f"{100 * (1 - p.mean.amax(1).mean()):.0f} %"
        )
        rows[f"{name}\nnovelty {p.joint_novelty[2]:.1f}\nT {p.temperature[2]:.2f}"] = {
            "reading": (x[2, 0].clamp(0, 1), GRAY),
            "predicted class": (p.mean.argmax(1)[2], {"cmap": "viridis", "vmin": 0, "vmax": 2}),
            "wrong": (wrong[2], {"cmap": "gray_r", "vmin": 0, "vmax": 1}),
            "entropy of the network": (entropy(plain, dim=1)[2], NATS),
            "entropy after fit": (p.entropy[2], NATS),
        }
    draw_maps(rows, options.out)
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
