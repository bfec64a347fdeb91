"""The tables and the figure of a RAPTOR run, made from its results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from howsure_lab.experiments.figures import COLORS, new_figure, save
from howsure_lab.experiments.raptor.policy import MOTORS
from howsure_lab.experiments.tables import Column, Summary, by_method, cells, markdown

CASES = {"flight": "flight", "example": "the package's example"}
_COLUMNS = (
    Column("mean_std", "mean std"),
    Column("ratio", "ratio"),
    Column("log_error", "log error"),
    Column("rank", "rank"),
    Column("within", "within 2 standard errors", 2),
)


def tables(results: Mapping[str, Any]) -> list[str]:
    """The page's parts: the std against Monte Carlo, where it comes from, and how to read it."""
    lines = by_method(results["lines"], lambda line: line, "case")
    commands = []
    for case, label in CASES.items():
        about = [f"`{lines[case][0]['method']}`", str(lines[case][0]["points"])]
        commands.append([label, *about, *cells(lines[case], _COLUMNS)])
    shares = [
        [sensor, f"{std:g}"]
        + [Summary.of(line["shares"][sensor] for line in lines[case]).text(2) for case in CASES]
        for sensor, std in results["settings"]["noise_std"].items()
    ]
    return [
        "### Motor commands\n",
        markdown(["inputs", "method", "points", *(c.heading for c in _COLUMNS)], commands),
        "### Variance by sensor\n",
        markdown(["sensor", "noise's std", *CASES.values()], shares),
        reading(results),
    ]


def reading(results: Mapping[str, Any]) -> str:
    """How the numbers were made."""
    settings = results["settings"]
    # The mean |log ratio| of exact stds: sqrt(2/pi) times the relative standard error.
    own = 1 / math.sqrt(math.pi * settings["samples"])
    rmse = Summary.of(results["rmse"]).text(3)
    return f"""\
The policy of Eschmann et al. 2025 as `pip install foundation-policy` ships it: 22 readings, a GRU,
four motor commands from -1 to 1. It was trained elsewhere for other vehicles and flies the
laboratory's quadrotor as it is: from a tilted start to the origin, then a figure of eight at
{settings["plan"]["speed"]:g} m/s, with sensor noise in the loop (RMSE {rmse} m). At every
{settings["every"]}th step the std of its commands comes from `Uncertain(policy, noise)` with
default settings, for independent noise in the last {settings["length"]} readings, and from Monte
Carlo with {settings["samples"]} samples. Ratio: median of std / Monte Carlo over points and motors.
Log error: mean |log ratio|; Monte Carlo's own error makes {own:.3f} of it. The last column is the
share of stds that differ by less than two standard errors; 0.95 would be ideal. The example in the
package is not a flight but standard normal numbers, far from any real reading. Noise moves
readings, not the vehicle: the std is that of a command for one history of readings, not of a
flight. The last command is among the readings; a motor driver reports it with a small error.
"""


_COLORS = [COLORS[index] for index in (0, 1, 4, 6)]
_DOT = {"linestyle": "none", "marker": "o", "markersize": 3}


def draw_figures(series: Mapping[str, object], folder: Path) -> None:
    """Writes commands.png: the first motor's command with its band, and all stds both ways."""
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
    save(figure, folder / "commands.png")
