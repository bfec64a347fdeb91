"""The figures that were asked for, and what was reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import load_cases, record

from howsure_lab.experiments.runs import write_json
from speed.cases import CHUNKED, TEXTBOOK

COMMAND = "python benchmarks/run.py"
_COLUMNS = ("ResNet-18, batch 1", "ResNet-18, batch 8", "DroNet, batch 1")
# For each column the most plain forwards, eager and compiled.
_RATIOS = {
    "ADF": ((2.6, 1.5), (3.0, 2.0), (2.5, 1.3)),
    "T = 20, dropout everywhere": ((38, 24), (45, 38), (18, 9)),
}
# The default's cost, batch 1: by network and number of points, eager and compiled.
_GRADIENTS = {
    ("DroNet", 8): (12, 5),
    ("DroNet", 4): (6.5, None),
    ("ResNet-18, 32 x 32", 8): (12, 7.5),
    ("ResNet-18, 32 x 32", 4): (6.5, None),
    ("small ViT, 64 x 64", 8): (13, None),
    ("small ViT, 64 x 64", 4): (8, None),
    ("LSTM", 8): (10, 5),
    ("MLP", 8): (12, 3),
    ("ResNet-20, ten outputs", 8): (55, None),
    ("ResNet-20, ten outputs", 4): (31, None),
}
_SAMPLES = {"MLP": 6, "LSTM": 5, "DroNet": 20}
_TIMES_FASTER = {"ResNet-18, batch 1": 2.5, "DroNet, batch 1": 7}
_MODES = {"eager": "times_faster", "compiled": "times_faster_compiled"}
_EXPONENT = 1.05
_DIFFERENCE = 1e-5
_HALF_DIFFERENCE = 0.01
_MEMORY_EXPONENT = 0.1
_LINEAR = {
    "samples": ("sampled ADF", "gradients"),
    "batch": ("ADF", "T = 20", "gradients"),
}
Row = dict[str, Any]


def rows(folder: Path) -> list[Row]:
    """One row for each figure; `figure` is `None` where it was not measured."""
    parts = (_ratios, costs, _textbook, _growth, _exactness)
    return [row for part in parts for row in part(folder)]


def write(folder: Path) -> list[Row]:
    """Writes must_hold.json from the other results; its rows."""
    found = rows(folder)
    write_json(folder / "must_hold.json", {**record(0, asked=COMMAND), "rows": found})
    return found


def _figure(folder: Path, kind: str, *keys: str) -> float | None:
    """What a kind's results have under these keys."""
    found: Any = load_cases(folder, kind)
    for key in keys:
        found = found.get(key, {})
    return None if found == {} else found


def _row(row: str, figure: float | None, target: float, *, least: bool = False) -> Row:
    """A row whose figure must be at most its target; with `least` at least."""
    reached = None
    if figure is not None:
        reached = figure >= target if least else figure <= target
    sign = ">=" if least else "<="
    return {"row": row, "figure": figure, "target": f"{sign} {target:g}", "reached": reached}


def _forwards(folder: Path, case: str, kind: str, most: float) -> Row:
    figure = _figure(folder, "speed", case, "ratio_to_plain", kind)
    return _row(f"plain forwards: {kind}; {case}", figure, most)


def _ratios(folder: Path) -> list[Row]:
    return [
        _forwards(folder, case, f"{kind}, {mode}", target)
        for kind, columns in _RATIOS.items()
        for case, targets in zip(_COLUMNS, columns, strict=True)
        for mode, target in zip(_MODES, targets, strict=True)
    ]


def costs(folder: Path) -> list[Row]:
    """Of the default, and of samples as one batch."""
    wanted = [
        (network, f"gradients, {points} points, {mode}", most)
        for (network, points), both in _GRADIENTS.items()
        for mode, most in zip(_MODES, both, strict=True)
        if most is not None
    ]
    wanted += [(network, "20 samples, eager", most) for network, most in _SAMPLES.items()]
    return [_forwards(folder, f"{network}, batch 1", kind, most) for network, kind, most in wanted]


def _textbook(folder: Path) -> list[Row]:
    found = []
    for case, target in _TIMES_FASTER.items():
        for mode, field in _MODES.items():
            figure = _figure(folder, "textbook", case, field, TEXTBOOK)
            name = f"times faster than the textbook, T = 20, {mode}; {case}"
            found.append(_row(name, figure, target, least=True))
    return found


def _growth(folder: Path) -> list[Row]:
    found = []
    for what, methods in _LINEAR.items():
        for method in methods:
            figure = _figure(folder, "growth", what, "methods", method, "exponent")
            found.append(_row(f"exponent of time over {what}; {method}", figure, _EXPONENT))
    figure = _figure(folder, "growth", "samples", "methods", CHUNKED, "memory_exponent")
    found.append(_row("exponent of memory over samples, chunk fixed", figure, _MEMORY_EXPONENT))
    return found


def _exactness(folder: Path) -> list[Row]:
    speed, cases = load_cases(folder, "speed"), load_cases(folder, "exactness")
    compiled = [d for case in speed.values() for d in case["difference_of_compiled"].values()]
    exported, half = (
        cases.get(name, {}).get("difference", {}).values()
        for name in ("exported", "bfloat16 variance")
    )
    return [
        _row("relative difference, compiled to eager", max(compiled, default=None), _DIFFERENCE),
        _row("relative difference, exported to eager", max(exported, default=None), _DIFFERENCE),
        _row("relative difference, bfloat16 variance", max(half, default=None), _HALF_DIFFERENCE),
    ]
