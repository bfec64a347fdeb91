"""What a report says of a classification at every noise level: numbers, charts, single cases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsure import metrics, plots
from howsure.plots.theme import LIGHT, finish, prepared, series
from howsure.plots.values import thinned
from howsure.report import readings
from howsure.report.cases import number, show_cases
from howsure.report.charts import MOST_MARKS, draw_levels, sparsification_charts, sweep_charts
from howsure.report.options import Levels, Options
from howsure.report.outcomes import Decisions, Outcome, data_share
from howsure.report.readings import metric, percent
from howsure.report.values import Cell, Chart, Gallery, Metric, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADLINE = ("Mean confidence", "AUROC of errors, by entropy", "Variance from the sensor")
_GROUPS = 10


def numbers(outcome: Outcome) -> list[Metric]:
    """The numbers with their readings, the most telling first."""
    decisions, inputs = outcome.decisions, len(outcome.mean)
    rows, target, wrong = decisions.probabilities, decisions.target, decisions.wrong
    classes, right = rows.shape[1], float(metrics.accuracy(rows, target))

    def finds_errors(name: str, uncertainty: Tensor) -> Metric:
        auroc = partial(metrics.misclassification_auroc, uncertainty, rows, target)
        return metric(f"AUROC of errors, by {name}", auroc, readings.detection, form=percent)

    def order(ause: float) -> str:
        return readings.order(ause, float(metrics.ause(wrong, torch.zeros_like(wrong))))

    mean = decisions.confidence.mean
    ause = partial(metrics.ause, wrong, decisions.entropy)
    ece = partial(metrics.ece, rows, target)
    nll = partial(metrics.categorical_nll, rows, target)
    brier = partial(metrics.brier, rows, target, reduction="sum")
    one_hot_nll = partial(metrics.one_hot_nll, rows, decisions.var, target)
    return [
        metric("Accuracy", lambda: right, readings.accuracy, form=percent),
        metric("Mean confidence", mean, readings.confidence, right, inputs, form=percent),
        finds_errors("entropy", decisions.entropy),
        finds_errors("std", decisions.std),
        metric("AUSE, by entropy", ause, order),
        metric("ECE, 15 bins", ece, readings.gap, form=percent),
        metric("NLL of the class", nll, readings.log_loss, classes),
        metric("Brier score, sum over classes", brier, readings.brier, classes),
        metric("One-hot NLL, mean over classes", one_hot_nll, readings.one_hot_nll),
        metric("Mean std of the winning probability", decisions.std.mean, readings.winning_std),
        data_share(outcome),
    ]


def charts(outcomes: Sequence[Outcome], levels: Levels) -> list[list[Chart]]:
    """The charts by question, each at every level."""
    by_level = [outcome.decisions for outcome in outcomes]
    order = by_level[levels.start].confidence.argsort(stable=True)
    (chosen,) = thinned(order.numpy(), most=MOST_MARKS)
    groups = min(_GROUPS, len(order))

    def reliability(ax: Axes, decisions: Decisions) -> None:
        plots.confidence(decisions.probabilities, decisions.target, ax=ax)

    def wrong_by_entropy(ax: Axes, decisions: Decisions) -> None:
        parts = decisions.entropy.argsort(stable=True).tensor_split(groups)
        entropy, wrong = (
            torch.stack([values[part].mean() for part in parts]).numpy()
            for values in (decisions.entropy, decisions.wrong)
        )
        prepared(ax)
        series(ax, entropy, wrong, 0, "wrong predictions")
        ax.set(xlim=(0, None), ylim=(0, 1))
        finish(ax, "entropy, in nats", "share wrong")

    def winning_probabilities(ax: Axes, decisions: Decisions) -> None:
        parts = (decisions.confidence, decisions.std, decisions.wrong)
        confidence, std, wrong = (part[chosen] for part in parts)
        rank = torch.arange(1, len(chosen) + 1)
        low, high = ((confidence + s * 1.96 * std).clamp(0, 1) for s in (-1, 1))
        prepared(ax)
        ax.vlines(rank, low, high, color=LIGHT.muted, linewidth=2, label="95 % interval")
        for name, where, mark, marker in (
            ("right", wrong == 0, 2, "o"),
            ("wrong", wrong == 1, 1, "x"),
        ):
            look = {"color": LIGHT.mark(mark).color, "markersize": 3.5, "label": name}
            ax.plot(rank[where], confidence[where], marker, **look)
        ax.set_ylim(0, 1)
        finish(ax, "rank of the confidence", "probability")

    curves = {
        "mean confidence": [float(decisions.confidence.mean()) for decisions in by_level],
        "accuracy": [float(1 - decisions.wrong.mean()) for decisions in by_level],
    }
    return [
        draw_levels(
            "reliability",
            "Are the probabilities calibrated?",
            "How often the predicted class is right, for predictions of equal confidence. Below "
            "the diagonal the network is too sure, above it too unsure.",
            reliability,
            by_level,
        ),
        sparsification_charts(
            [
                (decisions.wrong, {"by entropy": decisions.entropy, "by std": decisions.std})
                for decisions in by_level
            ],
            "Share of wrong predictions",
        ),
        draw_levels(
            "spread",
            "Are unsure predictions wrong more often?",
            f"Predictions in {groups} groups of equal size, by the entropy of their "
            "probabilities. The curve should rise.",
            wrong_by_entropy,
            by_level,
        ),
        draw_levels(
            "bands",
            "Winning probabilities with their intervals",
            f"Probability of the predicted class for {len(chosen)} predictions, sorted by it at "
            "the stated noise, with its 95 % interval.",
            winning_probabilities,
            by_level,
        ),
        *sweep_charts(levels, curves, "share of 1"),
    ]


def cases(outcome: Outcome, options: Options) -> tuple[Table, tuple[Gallery, ...]]:
    """Every input with its class; a dense output has many, whose numbers are averaged."""
    inputs, decisions = len(outcome.mean), outcome.decisions
    classes, names = options.output_names(outcome.mean.shape[1]), options.input_names(inputs)
    confidence, std, doubt, wrong = (
        t.reshape(inputs, -1).mean(1)
        for t in (decisions.confidence, decisions.std, decisions.entropy, decisions.wrong)
    )

    def label(labels: Tensor) -> str:
        return classes[int(labels[0])] if len(labels) == 1 else "several"

    def describe(i: int) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
        choice, truth = (
            label(t.reshape(inputs, -1)[i]) for t in (decisions.choice, decisions.target)
        )
        share = float(wrong[i])
        result = {0.0: "right", 1.0: "wrong"}.get(share, f"{percent(share)} wrong")
        numbers = [float(t[i]) for t in (confidence, std, doubt)]
        row = (Cell(names[i], float(i)), Cell(choice), Cell(truth), Cell(result, share))
        first = f"predicted {choice}, true {truth}" if share else f"says {choice}"
        lines = (first, f"{percent(numbers[0])} ± {percent(numbers[1])}")
        return (*row, *map(number, numbers)), lines

    texts, numeric = ("case", "prediction", "target", "result"), ("probability", "std", "entropy")
    # Wrong ones first, and among them the surest.
    badness = wrong + wrong.sign() + confidence
    return show_cases(
        options,
        {**dict.fromkeys(texts, False), **dict.fromkeys(numeric, True)},
        describe,
        doubt=doubt,
        badness=badness,
        error=badness,
        wrong=wrong > 0,
        worst="Wrong predictions, the surest of them first.",
    )
