"""Numbers in plain words: each function returns one sentence.

How far off is said by a factor on the std, because a factor means the same at every level: an
interval that covers 91 % instead of 95 % would be right if the std were 1.16 times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import SupportsFloat

from howsure.report.values import Metric

# Factors on the std up to which a deviation is called slight, and clear; beyond it is large.
_SLIGHT, _CLEAR = 1.25, 2.0
# A deviation of fewer standard errors may be chance: 5 % of calibrated models show a larger one.
_CHANCE = 1.96


def short(value: float) -> str:
    """A number with three significant digits, as a person would write it."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if 1e-4 <= size < 1e5:
        decimals = max(0, 2 - math.floor(math.log10(size)))
        return f"{value:.{decimals}f}".replace("-", "−")
    return f"{value:.2e}".replace("-", "−")


def percent(share: float) -> str:
    """A share in percent, with a digit more near 0 and 100; the unit stays with its number."""
    if 0 < share < 0.0005:
        return "under 0.1\u00a0%"
    if 0.9995 <= share < 1:
        return "over 99.9\u00a0%"
    near_the_end = 0 < share < 0.00995 or 0.9905 < share < 1
    return f"{100 * share:.{1 if near_the_end else 0}f}\u00a0%"


def degree(factor: float) -> str:
    """How far a factor is from 1: "slightly", "clearly" or "far"."""
    off = max(factor, 1 / factor) if factor > 0 else math.inf
    if off <= _SLIGHT:
        return "slightly"
    return "clearly" if off <= _CLEAR else "far"


def coverage(observed: float, level: float, inputs: int) -> str:
    """Whether an interval covers what it promises, as far as so many inputs can tell.

    The standard error takes one target per input as independent, which is on the safe side where
    an input has several outputs.
    """
    covers = f"The {percent(level)} interval covers {percent(observed)} of the targets"
    error = math.sqrt(level * (1 - level) / inputs)
    if abs(observed - level) <= _CHANCE * error:
        return f"{covers}: as promised, as far as {inputs:,} inputs can tell."
    if observed in (0, 1):
        off = "far" if observed == 0 else "somewhat"
    else:  # by the factor on the std that would put the coverage right
        off = degree(_reach(level) / _reach(observed))
    if observed < level:
        return f"{covers}: {off} too sure."
    return f"{covers}: {off} too unsure; its error bars could be smaller."


def _reach(level: float) -> float:
    """Half the width, in std, of the central interval that holds `level` of a Gaussian."""
    return NormalDist().inv_cdf((1 + level) / 2)


def spread(std: float, rmse: float) -> str:
    """Whether the predicted std is as large as the errors are."""
    if rmse == 0:
        return "The predictions have no error at all."
    ratio = std / rmse
    if ratio == 0:
        return "The predicted std is 0, and the errors are not."
    if 1 / 1.1 <= ratio <= 1.1:
        return "The predicted std is as large as the errors are."
    if ratio < 1:
        return (
            f"Errors are {short(1 / ratio)} times as large as predicted: {degree(ratio)} too sure."
        )
    return f"The predicted std is {short(ratio)} times the error: {degree(ratio)} too unsure."


def likelihood(nll: float, constant: float) -> str:
    """Whether the error bars are worth more than one constant error bar."""
    gain = constant - nll
    if gain > 0.02:
        return (
            f"Better than one constant error bar, which at best scores {short(constant)}: the std "
            "distinguishes good predictions from bad ones."
        )
    if gain > -0.02:
        return f"As good as one constant error bar, which at best scores {short(constant)}."
    return (
        f"Worse than one constant error bar, which at best scores {short(constant)}; recalibrate "
        "the variance."
    )


def accuracy(share: float) -> str:
    """The accuracy itself."""
    return f"{percent(share)} of the classes are right."


def winning_std(std: float) -> str:
    """How much the probability of the predicted class varies."""
    return f"The winning probability typically varies by {percent(std)}."


def error_size(rmse: float, spread_of_targets: float) -> str:
    """The error beside what guessing the mean target would give."""
    if spread_of_targets == 0:
        return "The typical error, in units of the target."
    share = rmse / spread_of_targets
    if share >= 1:
        return "Not better than always predicting the mean target."
    return f"The typical error is {percent(share)} of the targets' own spread."


def mean_error(_: float) -> str:
    """What the mean absolute error is."""
    return "The mean size of the error."


def crps(value: float, mae: float) -> str:
    """The score beside that of the same predictions without error bars."""
    if value < mae:
        gain = percent(1 - value / mae)
        return f"{gain} better than the same predictions without error bars ({short(mae)})."
    return f"No better than the same predictions without error bars ({short(mae)})."


