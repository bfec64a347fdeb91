"""One road with the predicted angle, its interval and the driver's angle drawn over it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from howsure_lab.demo.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which readers with any color vision can tell apart.
ORANGE, VERMILLION = "#E69F00", "#D55E00"
_REACH = 1.96  # stds: 95 %
_LENGTH = 0.72  # of the lines, as a share of the image height


def draw_road(ax: Axes, outcome: Outcome, i: int) -> Axes:
    """What the camera reads, and the angles, seen from the car: up is straight ahead."""
    image = outcome.pairs.x[i, 0].clamp(0, 1).numpy()
    mean, std, true = (float(values[i]) for values in (outcome.mean, outcome.std, outcome.true))
    side = image.shape[0]
    ax.imshow(image, cmap="gray", vmin=0, vmax=1, extent=(-side / 2, side / 2, 0, side))
    _draw_wedge(ax, mean, _REACH * std, _LENGTH * side)
    _draw_line(ax, mean, _LENGTH * side, dashed=False)
    _draw_line(ax, true, 0.94 * _LENGTH * side, dashed=True)
    ax.set(xlim=(-side / 2, side / 2), ylim=(0, side), xticks=[], yticks=[])
    missed = abs(true - mean) > _REACH * std
    words = f"{_signed(mean)} ± {std:.2f}\ndriver {_signed(true)}"
    ax.set_xlabel(f"{words}, missed" if missed else words, fontsize=9.5)
    ax.spines[:].set(color=VERMILLION if missed else "black", linewidth=3 if missed else 0.8)
    return ax


def _signed(angle: float) -> str:
    """Two digits with a sign; 0.00 has a plus, whatever was rounded away."""
    return f"{round(angle, 2) + 0.0:+.2f}"


def _draw_wedge(ax: Axes, mean: float, reach: float, length: float) -> None:
    from matplotlib.patches import Wedge

    # Angles are measured from straight ahead to the right, matplotlib's from the right to the left.
    center, half = 90 - math.degrees(mean), math.degrees(reach)
    ends = (center - half, center + half)
    ax.add_patch(Wedge((0, 0), length, *ends, facecolor=ORANGE, alpha=0.4))
    ax.add_patch(Wedge((0, 0), length, *ends, facecolor="none", edgecolor="black", linewidth=0.8))


def _draw_line(ax: Axes, angle: float, length: float, *, dashed: bool) -> None:
    """A bright line on a black one, which is seen on any road."""
    x, y = [0, length * math.sin(angle)], [0, length * math.cos(angle)]
    ax.plot(x, y, color="black", linewidth=3.4)
    color, dashes = ("white", (0, (3, 2))) if dashed else (ORANGE, "-")
    ax.plot(x, y, color=color, linewidth=2, linestyle=dashes)


def draw_key(figure: Figure) -> None:
    """What the wedge and the lines mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries = [
        (Line2D([], [], color=ORANGE, linewidth=3), "network"),
        (Patch(facecolor=ORANGE, alpha=0.45, edgecolor="black"), "95 % interval by howsure"),
        (Line2D([], [], color="black", linewidth=2, linestyle=(0, (3, 2))), "driver (true)"),
        (Patch(facecolor="none", edgecolor=VERMILLION, linewidth=2.5), "missed: outside"),
    ]
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
