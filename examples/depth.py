"""Depth at every pixel: where can it be trusted, and where is the image unlike all known ones?

A small U-Net has learned the depth of clear scenes. `fit` gives each of 3,072 pixels a std and a
novelty, from clear scenes alone. Then come fog and night, which nobody announced. Run from the
repository: `python examples/depth.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import howsure as hs
from howsure_lab.depth import NOISE_STD, pairs, trained
from howsure_lab.experiments.figures import GRAY, draw_maps

BATCH = 10
UNSURE = {"cmap": "magma", "vmin": 0, "vmax": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description="Depth, std and novelty of every pixel.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_depth.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training")
    options = parser.parse_args()

    net = trained(steps=20 if options.quick else 150, count=300)
    x, y = pairs(20, 5000)
    held_out = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    sure = hs.Uncertain(net, hs.noise.std(NOISE_STD), samples=20)
    print(sure.fit(held_out, train_inputs=pairs(30, 0)[0].split(BATCH), show_progress=False))

    rows = {}
    for name in ("clear", "fog", "night"):
        x, y = pairs(6, 9000, name)
        p = sure(x)
        error = (p.mean - y).abs()
        covered = 100 * (error < 1.96 * p.std).double().mean()
        print(f"{name}: 95 % intervals cover {covered:.0f} % of the pixels")
        rows[f"{name}\n{covered:.0f} % of pixels in\ntheir 95 % interval"] = {
            "reading": (x[2, 0].clamp(0, 1), GRAY),
            "depth, m": (p.mean[2, 0].exp(), {"cmap": "viridis_r", "vmin": 0, "vmax": 60}),
            "error (log depth)": (error[2, 0], UNSURE),
            "predicted std": (p.std[2, 0], UNSURE),
            "novelty": (p.novelty[2, 0], {"cmap": "cividis", "vmin": 0, "vmax": 10}),
        }
    draw_maps(rows, options.out)
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
