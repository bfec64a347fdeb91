"""The charts of a report: drawn by `howsure.plots`, kept as SVG in the colors of the page.

A chart comes once for every noise level, with the same axes, so that the slider moves the curves
and nothing else.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsure import plots
from howsure.fit import Fit
from howsure.metrics.calibration import PERCENT
from howsure.plots.canvas import label, legend, matplotlib, prepared, series
from howsure.plots.theme import DARK, LIGHT, Theme
from howsure.prediction import Prediction
from howsure.report.options import Levels
from howsure.report.outcomes import Decisions, Outcome
from howsure.report.readings import short
from howsure.report.values import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], object]

_SIZE = (4.4, 3.1)  # inches; letters of 8.5 points can be read on a phone
_PLACE = (0.16, 0.15, 0.81, 0.81)  # of the axes in the figure
_GROUPS = 10
_CASES = 80


def regression_charts(outcomes: Sequence[Outcome], levels: Levels) -> list[tuple[Chart, ...]]:
    """The charts of a regression, by level."""
    flat = [[t.flatten() for t in (o.mean, o.var, o.target, o.error)] for o in outcomes]
    inputs, groups = outcomes[0].inputs, min(_GROUPS, len(flat[0][0]))

    def reliability(mean: Tensor, var: Tensor, target: Tensor, _: Tensor) -> Draw:
        reach = [1.96 * math.sqrt(p * (1 - p) / inputs) for p in PERCENT]
        low, high = ([p + s * r for p, r in zip(PERCENT, reach, strict=True)] for s in (-1, 1))

        def draw(ax: Axes) -> None:
            chance = {"facecolor": LIGHT.muted, "alpha": 0.4, "linewidth": 0}
            ax.fill_between(PERCENT, low, high, **chance, label="chance, 95 %")
            plots.reliability((mean, var), target, ax=ax)

        return draw

    families = [
        _family(
            "reliability",
            "Are the probabilities calibrated?",
            "How many targets lie below each predicted quantile. On the diagonal they are "
            "calibrated; a curve that is flatter in the middle means too sure, a steeper one too "
            "unsure.",
            [reliability(*each) for each in flat],
        ),
        _sparsification(
            [(error, {"least sure rejected": var}) for _, var, _, error in flat], "Mean error"
        ),
        _family(
            "spread",
            "Are errors as large as the std says?",
            f"Predictions in {groups} groups of equal size, from the surest to the least sure. "
            "Above the diagonal the errors are larger than promised.",
            [
                lambda ax, e=each: plots.std_vs_error((e[0], e[1]), e[2], bins=groups, ax=ax)
                for each in flat
            ],
        ),
        _bands(outcomes, levels.start),
    ]
    if len(levels) > 1:
        curves = {
            "predicted std": [float(var.mean().sqrt()) for _, var, _, _ in flat],
            "RMSE": [float(error.square().mean().sqrt()) for *_, error in flat],
        }
        families.append(_sweep(levels, curves, "units of the target"))
    return list(zip(*families, strict=True))


def classification_charts(decided: Sequence[Decisions], levels: Levels) -> list[tuple[Chart, ...]]:
    """The charts of a classification, by level."""
    order = decided[levels.start].confidence.argsort(stable=True)
    chosen = order[_evenly(len(order), _CASES)]
    families = [
        _family(
            "reliability",
            "Are the probabilities calibrated?",
            "How often the predicted class is right, for predictions of equal confidence. Below "
            "the diagonal the network is too sure, above it too unsure.",
            [
                lambda ax, d=each: plots.confidence(d.probabilities, d.target, ax=ax)
                for each in decided
            ],
        ),
        _sparsification(
            [(d.wrong, {"by entropy": d.entropy, "by std": d.std}) for d in decided],
            "Share of wrong predictions",
        ),
        _family(
            "spread",
            "Are unsure predictions wrong more often?",
            f"Predictions in {min(_GROUPS, len(order))} groups of equal size, by the entropy of "
            "their probabilities. The curve should rise.",
            [lambda ax, d=each: _wrong_by_entropy(ax, d) for each in decided],
        ),
        _family(
            "bands",
            "Winning probabilities with their intervals",
            f"Probability of the predicted class for {len(chosen)} predictions, sorted by it at "
            "the stated noise, with its 95 % interval.",
            [lambda ax, d=each: _winning_probabilities(ax, d, chosen) for each in decided],
        ),
    ]
    if len(levels) > 1:
        curves = {
            "mean confidence": [float(d.confidence.mean()) for d in decided],
            "accuracy": [float(1 - d.wrong.mean()) for d in decided],
        }
        families.append(_sweep(levels, curves, "share of 1"))
    return list(zip(*families, strict=True))


def search_chart(fit: Fit) -> Chart | None:
    """The curve of a rate search; `None` without a curve."""
    known = [rate for rate, nll in zip(fit.rates, fit.nll, strict=True) if math.isfinite(nll)]
    if fit.rate is None or len(known) < 2:
        return None
    best = (
        f"{len(fit.rate)} rates were found, one for each site"
        if isinstance(fit.rate, tuple)
        else f"The best rate is {short(fit.rate)}"
    )
    caption = (
        f"Negative log-likelihood of {fit.count:,} held-out inputs at each rate; lower is better. "
        f"{best}."
    )
    title = "Which dropout rate explains the errors?"
    return _family("search", title, caption, [lambda ax: plots.rate_search(fit, ax=ax)])[0]


def _sparsification(
    by_level: Sequence[tuple[Tensor, Mapping[str, Tensor]]], what: str
) -> list[Chart]:
    """The error that remains when the least sure predictions are rejected."""

    def draw(ax: Axes, error: Tensor, rankings: Mapping[str, Tensor]) -> None:
        ax.axhline(1, color=LIGHT.ink, linewidth=1, linestyle=(0, (2, 2)), label="no ranking")
        plots.sparsification(error, rankings, points=60, ax=ax)
        # The last few predictions can be far above; the curves before them are what counts.
        ax.set_ylim(0, min(1.5, ax.get_ylim()[1]))

    return _family(
        "sparsification",
        "Does it know where it is wrong?",
        f"{what}, relative to that of all predictions, when the least sure ones are rejected. The "
        "faster it falls, the better the uncertainty ranks the predictions.",
        [lambda ax, e=each: draw(ax, *e) for each in by_level],
    )


def _bands(outcomes: Sequence[Outcome], start: int) -> list[Chart]:
    """Predictions with intervals, sorted by target; the same cases at every level.

    The range is that of the first level shown: wider intervals run out of the picture.
    """
    order = outcomes[0].target.flatten().argsort(stable=True)
    chosen = order[_evenly(len(order), _CASES)]
    rank = torch.arange(1, len(chosen) + 1)

    def draw(ax: Axes, outcome: Outcome) -> None:
        parts = (outcome.mean, outcome.data_var, outcome.model_var, outcome.target)
        mean, data_var, model_var, target = (t.flatten()[chosen] for t in parts)
        plots.bands(rank, Prediction(mean, data_var, model_var), truth=target, ax=ax)
        label(ax, "rank of the target", "output")

    return _family(
        "bands",
        "Predictions with their intervals",
        f"{len(chosen)} predictions, sorted by their target. About 95 % of the targets should lie "
        "in the band.",
        [lambda ax, o=each: draw(ax, o) for each in outcomes],
        limits_of=start,
    )


def _wrong_by_entropy(ax: Axes, seen: Decisions) -> None:
    """Share of errors in groups from the surest to the least sure."""
    order = seen.entropy.argsort(stable=True)
    groups = order.tensor_split(min(_GROUPS, len(order)))
    entropy, wrong = (
        torch.stack([values[group].mean() for group in groups]).numpy()
        for values in (seen.entropy, seen.wrong)
    )
    prepared(ax)
    series(ax, entropy, wrong, 0, "wrong")
    ax.set(xlim=(0, None), ylim=(0, 1))
    label(ax, "entropy, in nats", "share wrong")


def _winning_probabilities(ax: Axes, seen: Decisions, chosen: Tensor) -> None:
    confidence, std, wrong = (t[chosen] for t in (seen.confidence, seen.std, seen.wrong))
    rank = torch.arange(1, len(chosen) + 1)
    low, high = ((confidence + s * 1.96 * std).clamp(0, 1) for s in (-1, 1))
    prepared(ax)
    ax.vlines(rank, low, high, color=LIGHT.muted, linewidth=2, label="95 % interval")
    for name, where, index, marker in (
        ("right", wrong == 0, 2, "o"),
        ("wrong", wrong == 1, 1, "x"),
    ):
        look = {"color": LIGHT.mark(index).colour, "markersize": 3.5}
        ax.plot(rank[where], confidence[where], marker, **look, label=name)
    ax.set_ylim(0, 1)
    label(ax, "rank of the confidence", "probability")
    legend(ax)


def _sweep(levels: Levels, curves: Mapping[str, Sequence[float]], unit: str) -> list[Chart]:
    """What is predicted and what is observed against the noise; each level marks its own."""
    factors = torch.tensor(levels.factors).numpy()

    def draw(ax: Axes, index: int) -> None:
        prepared(ax)
        color = LIGHT.mark(3).colour
        for k, (name, values) in enumerate(curves.items()):
            series(ax, factors, torch.tensor(values).numpy(), k, name)
            ax.plot(
                *(factors[index], values[index], "D"),
                color=color,
                markersize=9,
                markerfacecolor="none",
                label="" if k else "this level",
            )
        if factors.min() > 0:
            ax.set_xscale("log")
        ax.set_xticks(factors, [f"{factor:g}" for factor in factors], minor=False)
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        label(ax, "noise std, in multiples of the stated one", unit)
        legend(ax)

    title, caption = (
        (
            "Does the uncertainty follow the noise?",
            "A better and a worse sensor: as much noise as is assumed is added to the inputs. "
            "Where the curves part, the uncertainty no longer follows the errors. Diamonds mark "
            "the level shown.",
        )
        if levels.added
        else (
            "Which noise fits the errors?",
            "The inputs stay as they are, only the noise that is assumed changes. Where the curves "
            "meet, it fits the errors. Diamonds mark the level shown.",
        )
    )
    draws = [lambda ax, k=k: draw(ax, k) for k in range(len(levels))]
    return _family("sweep", title, caption, draws)


def _family(
    key: str, title: str, caption: str, draws: Sequence[Draw], limits_of: int | None = None
) -> list[Chart]:
    """One chart for each level, with common axes; a metric's refusal becomes the caption.

    Args:
        key: The place on the page.
        title: The question that the chart answers.
        caption: How to read it.
        draws: What draws each level.
        limits_of: The level whose axes all have; by default axes that hold every level.
    """
    matplotlib()
    from matplotlib.figure import Figure

    with _page_style():
        axes = [Figure(figsize=_SIZE).add_axes(_PLACE) for _ in draws]
        reasons = dict.fromkeys(axes, "")
        for ax, draw in zip(axes, draws, strict=True):
            try:
                draw(ax)
            except ValueError as reason:
                reasons[ax] = f"Not defined here: {reason}"
        drawn = [ax for ax in axes if not reasons[ax]]
        _share_limits(drawn, drawn if limits_of is None else [axes[limits_of]])
        return [
            Chart(key, title, reason or caption, "" if reason else _svg(ax))
            for ax, reason in reasons.items()
        ]


def _share_limits(axes: Sequence[Axes], leaders: Sequence[Axes]) -> None:
    """Gives all axes one scale, and limits that hold those of the leaders."""
    for name in ("x", "y"):
        limits = [end for ax in leaders for end in getattr(ax, f"get_{name}lim")()]
        one_scale = len({getattr(ax, f"get_{name}scale")() for ax in axes}) == 1
        for ax in axes:
            if not one_scale:
                ax.set(**{f"{name}scale": "linear"})
            ax.set(**{f"{name}lim": (min(limits), max(limits))})


@contextmanager
def _page_style() -> Iterator[Theme]:
    """matplotlib as it comes, whatever the user has set, with text that stays text."""
    plain = matplotlib()
    with plain.rc_context():
        plain.rcdefaults()
        plain.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "howsure"})
        with plots.style() as theme:
            yield theme


def _svg(ax: Axes) -> str:
    """The figure as an element of the page, with the page's variables for its colors."""
    from matplotlib.figure import Figure

    figure, text = ax.figure, io.StringIO()
    assert isinstance(figure, Figure)
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', svg, count=1)
    # A tenth of a point is finer than a screen; texts between the tags keep their digits.
    svg = re.sub("<[^>]+>", lambda tag: _shortened(tag[0]), svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    return re.sub("|".join(_VARIABLES), lambda color: f"var({_VARIABLES[color[0]]})", svg)


def _shortened(tag: str) -> str:
    """A tag without digits that nobody sees, fonts that are the page's, and turns by nothing."""
    tag = re.sub(r"(\.\d)\d+", r"\1", tag)
    tag = re.sub(r"font-family: [^;\"]*; ?", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r"\s*\n\s*([LzMQC])", r"\1", tag)
    return tag.replace("; ", ";").replace(": ", ":").replace(" L ", "L")


def _colors(theme: Theme) -> dict[str, str]:
    """The colors of a theme by the variables of the page that stand for them."""
    marks = {f"--mark-{k}": mark.colour.lower() for k, mark in enumerate(theme.marks)}
    return {"--paper": theme.background, "--ink": theme.ink, "--faint": theme.muted, **marks}


_VARIABLES = {color: name for name, color in _colors(LIGHT).items()}


def variables(*, dark: bool) -> str:
    """The theme of all plots as declarations of CSS."""
    colors = _colors(DARK if dark else LIGHT)
    return " ".join(f"{name}: {color};" for name, color in colors.items())


def _evenly(count: int, wanted: int) -> Tensor:
    """Up to `wanted` positions among `count`, first and last included."""
    return torch.linspace(0, count - 1, min(count, wanted)).round().long()
