"""Where the variance comes from: stacked bars of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from howsure.plots.theme import SMALL, finish, prepared
from howsure.prediction import Budget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 40
Chosen = int | Sequence[int] | None


def budget_bars(
    budget: Budget,
    *,
    inputs: Chosen = None,
    outputs: Chosen = None,
    top: int = 5,
    ax: Axes | None = None,
) -> Axes:
    """Axes with one bar for each input and output, divided into the shares of the sources.

    The number behind a bar is the std of that output.

    Args:
        budget: What `Prediction.budget()` returns.
        inputs: Positions in the batch; by default the average over the batch.
        outputs: Positions of outputs, in the flat order of the model's output; by default all.
        top: How many sources have a part of their own, the largest on average first; the rest
            is "other".
        ax: Where to draw; by default a new figure.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
        >>> p = hs.Uncertain(model, noise=0.01, method="gradients")(torch.ones(3, 2))
        >>> ax = hs.plots.budget_bars(p.budget())
        >>> len(ax.patches) > 0
        True
    """
    if not isinstance(budget, Budget):
        raise TypeError(
            f"`budget` is a {type(budget).__name__}; pass what `prediction.budget()` returns."
        )
    if top < 1:
        raise ValueError(f"`top` is {top}; give at least 1 source.")
    shares, total = (t.detach().cpu().double() for t in (budget.shares, budget.total))
    columns = _positions("outputs", outputs, total.shape[1])
    if inputs is None:
        shares, total = shares.mean(1, keepdim=True), total.mean(0, keepdim=True)
        rows, names = [0], [f"output {k}" for k in columns]
    else:
        rows = _positions("inputs", inputs, len(total))
        names = [f"input {i}, output {k}" for i in rows for k in columns]
    if len(names) > _MOST_BARS:
        raise ValueError(
            f"There are {len(names)} bars; choose some of the outputs with `outputs=`, at most "
            f"{_MOST_BARS} in all."
        )
    # (sources, bars) and (bars,)
    bars, stds = (t[..., rows, :][..., columns].flatten(-2) for t in (shares, total.sqrt()))
    order = bars.mean(1).argsort(descending=True, stable=True).tolist()
    parts = []
    for i in order[:top]:
        name, kind = budget.names[i], budget.kinds[i]
        parts.append((f"{kind} {name}" if kind in ("input", "dropout") else name, bars[i]))
    if len(order) > top:
        parts.append((f"other ({len(order) - top})", bars[order[top:]].sum(0)))
    ax, theme = prepared(ax, size=(6.4, 1.9 + 0.32 * len(names)))
    left = np.zeros(len(names))
    for index, (source, part) in enumerate(parts):
        mark = theme.mark(index)
        color, hatch = (theme.muted, "--") if index == top else (mark.color, mark.hatch)
        for bar in ax.barh(range(len(part)), part.numpy(), 0.7, left, label=source):
            bar.set(facecolor=color, hatch=hatch, edgecolor=theme.background, linewidth=0.8)
        left = left + part.numpy()
    for place, std in enumerate(stds.tolist()):
        ax.text(1.01, place, f"std {std:.3g}", va="center", fontsize=SMALL, color=theme.ink)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "ncols": 2}
    finish(ax, "share of the variance", "", **above).grid(visible=False, axis="y")
    return ax


def _positions(name: str, chosen: Chosen, count: int) -> list[int]:
    positions = range(count) if chosen is None else [chosen] if isinstance(chosen, int) else chosen
    if not (len(positions) and all(0 <= i < count for i in positions)):
        raise ValueError(f"`{name}` is {chosen}; give positions from 0 to {count - 1}.")
    return list(positions)
