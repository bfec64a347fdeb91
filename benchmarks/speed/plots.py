"""The pictures of the benchmarks' page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speed import store
from speed.passes import KINDS

# Colours that people who see few of them can tell apart (Okabe & Ito).
_COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#7F7F7F")


def write(folder: Path, images: Path) -> list[str]:
    """Writes what there are results for; the names of the pictures."""
    written = []
    for name, draw, kind in (
        ("bench_ratio", _ratios, "speed"),
        ("bench_growth", _growth, "growth"),
    ):
        cases = store.load(folder, kind)
        if cases:
            images.mkdir(parents=True, exist_ok=True)
            draw(cases, images / f"{name}.png")
            written.append(name)
    return written


def _figure(width: float, height: float, columns: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _ratios(cases: dict[str, Any], path: Path) -> None:
    """Plain forwards of each pass at batch 1: a mark for eager, a hollow one for compiled."""
    own = {case["network"]: case for case in cases.values() if case["batch"] == 1}
    figure, (axes,) = _figure(9, 0.7 + 0.55 * len(own), 1)
    for row, case in enumerate(own.values()):
        for place, (colour, kind) in enumerate(zip(_COLOURS, KINDS, strict=True)):
            ratios, height = case["ratio_to_plain"], row + 0.1 * (place - 2.5)
            for mode, filled in (("eager", colour), ("compiled", "white")):
                if (value := ratios.get(f"{kind}, {mode}")) is not None:
                    axes.plot(value, height, "o", ms=6, mfc=filled, mec=colour, mew=1.4)
    for colour, kind in zip(_COLOURS, KINDS, strict=True):
        axes.plot([], [], "o", color=colour, label=kind)
    axes.plot([], [], "o", mfc="white", mec="black", label="compiled: hollow")
    axes.set_yticks(range(len(own)), list(own))
    axes.set_ylim(len(own) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("plain eager forward passes, batch 1")
    axes.axvline(1, color="black", lw=0.8)
    axes.grid(axis="x", which="both", lw=0.4, alpha=0.6)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, dpi=130)


def _growth(cases: dict[str, Any], path: Path) -> None:
    """Time over size, both logarithmic, one panel for each thing that grows, with exponents."""
    from matplotlib.ticker import LogLocator

    figure, panels = _figure(2.9 * len(cases), 3.6, len(cases))
    for axes, case in zip(panels, cases.values(), strict=True):
        for colour, (method, own) in zip(_COLOURS, case["methods"].items(), strict=False):
            label = f"{method}: {own['exponent']:.2f}"
            times = [1000 * each for each in own["seconds"]]
            axes.plot(case["sizes"], times, "o-", color=colour, label=label, ms=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(case["sizes"], [f"{size:,}" for size in case["sizes"]], rotation=45)
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(case["what"], fontsize=10)
        axes.set_xlabel(case["unit"])
        axes.grid(lw=0.3, alpha=0.6)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.34), frameon=False)
    panels[0].set_ylabel("ms")
    figure.savefig(path, dpi=130, bbox_inches="tight")
