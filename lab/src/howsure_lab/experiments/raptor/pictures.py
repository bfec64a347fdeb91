"""The figure of a RAPTOR run: a command with its band, and stds against Monte Carlo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from howsure_lab.experiments.figures import COLORS, new_figure, save
from howsure_lab.experiments.raptor.policy import MOTORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = [COLORS[index] for index in (0, 1, 4, 6)]
_DOT = {"linestyle": "none", "marker": "o", "markersize": 3}


def draw_figures(series: Mapping[str, object], folder: Path) -> None:
    """Writes commands.png."""
    save(commands_figure(series), folder / "commands.png")


def commands_figure(series: Mapping[str, object]) -> Figure:
    """Over a flight's time: the first motor's command with its band, and all stds both ways."""
    figure, axes = new_figure(2, 1, width=9, height=6)
    (band,), (stds,) = axes
    time, command, std, truth = (
        np.array(series[key]) for key in ("time", "command", "std", "monte_carlo")
    )
    for motor, (name, color) in enumerate(zip(MOTORS, _COLORS, strict=True)):
        stds.plot(time, std[:, motor], color=color, linewidth=1, label=name)
        stds.plot(time, truth[:, motor], color=color, **_DOT)
    stds.plot([], [], color="0.4", label="Monte Carlo", **_DOT)
    low, high = (command[:, 0] + sign * 2 * std[:, 0] for sign in (-1, 1))
    band.fill_between(time, low, high, color="0.8", linewidth=0, label="± 2 std")
    band.plot(time, command[:, 0], color=_COLORS[0], linewidth=1, label=MOTORS[0])
    band.set(ylabel="motor command, from -1 to 1")
    stds.set(ylabel="std of the command", xlabel="time, s", ylim=(0, None))
    for ax in (band, stds):
        ax.set_xlim(time[0], time[-1])
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure
