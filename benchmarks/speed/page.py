"""The page of the benchmarks, written from their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import DOCS, RESULTS, load_cases, markdown, number

from howsure.files import write_atomically
from speed import peer_page, plots
from speed.cases import SPEED_CASES
from speed.networks import FOLDED, KINDS, PLAIN

_HEAD = """\
# Benchmarks

How long a prediction takes, in plain forward passes of the same network. `make bench` measures it
and writes this page; the numbers are in `benchmarks/results/`. One thread, float32. All variants
are interleaved in one process; we report the fastest run of each. Weights are random, scaled so
that activations have a typical size; otherwise speed does not depend on them. Cost says little
without accuracy: `python benchmarks/time_to_accuracy.py --data PATH` measures both, and
[gradients](gradients.md#accuracy-on-real-networks) has the accuracy on trained networks.

"""


_CAPTIONS = {
    "time_to_accuracy": "Error of the std over time for gradients and Monte Carlo, by network",
    "bench_peers": "Error of the std over cost for howsure, Monte Carlo and peers, by network",
    "bench_growth": "Time over samples, batch, resolution, depth and outputs",
}


def publish(folder: Path) -> None:
    """The page of the committed results; that of other folders stays beside them."""
    own = folder.resolve() == RESULTS
    write(folder, (DOCS if own else folder) / "benchmarks.md", DOCS / "img" if own else folder)


def write(folder: Path, page: Path, images: Path) -> None:
    """Writes the page and its pictures from the results in a folder."""
    written = plots.write(folder, images)
    where = "img/" if images.name == "img" else ""
    pictures = {
        name: f"![{caption}]({where}{name}.png)\n\n" if name in written else ""
        for name, caption in _CAPTIONS.items()
    }
    reading = folder / "reading.md"  # by hand: what the figures mean
    parts = [_HEAD, _measured_with(folder)]
    parts += [_time_to_accuracy(folder, pictures["time_to_accuracy"])]
    parts += [peer_page.text(folder, pictures["bench_peers"])]
    parts += [_must_hold(folder), reading.read_text() if reading.exists() else ""]
    parts += [_speed(folder), _textbook(folder), _growth(folder, pictures["bench_growth"])]
    text = "\n".join(part for part in parts if part).rstrip() + "\n"
    write_atomically(page, lambda file: file.write(text), text=True)


def _table(header: list[str], rows: list[list[str]]) -> str:
    return markdown(header, rows, wide=True) + "\n"


def _measured_with(folder: Path) -> str:
    path = folder / "speed.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text())
    here, cases = found["environment"], found["cases"].values()
    days = sorted({case["date"] for case in cases})
    quick = " **A quick run: two rounds, few cases.**" if any(c["quick"] for c in cases) else ""
    return (
        f"Measured on {' to '.join(dict.fromkeys((days[0], days[-1])))} with torch "
        f"{here['packages']['torch']}, Python {here['python']}, "
        f"{here['hardware']['processor']}.{quick}\n"
    )


def _time_to_accuracy(folder: Path, picture: str) -> str:
    cases = load_cases(folder, "time_to_accuracy")
    if not cases:
        return ""
    return (
        "## Time to accuracy\n\nThe picture shows cost and accuracy for one "
        "input on one thread: the root mean square error of the log std against Monte Carlo, over "
        "the median time in plain forward passes. Monte Carlo runs all samples as one batch. A "
        'star marks what `method="auto"` picks.\n\n'
        + picture
        + "The table says when the std is within 5 %, in plain forward passes, and the error of "
        "the default number of points. DroNet has its authors' weights, LSTM and MLP are trained, "
        "the others have random weights (`benchmarks/time_to_accuracy.py`).\n\n"
        + time_to_accuracy(cases)
    )


def time_to_accuracy(cases: dict[str, Any]) -> str:
    """When each method is within 5 %, as a Markdown table."""
    header = ["", "noise", "gradients: 5 % after", "Monte Carlo: 5 % after", "8 points: error"]
    header += ["8 points: cost", "linear: error", "ADF: error", "`auto` picks", "first to 5 %"]
    rows = []
    for name, case in cases.items():
        plain = case["plain_seconds"]
        default = case["settings"]["gradients"].index(8)
        for noise, own in case["noise"].items():
            reached, errors = own["seconds_to_precise"], own["errors"]
            after = [None if t is None else t / plain for t in reached.values()]
            cells = [number(each) if each else "never" for each in after]
            cells += [_percent(errors["gradients"][default])]
            cells += [number(case["seconds"]["gradients"][default] / plain)]
            cells += [_percent(errors[method][0]) for method in ("linear", "ADF")]
            cells += [f"{own['auto']}, {own['auto_setting']}", "yes" if own["holds"] else "**no**"]
            rows.append([name, noise, *cells])
            name = ""
    return _table(header, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _must_hold(folder: Path) -> str:
    if not (folder / "must_hold.json").exists():
        return ""
    rows = json.loads((folder / "must_hold.json").read_text())["rows"]
    marks = {True: "yes", False: "no", None: "not measured"}
    lines = [
        [
            row["row"],
            number(row["figure"]),
            row["target"].replace("<=", "≤").replace(">=", "≥"),
            marks[row["reached"]],
        ]
        for row in rows
    ]
    return "## Targets\n\n" + _table(["", "figure", "target", "reached"], lines)


def _speed(folder: Path) -> str:
    found = load_cases(folder, "speed")
    if not found:
        return ""
    # Cases lie in the order in which they were measured; those of no known name come last.
    order = {name: place for place, name in enumerate(SPEED_CASES)}
    cases = dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))
    parts = ["## Plain forward passes per prediction\n"]
    parts.append(
        "Cost alone; for accuracy see above and [gradients](gradients.md). The first number is "
        "eager, the second compiled, where it was. ADF is the paper's single pass, T = 20 its "
        "sampling. The gradients are those of one output, or of ten where the name says so; with "
        "noise and dropout they take 16 points. The 20 samples of the noise run as one batch.\n"
    )
    header = ["", "plain, ms", "folded, compiled", *KINDS]
    speeds, memory = [], []
    for name, case in cases.items():
        ratios, peaks = case["ratio_to_plain"], case["peak_bytes"]
        milliseconds = number(1000 * case["seconds"][PLAIN])
        cells = [_both(ratios, kind) for kind in KINDS]
        speeds.append([name, milliseconds, number(ratios.get(FOLDED)), *cells])
        memory.append([name, number(peaks[PLAIN] / 1e6), *(_both(peaks, k, 1e6) for k in KINDS)])
    parts.append(_table(header, speeds))
    parts.append(
        "### Memory\n\nThe most that tensors take at one time beyond weights and input, in MB.\n\n"
        + _table(["", "plain", *KINDS], memory)
    )
    return "\n".join([*parts, _left_out(cases)])


def _both(values: dict[str, float], kind: str, unit: float = 1.0) -> str:
    """Eager and compiled, where there is one."""
    modes = (values.get(f"{kind}, {mode}") for mode in ("eager", "compiled"))
    return " / ".join(number(value / unit) for value in modes if value is not None) or "–"


def _left_out(cases: dict[str, Any]) -> str:
    lines = []
    for name, case in cases.items():
        out = {k: why for k, why in case["left_out"].items() if k != FOLDED}
        if out:
            lines.append(f"- {name}: " + "; ".join(f"{kind} ({why})" for kind, why in out.items()))
    return "Left out because they take too long:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _textbook(folder: Path) -> str:
    rows = []
    for name, case in load_cases(folder, "textbook").items():
        for other, faster in case["times_faster"].items():
            ratios, compiled = case["ratio_to_plain"], case.get("times_faster_compiled", {})
            both = [(ratios["howsure"], ratios.get("howsure, compiled"))]
            both += [(faster, compiled.get(other))]
            cells = (" / ".join(number(each) for each in pair if each is not None) for pair in both)
            rows.append([name, number(ratios[other]), *cells])
    if not rows:
        return ""
    header = ["T = 20", "plain forwards, textbook", "howsure", "times faster"]
    return (
        "## Against the textbook\n\nA textbook implementation of the paper's method "
        "(`benchmarks/textbook.py`): a second network, of layers that take mean and "
        "variance, and a loop over samples. The first number is eager, the second compiled.\n\n"
        + _table(header, rows)
    )


def _growth(folder: Path, picture: str) -> str:
    cases = load_cases(folder, "growth")
    rows = [
        [case["what"], method, number(own["exponent"]), number(own["memory_exponent"])]
        for case in cases.values()
        for method, own in case["methods"].items()
    ]
    if not rows:
        return ""
    text = "## Growth\n\nThe exponent of a power law fitted to times, and to memory: 1 is linear. "
    text += "Resolution is counted in pixels. The legends give the exponents of time.\n\n"
    return text + picture + _table(["what grows", "method", "time", "memory"], rows)
