"""An operation that howsure does not know, and a rule for it in one line.

A radar sees what is near and misses what is far, by a normal distribution function. For
`torch.special.ndtr` there is no rule, so `propagate` refuses it and says so. One line adds a rule,
the laws that hold for all rules check it, and the picture compares it with sampling and with what a
first-order answer would have been.

Run from the repository: `python examples/gallery/custom_rule.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import howsure as hs
from howsure.files import write_atomically
from howsure.moments.families import elementwise
from howsure.moments.rule import unregister
from howsure.moments.value import Moments
from howsure.testing import check_rule

NOISE_STD = 0.3  # of the distance, km


def detection(distance: Tensor) -> Tensor:
    """The probability that the radar sees a target at a distance in km."""
    return torch.special.ndtr((2 - distance) / 0.25)


def with_rule(distance: Tensor) -> Moments:
    """The moments with a rule of our own, which is checked first."""
    ndtr = elementwise(torch.special.ndtr, name="ndtr")
    try:
        check_rule(ndtr)  # the laws of howsure's own rules: oracle, limits, gradients, ...
        return hs.propagate(detection, distance, NOISE_STD**2)
    finally:
        unregister(ndtr)  # yours may stay; this one leaves the table as it was


def main() -> None:
    parser = argparse.ArgumentParser(description="A rule of your own.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_custom_rule.png"))
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    options = parser.parse_args()

    distance = torch.linspace(0.8, 3.2, 301)
    try:
        hs.propagate(detection, distance, NOISE_STD**2)
    except hs.NoRuleError as error:
        print(f"Without a rule: {error}\n")
    generator, copies = torch.Generator().manual_seed(0), 500 if options.quick else 20_000
    sampled = detection(distance + NOISE_STD * torch.randn(copies, 301, generator=generator))
    linear = hs.propagate(detection, distance, NOISE_STD**2, fallback="linearize")
    ours = with_rule(distance)
    lines = {
        f"{copies} samples": (sampled.mean(0), sampled.std(0), "0.7", "-", 5),
        "first order (fallback)": (linear.mean, linear.var.sqrt(), "#D55E00", ":", 1.8),
        "own rule": (ours.mean, ours.var.sqrt(), "#0072B2", "--", 1.8),
    }
    figure = Figure(figsize=(10, 3.9), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (mean, std, color, line, width) in lines.items():
        style = {"color": color, "linestyle": line, "linewidth": width, "label": name}
        left.plot(distance, mean, **style)
        right.plot(distance, std, **style)
    left.set(title="probability of detection: mean under noise", xlabel="distance, km")
    right.set(title="its std", xlabel="distance, km", ylim=(0, None))
    left.legend(frameon=False)
    off = float((ours.var.sqrt() - sampled.std(0)).abs().max())
    print(f"Own rule: its std is within {off:.4f} of {copies} samples everywhere.")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
