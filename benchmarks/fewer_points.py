"""Whether a row may stop after 4 points: `python benchmarks/fewer_points.py`.

The trained networks, noise levels and Monte Carlo truth of `honesty.py`. For every kind: the rms of
the relative error of the std with 4 and with 8 points, and what two rules would do that look at the
first 4 points alone and let a row stop:

    error: the error that the estimate states for itself is at most 3 %
    slopes: the slopes over the noise vary by at most 1 % of what they explain

The share of the rows that stop, and the rms error of those with 4 and with 8 points. A rule is of
use where many rows stop, and honest where the first error is about the second. `--truth FILE` as in
`honesty.py`. Writes fewer_points.json to `--out`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from bench import RESULTS, write
from honesty import SAMPLES, Truth
from models.small_kinds import KINDS
from torch import Tensor, nn

import howsure as hs
from howsure.estimators.gradients import Estimate, estimate
from howsure.probe import probe_model
from howsure.problem import Problem
from howsure.setup import Setup

SEEDS = (0, 1, 2)
MOST_ERROR, MOST_VARIATION = 0.03, 0.01
# Rows whose truth is less precise are left out.
MOST_TRUTH_ERROR = 0.02
HEADER = f"{'':22}{'4':>7}{'8':>7}{'error':>8}{'4':>7}{'8':>7}{'slopes':>8}{'4':>7}{'8':>7}"


def estimated(model: nn.Module, x: Tensor, level: float, points: int, seed: int) -> Estimate:
    """From the gradients alone: no row is sampled."""
    setup = Setup(model, level**2, seed=seed)
    return estimate(Problem(setup, x, setup.cached(probe_model, x)), points)


def measure(name: str, truth: Truth) -> dict[str, Any]:
    """The errors of one kind of network, in all and of the rows that would stop."""
    kind, model = KINDS[name], truth.network(name)
    x, _ = kind.test_data(kind.rows)
    columns: list[Tensor] = []
    for seed in SEEDS:
        for level in kind.levels:
            std, error = truth.std(name, model, x, level, SAMPLES)
            few, usual = (estimated(model, x, level, points, seed) for points in (4, 8))
            off = [(e.total.clamp(min=0).sqrt().double() - std) / std for e in (few, usual)]
            stated = (few.squared_error.sqrt() / few.total / 2).double()
            is_known = (std > 0) & (error < MOST_TRUTH_ERROR * std)
            numbers = torch.stack([*off, error / std, stated, few.roughness.double()])
            columns.append(numbers[:, is_known])
    four, eight, of_truth, stated, variation = torch.cat(columns, 1)

    def rms(off: Tensor, stops: Tensor) -> float | None:
        squares = (off.square() - of_truth.square())[stops]
        return float(squares.mean().clamp(min=0).sqrt()) if len(squares) else None

    everything = torch.ones_like(four, dtype=torch.bool)
    result = {"elements": x[0].numel(), "outputs": len(four)}
    result |= {"four": rms(four, everything), "eight": rms(eight, everything)}
    rules = {"error": stated <= MOST_ERROR, "slopes": variation <= MOST_VARIATION}
    for rule, stops in rules.items():
        share = float(stops.double().mean())
        result[rule] = {"share": share, "four": rms(four, stops), "eight": rms(eight, stops)}
    return result


def row(name: str, result: dict[str, Any]) -> str:
    """A line of the table, in %."""

    def percent(value: float | None, width: int) -> str:
        return f"{'-' if value is None else f'{100 * value:.1f}':>{width}}"

    words = [percent(result["four"], 7), percent(result["eight"], 7)]
    for rule in ("error", "slopes"):
        words.append(percent(result[rule]["share"], 8))
        words += [percent(result[rule][points], 7) for points in ("four", "eight")]
    return f"{name:22}" + "".join(words)


def main() -> None:
    """Parses the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--truth", type=Path, help="file that keeps weights and truth")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    truth = Truth(asked.truth)
    cases: dict[str, Any] = {}
    print(HEADER)
    for name in KINDS:
        cases[name] = measure(name, truth)
        print(row(name, cases[name]), flush=True)
    content = {"howsure": hs.__version__, "cases": cases}
    write(asked.out / "fewer_points.json", content, SEEDS)


if __name__ == "__main__":
    main()
