"""Held-out targets that can hardly be right, found from inputs, outputs and targets alone."""

from __future__ import annotations

import torch
from torch import Tensor

# Fewer rows show nothing.
_LEAST_ROWS = 20
# Errors of so small a share of the targets' std are those of training data, or of a simulation
# without noise.
_VANISHING = 5e-3
# Share of the squared errors that the worst row in a hundred must not have.
_DOMINANT = 0.8
# How much smaller errors become if targets move by a row, or are scaled.
_SMALLER = 0.5
# A correlation of outputs and targets that shows the same quantity in other units.
_SAME_QUANTITY, _OTHER_UNITS = 0.5, 5.0


@torch.no_grad()
def describe_suspicions(inputs: Tensor, outputs: Tensor, targets: Tensor) -> list[str]:
    """One sentence, with the figure, for everything that contradicts honest held-out targets.

    All have one row for each input, (rows, numbers).
    """
    rows, x = len(targets), inputs.double()
    y, f = targets.double(), outputs.double()
    if rows < _LEAST_ROWS or not bool(y.isfinite().all() and f.isfinite().all()):
        return []
    sentences = []
    distinct = len(torch.unique(torch.cat([x, y], 1), dim=0))
    if 2 * distinct < rows:
        sentences.append(
            f"Only {distinct} of {rows} held-out rows are distinct; the others repeat them and add "
            "no information."
        )
    if bool((y == y[:1]).all()):
        value = ", ".join(f"{number:.3g}" for number in y[0, :3].tolist())
        sentences.append(f"All {rows} held-out targets are the same ({value}).")
    # Outputs in units of their targets' std, so that all count alike.
    scale = y.std(0)
    scale = torch.where(scale > 0, scale, 1.0)
    squares = ((f - y) / scale).square().sum(1)
    shares = squares.sort(descending=True).values.cumsum(0) / squares.sum()
    worst = int((shares < _DOMINANT).sum()) + 1
    has_outliers = bool(squares.any()) and worst <= max(1, rows // 100)
    if has_outliers:
        sentences.append(
            f"{worst} of {rows} held-out rows {'has' if worst == 1 else 'have'} "
            f"{float(shares[worst - 1]):.0%} of the squared errors: check whether their targets "
            "are wrong."
        )
    error = float(((f - y) / scale).square().mean().sqrt())
    varies = bool((y.std(0) > 0).all())
    if varies and 0 < error < _VANISHING:  # Errors of 0 are refused by all fits.
        sentences.append(
            f"The held-out errors are {error:.1e} of the targets' std, as is typical of training "
            "data. If so, the predicted std is too small; fit on data that the network has not "
            "seen."
        )
    explanation = None if has_outliers or not varies else _explain_errors(f, y, scale)
    return [*sentences, explanation] if explanation else sentences


def _explain_errors(f: Tensor, y: Tensor, scale: Tensor) -> str | None:  # (rows, outputs)
    """What may be wrong where errors are as large as the targets' own variance."""

    def mean_square(targets: Tensor) -> float:
        return float(((f - targets) / scale).square().mean())

    error = mean_square(y)
    for step, words in ((-1, "the row before"), (1, "the row after")):
        if error > 0 and (moved := mean_square(y.roll(step, 0))) < _SMALLER * error:
            return (
                f"The targets fit {words} better (mean squared error {moved / error:.2f} times): "
                "they may be shifted by a row."
            )
    about_mean, spread = f - f.mean(0), y - y.mean(0)
    slope = (about_mean * spread).sum(0) / about_mean.square().sum(0)
    correlation = slope * f.std(0) / y.std(0)
    factor = slope[slope.abs().log().abs().argmax()]
    has_other_units = max(abs(factor), 1 / abs(factor)) > _OTHER_UNITS if factor else False
    if has_other_units and bool((correlation.abs() > _SAME_QUANTITY).all()):
        return (
            f"The targets are about {float(factor):.3g} times the outputs (correlation "
            f"{float(correlation.abs().min()):.2f}): they may be in other units."
        )
    if error >= 1:
        return (
            f"The mean squared error is {error:.2f} times the variance of the targets: the network "
            "predicts them no better than their mean does. Do they belong to these inputs?"
        )
    return None
