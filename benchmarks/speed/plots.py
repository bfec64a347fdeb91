"""The pictures of the benchmarks' page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import load_cases

# Colors that people who see few of them can tell apart (Okabe & Ito).
_COLORS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#7F7F7F")
# The same method has the same color in every picture; the first of these that is in its name.
_COLOR_OF = {
    "gradients": _COLORS[0],
    "Monte Carlo": _COLORS[1],
    "linear": _COLORS[2],
    "chunk": _COLORS[5],
    "sampled": _COLORS[3],
    "T = 20": _COLORS[3],
    "ADF": _COLORS[4],
}

# Errors below that of Monte Carlo cannot be told from 0.
_LEAST_ERROR = 0.003


def write(folder: Path, images: Path) -> list[str]:
    """Writes what there are results for; the names of the pictures."""
    written = []
    for name, draw, kind in (
        ("time_to_accuracy", _time_to_accuracy, "time_to_accuracy"),
        ("bench_peers", _peers, "peers"),
        ("bench_growth", _growth, "growth"),
    ):
        cases = load_cases(folder, kind)
        if cases:
            images.mkdir(parents=True, exist_ok=True)
            draw(cases, images / f"{name}.png")
            written.append(name)
    return written


def _figure(width: float, height: float, columns: int, rows: int = 1) -> tuple[Any, Any]:
    """A figure and its panels by row and column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _time_to_accuracy(cases: dict[str, Any], path: Path) -> None:
    """Error over cost, both logarithmic: a column for each network, a row for each noise."""
    figure, panels = _figure(3.1 * len(cases), 6.2, len(cases), rows=2)
    for column, (name, case) in enumerate(cases.items()):
        for row, (noise, own) in enumerate(case["noise"].items()):
            axes = panels[row][column]
            _curves(axes, case, own)
            axes.set_title(f"{name}\n{noise}" if row == 0 else noise, fontsize=10)
            axes.set_xlabel("plain forward passes" if row == 1 else "")
    for row in panels:
        row[0].set_ylabel("error of the std, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=130)


def _curves(axes: Any, case: dict[str, Any], own: dict[str, Any]) -> None:
    """The methods on one network with one noise, and a star at what `auto` picks."""
    for method, errors in own["errors"].items():
        costs = [time / case["plain_seconds"] for time in case["seconds"][method]]
        percent = [100 * max(error, _LEAST_ERROR) for error in errors]
        style = "o-" if len(costs) > 1 else "D"
        axes.plot(costs, percent, style, color=_COLOR_OF[method], ms=5, label=method)
        if method == "gradients":
            for count, x, y in zip(case["settings"][method], costs, percent, strict=True):
                axes.annotate(str(count), (x, y), (4, 4), textcoords="offset points", fontsize=7)
        if method == own["auto"] and own["auto_setting"] in case["settings"][method]:
            place = case["settings"][method].index(own["auto_setting"])
            axes.plot(costs[place], percent[place], "*", color="black", ms=13, zorder=3)
    axes.plot([], [], "*", color="black", ms=11, label="picked by auto", lw=0)
    _on_log_scales(axes)


def _on_log_scales(axes: Any) -> None:
    """Both axes logarithmic with plain numbers, and a line at 5 %."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(5, color="black", lw=0.8, ls="--")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", rotation=45)
    axes.grid(lw=0.3, alpha=0.6)


def _peers(cases: dict[str, Any], path: Path) -> None:
    """Error over cost, both logarithmic: a panel for each network with noise or dropout."""
    shown = {n: case for n, case in cases.items() if not n.startswith("weights")}
    columns = 4
    rows = -(-len(shown) // columns)
    figure, panels = _figure(3.4 * columns, 3.3 * rows + 0.8, columns, rows)
    flat = [axes for row in panels for axes in row]
    for axes in flat[len(shown) :]:
        axes.set_axis_off()
    labels: dict[str, Any] = {}
    for axes, (name, case) in zip(flat, shown.items(), strict=False):
        _contest(axes, case["ways"])
        axes.set_title(name.replace(": ", "\n"), fontsize=10)
        labels |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    for row in panels:
        row[0].set_ylabel("error of the std, %")
    for axes in panels[-1]:
        axes.set_xlabel("plain forward passes")
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=130)


# Who is drawn how: by the first of these with which a way's name begins.
_MARKS = {
    "howsure, gradients": ("o-", 0),
    "howsure, by default": ("*", 0),
    "howsure, ADF": ("s", 4),
    "howsure, linear": ("d", 0),
    "howsure, 200 samples": ("h", 0),
    "howsure": ("P", 0),
    "Monte Carlo": ("o-", 1),
    "distprop": ("D", 2),
    "torch-adf, covariances": ("X", 3),
    "torch-adf": ("^", 3),
    "torch-uncertainty, 20 masks at once": ("<", 5),
    "torch-uncertainty": ("v", 5),
}


def _contest(axes: Any, ways: dict[str, dict[str, float]]) -> None:
    """All ways of one network; those that differ in the number of points are one line."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for way, found in ways.items():
        who = next(start for start in _MARKS if way.startswith(start))
        place = (found["cost"], 100 * max(found["error"], _LEAST_ERROR))
        lines.setdefault(who if "-" in _MARKS[who][0] else way.split(":")[0], []).append(place)
    for label, places in lines.items():
        style, color = _MARKS[next(start for start in _MARKS if label.startswith(start))]
        x, y = zip(*sorted(places), strict=True)
        axes.plot(x, y, style, color=_COLORS[color], ms=7, label=label, alpha=0.85)
    _on_log_scales(axes)


def _growth(cases: dict[str, Any], path: Path) -> None:
    """Time over size, both logarithmic, one panel for each thing that grows, with exponents."""
    from matplotlib.ticker import LogLocator

    figure, (panels,) = _figure(2.9 * len(cases), 3.6, len(cases))
    for axes, case in zip(panels, cases.values(), strict=True):
        for method, own in case["methods"].items():
            color = next(c for start, c in _COLOR_OF.items() if start in method)
            label = f"{method}: {own['exponent']:.2f}"
            times = [1000 * each for each in own["seconds"]]
            front = 3 if method == "gradients" else 2
            axes.plot(case["sizes"], times, "o-", color=color, label=label, ms=4, zorder=front)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(case["sizes"], [f"{size:,}" for size in case["sizes"]], rotation=45)
        axes.minorticks_off()
        # A cost that does not grow is a flat line, not the noise of its clock.
        low, high = axes.get_ylim()
        axes.set_ylim(low / 2, high * 2)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(case["what"], fontsize=10)
        axes.set_xlabel(case["unit"])
        axes.grid(lw=0.3, alpha=0.6)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.34), frameon=False)
    panels[0].set_ylabel("ms")
    figure.savefig(path, dpi=130, bbox_inches="tight")
