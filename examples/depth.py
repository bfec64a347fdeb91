"""Depth at every pixel: where can it be trusted, and where is the image unlike all known ones?

A small U-Net has learned the depth of clear scenes. `fit` gives each of 3,072 pixels a std and a
novelty, from clear scenes alone. Then come fog and night, which nobody announced. Run from the
repository: `python examples/depth.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

import howsure as hs
from howsure.values.files import write_atomically
from howsure_lab.depth import NOISE_STD, pairs, trained

BATCH = 10
SHOWN = ("clear", "fog", "night")


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

    figure = Figure(figsize=(11, 5.6), dpi=100, layout="constrained")
    axes = figure.subplots(len(SHOWN), 5)
    for row, name in zip(axes, SHOWN, strict=True):
        x, y = pairs(6, 9000, name)
        p = sure(x)
        error = (p.mean - y).abs()
        covered = (error < 1.96 * p.std).double().mean()
        print(f"{name}: 95 % intervals cover {100 * covered:.0f} % of the pixels")
        columns = {
            "reading": (x.clamp(0, 1), {"cmap": "gray", "vmin": 0, "vmax": 1}),
            "depth, m": (p.mean.exp(), {"cmap": "viridis_r", "vmin": 0, "vmax": 60}),
            "error (log depth)": (error, {"cmap": "magma", "vmin": 0, "vmax": 1}),
            "predicted std": (p.std, {"cmap": "magma", "vmin": 0, "vmax": 1}),
            "novelty": (p.novelty, {"cmap": "cividis", "vmin": 0, "vmax": 10}),
        }
        for ax, (title, (values, how)) in zip(row, columns.items(), strict=True):
            drawn = ax.imshow(values[2, 0].numpy(), **how)
            ax.set(xticks=[], yticks=[], title=title if name == "clear" else "")
            if name == SHOWN[-1]:
                figure.colorbar(drawn, ax=axes[:, list(columns).index(title)], location="bottom")
        row[0].set_ylabel(f"{name}\n{100 * covered:.0f} % of pixels in\ntheir 95 % interval")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