def area(value: float) -> str:
    """How far the calibration curve is from the diagonal."""
    if value < 0.03:
        return "Promised and observed probabilities agree well; 0 is perfect."
    if value < 0.1:
        return "Promised and observed probabilities differ somewhat; 0 is perfect, 0.5 the worst."
    return "Promised and observed probabilities differ a lot; 0 is perfect, 0.5 the worst."


def ence(value: float) -> str:
    """How far std and error are apart where the model is sure and where it is not."""
    return (
        f"In groups of equal std, std and error differ by {percent(value)} of the std on average."
    )


def order(ause: float, of_chance: float, of_truth: float | None = None) -> str:
    """What rejecting unsure predictions gains, between no ranking and the perfect one.

    Args:
        ause: Of the predicted uncertainty.
        of_chance: Of no ranking at all.
        of_truth: What to expect if the predicted std were exactly right; errors are still random.
    """
    if of_chance <= 0:
        return "All errors are equal, so there is no ranking to find."
    gain = 1 - ause / of_chance
    if gain <= 0.02:
        return "Rejecting the unsure predictions does not lower the error."
    limit = ""
    if of_truth is not None and of_truth < of_chance:
        limit = f" ({percent(1 - of_truth / of_chance)} if this std were exactly right)"
    return (
        f"Rejecting the unsure predictions gains {percent(gain)} of what rejecting the worst ones "
        f"would gain{limit}."
    )


def rank(value: float, of_truth: float | None = None) -> str:
    """Whether larger stds come with larger errors; `of_truth` as in `order`."""
    if value > 0.1:
        limit = "" if of_truth is None else f" ({short(of_truth)} if this std were exactly right)"
        return f"Where the model is unsure, errors tend to be larger{limit}."
    if value > -0.1:
        return "The std does not show where the errors are large."
    return "Where the model is unsure, errors are smaller: the ranking is wrong."


def sources(data_share: float) -> str:
    """A sentence on what the variance comes from."""
    if data_share == 1:
        return "All of the variance comes from the sensor; the network's own is 0 or not included."
    if data_share == 0:
        return "All of the variance comes from the network; the sensor's is 0 or not included."
    return (
        f"{percent(data_share)} of the variance comes from the sensor, "
        f"{percent(1 - data_share)} from the network."
    )


def confidence(mean_confidence: float, accuracy: float, inputs: int) -> str:
    """Whether the predicted class is right as often as its probability says."""
    statement = (
        f"Its mean confidence is {percent(mean_confidence)}, and it is right in {percent(accuracy)}"
    )
    error = math.sqrt(max(accuracy * (1 - accuracy), mean_confidence * (1 - mean_confidence)))
    if abs(mean_confidence - accuracy) <= _CHANCE * error / math.sqrt(inputs):
        return f"{statement}: as promised, as far as {inputs:,} inputs can tell."
    gap = abs(mean_confidence - accuracy)
    size = "slightly" if gap < 0.05 else "clearly" if gap < 0.15 else "far"
    return f"{statement}: {size} too {'sure' if mean_confidence > accuracy else 'unsure'}."


def log_loss(value: float, classes: int) -> str:
    """The categorical likelihood beside that of guessing."""
    chance = math.log(classes)
    if value >= chance:
        return f"Not better than guessing among {classes} classes ({short(chance)})."
    return f"Guessing among {classes} classes scores {short(chance)}; 0 is perfect."


def brier(value: float, classes: int) -> str:
    """The Brier score beside that of guessing."""
    chance = 1 - 1 / classes
    return f"Guessing among {classes} classes scores {short(chance)}; 0 is perfect."


def one_hot_nll(_: float) -> str:
    """What the score is for."""
    return "The likelihood by which the paper compares methods; lower is better."


def gap(value: float) -> str:
    """The calibration error of confidences."""
    return f"Confidence and accuracy differ by {percent(value)} on average over the bins."


def detection(auroc: float) -> str:
    """How well the uncertainty finds the wrong predictions."""
    if auroc < 0.55:
        return "Hardly better than chance, 50 %, at separating wrong from right predictions."
    return f"A wrong prediction is less sure than a right one in {percent(auroc)} of such pairs."


def metric(
    name: str,
    value: Callable[[], SupportsFloat],
    reading: Callable[..., str],
    *context: object,
    form: Callable[[float], str] = short,
) -> Metric:
    """A number with its reading, `reading(number, *context)`.

    A refusal of the metric becomes the reading, since a page has room to say why.
    """
    try:
        number = float(value())
    except ValueError as refusal:
        return Metric(name, None, "–", f"Not defined here: {refusal}")
    return Metric(name, number, form(number), reading(number, *context))
