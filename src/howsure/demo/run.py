"""The demonstration from options to picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from howsure.demo.brute_force import BruteForce, with_probabilities
from howsure.demo.compare import Comparison, compare
from howsure.demo.data import HELD_OUT, Digits, held_out_digits, sense
from howsure.demo.model import load_trained
from howsure.demo.picture import save_picture
from howsure.demo.table import prediction_table, summary_table

NOISE_STDS = (0.0, 0.05, 0.1, 0.2)
PICTURED = 2  # which of these the gallery shows


def run(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables, writes the picture and returns the exit code."""
    options = parse(arguments)
    print(
        f"A trained network reads {options.digits} held-out digits through a sensor with noise.\n"
        f"howsure predicts how sure it is; {options.copies} noisy copies of each reading tell how "
        "sure it should be."
    )
    comparisons = compare_all(held_out_digits(options.digits), options)
    print("\nFive digits, from the surest to the least sure at the largest noise:\n")
    print(prediction_table(comparisons, rows=5))
    print("\nAll digits:\n")
    print(summary_table(comparisons))
    print("\n" + explanation(comparisons))
    path = save_picture(comparisons, options.out / "demo.png", gallery=PICTURED)
    print(f"\nPicture: {path}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; wrong ones end the program with a sentence and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m howsure.demo", description="A trained network, with uncertainty."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="directory of the picture (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sensor's noise (%(default)s)")
    parser.add_argument(
        "--digits", type=int, default=200, help=f"how many, up to {HELD_OUT} (%(default)s)"
    )
    parser.add_argument(
        "--copies", type=int, default=200, help="noisy copies per digit (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if not 10 <= options.digits <= HELD_OUT:
        parser.error(f"--digits must be from 10 to {HELD_OUT}, and is {options.digits}")
    if options.copies < 2:
        parser.error(f"--copies must be 2 or more, and is {options.copies}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make the directory {options.out}: {error.strerror}")
    return options


def compare_all(digits: Digits, options: argparse.Namespace) -> list[Comparison]:
    """One comparison per noise level, with a progress bar on a terminal."""
    from tqdm import tqdm

    network = with_probabilities(load_trained())
    generator = torch.Generator().manual_seed(options.seed)
    total = len(NOISE_STDS) * len(digits.labels)
    with tqdm(total=total, desc="Brute force", unit="digit", leave=False, disable=None) as bar:
        brute_force = BruteForce(options.copies, generator, on_progress=bar.update)

        def at(noise_std: float) -> Comparison:
            readings = digits._replace(images=sense(digits.images, noise_std, generator))
            return compare(network, readings, noise_std, brute_force)

        return [at(noise_std) for noise_std in NOISE_STDS]


def explanation(comparisons: Sequence[Comparison]) -> str:
    """What the numbers mean and what they do not, with the measured ratio."""
    ratios = [c.logit.ratio for c in comparisons if c.noise_std > 0]
    ratio = f"{sum(ratios) / len(ratios):.2f}"
    return f"""\
accuracy  plain: the network on the reading; mean: howsure's mean over the noise around the
          reading, which adds noise a second time and need not be the better classifier
howsure   mean std that howsure predicts for the winning class
true      mean std over noisy copies of the reading, through the plain network
ratio     the first over the second; 1 is right, below 1 is too sure
rank      rank correlation of the two: are the shaky digits told from the steady ones?
p(1-p)    the same for p (1 - p) of the plain network, which anyone can have without howsure

On this network the predicted std of a logit is about {ratio} of the true one: far too
small. howsure takes the elements of every activation as independent, as the paper does;
after convolutions, residual additions and averages they are not. Read these numbers as an
order among predictions, not as error bars."""
