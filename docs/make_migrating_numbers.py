"""Writes the tables of docs/migrating.md: released formulas, howsure and Monte Carlo, side by side.

Run from the repository: `.venv/bin/python docs/make_migrating_numbers.py`. It measures on the
network and the held-out digits of `howsure_lab.digits`; nothing is downloaded. Takes a few seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import howsure as hs
from howsure.moments.rule import Rule, Target
from howsure_lab.digits.data import held_out_digits
from howsure_lab.digits.model import DigitNet, load_trained
from howsure_lab.digits.monte_carlo import Network, sampled_moments, with_probabilities
from howsure_lab.released import released_rules

PAGE = Path(__file__).parent / "migrating.md"
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
NOISE_STDS = (0.001, 0.01, 0.05, 0.1, 0.2)
DIGITS, COPIES, MIN_VARIANCE = 60, 200, 1e-3


class Spread(NamedTuple):
    """Standard deviations of logits and of probabilities, (digits, 10) each."""

    logits: Tensor
    probabilities: Tensor


def main() -> None:
    """Replaces what is between the markers of the page."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    part = PAGE.with_suffix(".part")
    part.write_text(f"{head}{BEGIN}\n\n{tables()}\n\n{END}{tail}")
    part.replace(PAGE)
    print(f"Wrote the tables of {PAGE.name}.")


def between_markers(page: str) -> str:
    """The part of the page that this script writes."""
    return page.split(BEGIN, 1)[1].split(END, 1)[0]


@torch.no_grad()
def tables() -> str:
    """Both tables, in Markdown."""
    model, images = load_trained(), held_out_digits(DIGITS).images
    return levels_table(model, images) + "\n\n" + defects_table(model, images)


def levels_table(model: DigitNet, images: Tensor) -> str:
    """Mean std of a logit against the sensor's noise."""
    lines = [
        "| noise std | true | released | ratio (rank) | `adf` | ratio (rank) | `linear` | "
        "ratio (rank) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for noise_std in NOISE_STDS:
        truth = monte_carlo(model, images, noise_std).logits
        found = (
            propagated(model, images, noise_std, released_rules(MIN_VARIANCE)).logits,
            propagated(model, images, noise_std, None).logits,
            hs.Uncertain(model, noise_std**2, "linear")(images).std,
        )
        cells = [f"{_mean(each)} | {_compared(each, truth)}" for each in found]
        lines.append(f"| {noise_std:g} | {_mean(truth)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def defects_table(model: DigitNet, images: Tensor, noise_std: float = 0.1) -> str:
    """One released formula at a time, the others from howsure."""
    truth = monte_carlo(model, images, noise_std)
    bare = released_rules(0.0)
    variants: dict[str, dict[Target, Rule] | None] = {
        "howsure's rules": None,
        "batch norm without 1 / (running_var + eps)": _only(bare, "released batch_norm"),
        "log-normal softmax": _only(bare, "released softmax"),
        "all released formulas, `min_variance` 1e-3": released_rules(1e-3),
        "all released formulas, `min_variance` 1e-4": released_rules(1e-4),
        "all released formulas, `min_variance` 0": bare,
    }
    lines = ["| rules | logits: ratio (rank) | probabilities: ratio (rank) |", "|---|---|---|"]
    for name, rules in variants.items():
        found = propagated(model, images, noise_std, rules)
        pairs = zip(found, truth, strict=True)
        lines.append(f"| {name} | {' | '.join(_compared(*pair) for pair in pairs)} |")
    return "\n".join(lines)


def _only(rules: dict[Target, Rule], name: str) -> dict[Target, Rule]:
    return {target: rule for target, rule in rules.items() if rule.name == name}


def monte_carlo(model: DigitNet, images: Tensor, noise_std: float) -> Spread:
    """What noisy samples through the plain network show."""
    generator = torch.Generator().manual_seed(0)
    network: Network = with_probabilities(model)
    found = sampled_moments(network, images, noise_std, COPIES, generator)
    return Spread(*(moments.var.sqrt() for moments in found))


def propagated(
    model: DigitNet, images: Tensor, noise_std: float, rules: dict[Target, Rule] | None
) -> Spread:
    """What propagation says."""
    out = hs.propagate(with_probabilities(model), images, noise_std**2, rules=rules)
    return Spread(*(var.sqrt() for var in out.var))


def _mean(std: Tensor) -> str:
    return f"{float(std.mean()):.2g}"


def _compared(std: Tensor, truth: Tensor) -> str:
    """Ratio of mean stds, and the rank correlation over digits and classes."""
    if not bool(std.isfinite().all()):
        return "NaN"
    rank = float(hs.metrics.rank_correlation(std.flatten(), truth.flatten()))
    return f"{float(std.mean() / truth.mean()):.2g} ({rank:.2f})"


if __name__ == "__main__":
    main()
