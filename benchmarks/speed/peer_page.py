"""The part of the page that holds howsure against its peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import load_cases, markdown, number

_INSTALL = """\
```
python3 -m venv .venv-peers
.venv-peers/bin/pip install torch==2.13.0
.venv-peers/bin/pip install --no-deps -r benchmarks/requirements-peers.txt -e . -e lab
python benchmarks/run.py --only peers --again --peer-python .venv-peers/bin/python
```
"""
_ABOUT = {
    "sensor noise": (
        "Sensor noise",
        "Each way estimates the std of one output under independent noise on the inputs. "
        "*Error* is the root mean square of the log std against Monte Carlo with 2,000 samples, "
        "over 20 inputs and 4 seeds, less that of Monte Carlo itself; *factor* is the std over "
        "the true one (geometric mean); *rank* is Spearman's. Monte Carlo is the loop that anyone "
        "writes, all samples as one batch, without howsure. `distprop` (stable distribution "
        "propagation) takes the gradients at the input alone, as howsure's `linear` does; "
        "`torch-adf` is the paper's propagation with layers of its own, with variances or with "
        "full covariances.",
    ),
    "dropout": (
        "Dropout",
        "The network's own dropout with rate 0.05, no sensor noise; the truth is 2,000 plain "
        "passes in train mode. `torch-uncertainty` runs MC dropout pass by pass, or all masks as "
        "one batch. ResNet-18 with random weights has nearly the same std for all inputs, so that "
        "its ranks say little.",
    ),
    "weights": (
        "Model uncertainty",
        "One trained perceptron. howsure's posterior over masks and `laplace-torch`'s over weights "
        "(linearized, prior tuned by the marginal likelihood) get the same 500 held-out rows: "
        "howsure in `fit`, the peer for a residual variance and a factor. *NLL* (without "
        "1/2 log 2 pi) and *coverage* of the 95 % intervals are those of 1,000 other rows. *Error* "
        "is that of the peer's std against 2,000 networks drawn from its own posterior; "
        "howsure's variance is fitted to held-out errors and claims no such thing. "
        "[Tables](model.md) compares both on five data sets.",
    ),
}
_COLUMNS = {
    "sensor noise": ("cost", "error", "factor", "rank"),
    "dropout": ("cost", "error", "factor", "rank"),
    "weights": ("cost", "nll", "coverage", "error"),
}
_HEADERS = {"cost": "plain forwards", "nll": "NLL"}
_LIMITS = (0.1, 0.05)


def text(folder: Path, picture: str) -> str:
    """The section, from peers.json; empty without it."""
    cases = load_cases(folder, "peers")
    if not cases:
        return ""
    parts = [_head(folder, cases), picture]
    for kind, (title, about) in _ABOUT.items():
        own = {n.split(": ")[1]: case for n, case in cases.items() if n.startswith(kind)}
        if own:
            parts += [f"### {title}\n\n{about}\n\n{_table(own, _COLUMNS[kind])}", _left_out(own)]
    parts.append(_cheapest(cases))
    return "\n".join(part for part in parts if part)


def _cheapest(cases: dict[str, Any]) -> str:
    """Who is first to be so close to Monte Carlo, and what howsure takes for it."""
    rows, factors = [], []
    for name, case in cases.items():
        cells = []
        for limit in _LIMITS:
            close = {w: f["cost"] for w, f in case["ways"].items() if f.get("error", 1) <= limit}
            ours = {way: cost for way, cost in close.items() if way.startswith("howsure")}
            for found in (close, ours):
                best = min(found, key=lambda way: found[way], default=None)
                cells.append("–" if best is None else f"{best}: {number(found[best])}")
            if ours and not name.startswith("weights"):
                factors.append(min(ours.values()) / min(close.values()))
        if not name.startswith("weights"):
            rows.append([name, *cells])
    header = [text for limit in _LIMITS for text in (f"within {100 * limit:.0f} %", "howsure")]
    behind = [factor for factor in factors if factor > 1]
    span = f"{min(behind):.2f} to {max(behind):.2f}" if behind else ""
    others = f"; in the others it takes {span} times as long" if behind else ""
    return (
        "### The cheapest way\n\nThe cheapest of the ways above whose error is at most 10 % and at "
        "most 5 %, with its cost in plain forwards; and that of howsure.\n\n"
        + markdown(["", *header], rows, wide=True)
        + "\n\n"
        + f"howsure is the cheapest way in {len(factors) - len(behind)} of {len(factors)} "
        + f"cells{others}. "
        + "Where 10 % is enough and the network nearly linear over its noise, one gradient at the "
        "input is cheapest. `distprop` is that alone; howsure's `linear` also looks in its first "
        "call whether the tangent holds, and in every call whether the model is still the same and "
        "its outputs are numbers. On networks whose forward pass takes a tenth of a millisecond "
        "these checks cost more than Monte Carlo by hand.\n"
    )


def _head(folder: Path, cases: dict[str, Any]) -> str:
    found = json.loads((folder / "peers.json").read_text())
    versions = ", ".join(
        f"{name} {v}" for name, v in next(iter(cases.values()))["versions"].items()
    )
    days = sorted({case["date"] for case in found["cases"].values()})
    return (
        "## Against peers\n\nCost and accuracy of howsure, of Monte Carlo and of four packages "
        f"({versions}), measured on {' to '.join(dict.fromkeys((days[0], days[-1])))} beside other "
        "work on the machine. All calls of a table's network take turns in one process on one "
        "input, and the shortest processor time of each counts, in plain forward passes of the "
        "same network. MLP, LSTM, the plain CNN and DroNet (the small one of the laboratory, on "
        f"rendered roads) are trained, ResNet-18 has random weights. Made by\n\n{_INSTALL}"
    )


def _table(cases: dict[str, Any], columns: tuple[str, ...]) -> str:
    rows = []
    for name, case in cases.items():
        shown = name
        for way, found in case["ways"].items():
            rows.append([shown, way, *(_cell(column, found.get(column)) for column in columns)])
            shown = ""
    header = ["", "way", *(_HEADERS.get(each, each) for each in columns)]
    return markdown(header, rows, wide=True) + "\n"


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "–"
    if column in ("error", "coverage"):
        return f"{100 * value:.1f} %"
    return number(value) if column == "cost" else f"{value:.2f}"


def _left_out(cases: dict[str, Any]) -> str:
    """Which peers cannot run on what, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, case in cases.items():
        for way, why in case["left_out"].items():
            key = (way.split(",")[0], why)
            reasons.setdefault(key, []).append(name)
    lines = [
        f"- {peer} does not run on {'; '.join(dict.fromkeys(names))}: {why}."
        for (peer, why), names in reasons.items()
    ]
    return "\n".join(lines) + "\n" if lines else ""
