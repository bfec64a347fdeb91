"""The demonstration's picture: the surest and least sure digits, and predicted against true std."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from howsure.demo.compare import Comparison, Winner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

# From the palette of Okabe and Ito, which readers with any colour vision can tell apart.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_LEVELS = ((GREEN, "o"), (BLUE, "s"), (ORANGE, "^"))
_PER_ROW = 8


def save_picture(comparisons: Sequence[Comparison], path: Path, *, gallery: int) -> Path:
    """Writes the picture, under a temporary name first, and returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.2), dpi=110, layout="constrained")
    halves = figure.subfigures(2, 1, height_ratios=(1, 1.15), hspace=0.04, squeeze=False)
    upper, lower = halves.flat
    draw_gallery(upper, comparisons[gallery])
    left, right = lower.subplots(1, 2)
    noisy = [c for c in comparisons if c.noise_std > 0]
    draw_spread(left, noisy, "logit")
    draw_spread(right, noisy, "probability")
    lower.suptitle("How sure howsure says the network is, and how sure it should be", weight="bold")
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="png")
    return part.replace(path)


def draw_gallery(figure: SubFigure, comparison: Comparison) -> None:
    """A row of the digits with the smallest predicted std, and one of those with the largest."""
    order = comparison.by_certainty.tolist()
    axes = figure.subplots(2, _PER_ROW)
    rows = {"surest": order[:_PER_ROW], "least sure": order[: -_PER_ROW - 1 : -1]}
    for row, (name, positions) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(name, fontsize=12, weight="bold")
        for ax, position in zip(row, positions, strict=False):
            draw_digit(ax, comparison, position)
        for ax in row[len(positions) :]:
            ax.set_axis_off()
    figure.suptitle(
        f"What the sensor reads (noise std {comparison.noise_std:g}), what the network says, and "
        "howsure's probability ± std",
        weight="bold",
    )


def draw_digit(ax: Axes, comparison: Comparison, i: int) -> Axes:
    """One reading; the frame and the words above tell whether the network is right."""
    correct = bool(comparison.correct[i])
    colour = BLUE if correct else VERMILLION
    probability = comparison.probability.predicted
    ax.imshow(comparison.readings.images[i, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    ax.set_xticks([], [])
    ax.set_yticks([], [])
    for spine in ax.spines.values():
        spine.set(color=colour, linewidth=1.5 if correct else 3)
    says, label = int(comparison.says[i]), int(comparison.readings.labels[i])
    words = f"says {says}" if correct else f"says {says}, is {label}"
    ax.set_title(words, fontsize=10, color=colour, weight="normal" if correct else "bold")
    std = float(probability.var[i].sqrt())
    ax.set_xlabel(f"{float(probability.mean[i]):.3f} ± {std:.1g}", fontsize=9)
    return ax


def draw_spread(ax: Axes, comparisons: Sequence[Comparison], output: str) -> Axes:
    """Predicted against true std of the winning class, one point per digit."""
    smallest, largest = float("inf"), 0.0
    for comparison, (colour, marker) in zip(comparisons, _LEVELS, strict=True):
        winner = getattr(comparison, output)
        true, predicted = winner.sampled.var.sqrt(), winner.predicted.var.sqrt()
        style = {"s": 16, "alpha": 0.55, "linewidths": 0, "color": colour, "marker": marker}
        ax.scatter(true.numpy(), predicted.numpy(), label=_label(comparison, winner), **style)
        smallest = min(smallest, float(true.min()), float(predicted.min()))
        largest = max(largest, float(true.max()), float(predicted.max()))
    ends = [0.7 * smallest, 1.4 * largest]
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    draw_diagonal(ax, ends)
    ax.set_xlabel(f"true std of the winning {output} (brute force)")
    ax.set_ylabel("predicted std (howsure)")
    ax.grid(color="0.9")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    legend = ax.legend(frameon=False, loc="upper left", handletextpad=0.2)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    return ax


def _label(comparison: Comparison, winner: Winner) -> str:
    return f"noise std {comparison.noise_std:g}: predicted / true = {winner.ratio:.2f}"


def draw_diagonal(ax: Axes, ends: Sequence[float]) -> None:
    """The line of equal stds, with words on both sides."""
    ax.plot(ends, ends, color="black", linewidth=1)
    middle = (ends[0] * ends[1]) ** 0.5
    along = {"rotation": 45, "transform_rotates_text": True, "rotation_mode": "anchor"}
    ax.text(middle, middle, "as sure as it should be", va="bottom", ha="center", **along)
    ax.text(middle, middle * 0.93, "too sure", va="top", ha="center", **along)
