"""Which part of the road makes the network unsure? A heat map under every steering angle.

The small network that ships with howsure steers by camera on rendered roads. For each road the
network's own gradients tell which pixels the variance of the angle comes from.

Run from the repository: `python examples/gallery/steering.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

import howsure as hs
from howsure.files import write_atomically
from howsure_lab.experiments.steering.model import load_trained
from howsure_lab.experiments.steering.scenes import draw_scenes, render, steering
from howsure_lab.experiments.steering.ship import NOISE_STD

SEED = 4242  # roads that are in no part of the experiments
KINDS = {"clear": "clear", "night": "night", "fog": "fog", "no lane": "missing_lane"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Which pixels the variance comes from.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_steering.png"))
    parser.add_argument("--quick", action="store_true", help="fewer held-out roads and rates")
    options = parser.parse_args()

    model, noise = load_trained().requires_grad_(False), hs.noise.std(NOISE_STD)
    generator = torch.Generator().manual_seed(0)
    held_out = draw_scenes(20 if options.quick else 100, SEED)
    readings = noise.sample(render(held_out), generator)
    sure = hs.Uncertain(model, noise, prediction="network")
    batches = list(zip(readings.split(20), steering(held_out).split(20), strict=True))
    rates = (0.0, 0.001, 0.01, 0.1) if options.quick else None  # of dropout
    sure.fit(batches, model="dropout", rates=rates, show_progress=False)

    figure = Figure(figsize=(11, 6.3), dpi=100, layout="constrained")
    axes = figure.subplots(2, len(KINDS))
    for (above, below), (name, kind) in zip(axes.T, KINDS.items(), strict=True):
        scene = draw_scenes(1, SEED + 1, kind)
        image = noise.sample(render(scene), generator)
        p = sure(image)
        patches = 16 * F.avg_pool2d(p.budget().heatmap()[0], 4)  # sums of 4 x 4 pixels
        angle, std, true = (float(t) for t in (p.mean, p.std, steering(scene)))
        camera = 100 * float(p.data_var / p.total_var)
        above.imshow(image[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
        above.set_title(f"{name}\n{angle:+.2f} ± {std:.2f}, driver {true:+.2f}", fontsize=11)
        below.imshow(patches[0, 0].sqrt().numpy(), cmap="Blues", vmin=0)
        below.set_title(f"{camera:.0f} % of the variance is the camera's", fontsize=10)
        print(f"{name:8} {angle:+.3f} ± {std:.3f}, driver {true:+.3f}, camera {camera:.0f} %")
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    figure.supxlabel("below: where the camera's part comes from, darker is more", fontsize=10)
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
