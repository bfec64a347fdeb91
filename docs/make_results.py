"""Writes docs/results.md from the committed results, and takes over those of new runs.

    python docs/make_results.py                     # writes the page anew
    python docs/make_results.py --add out/steering  # first takes over that run
    python docs/make_results.py --lines out/steering  # only its lines that are not there yet
    python docs/make_results.py --lines out/steering --again gradients  # these in place of old ones

Every number of the page comes from a file in results/, which has the command, the seeds, the
settings, the versions and the date. What results/reading.md says of them are lookups, such as
`{steering gradients night nll}`, which `result_figures.py` explains and fills in.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from howsure.files import write_atomically
from howsure_lab.experiments.runs import PICTURE, write_json

sys.path.insert(0, str(Path(__file__).parent))

from result_figures import Figures, figures, filled

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
IMAGES = ROOT / "docs" / "img"
PAGE = ROOT / "docs" / "results.md"
READING = RESULTS / "reading.md"
SHIFT = ROOT / "benchmarks" / "results" / "shift.json"

TITLES = {
    "steering": "Steering (Table I)",
    "motion": "Future motion (Table II)",
    "recognition": "Recognition (Table III)",
    "sensitivity": "Wrong noise (Table S1)",
    "runtime": "Run time (Fig. 7)",
    "uci": "UCI regression",
    "quadrotor": "Quadrotor (Table IV)",
    "raptor": "A quadrotor policy that others trained",
}
FIGURES = ("compared", "gallery", "arrows", "runtime", "paths", "regimes", "commands")
_TABLES = {
    "raptor": "howsure_lab.experiments.raptor.report",
    "quadrotor": "howsure_lab.experiments.quadrotor.report",
    "steering": "howsure_lab.experiments.steering.report",
    "motion": "howsure_lab.experiments.motion.report",
    "recognition": "howsure_lab.experiments.recognition.run",
    "sensitivity": "howsure_lab.experiments.sensitivity",
    "runtime": "howsure_lab.experiments.runtime",
    "uci": "howsure_lab.experiments.uci.run",
}
# Methods that there are no more; what is added takes their place.
_GONE = ("adjoint", "adjoint_tau")
_LINES = ("lines", "real", "assumed")
_FLOOR, _AGAIN = "constant", "constant_again"
# Processors round differently, and few networks come out quite the same: NLL agree to the digits
# of the tables.
_SAME = 0.01
HEAD = """\
# Results

The paper's experiments, repeated. Every number comes from a file in `results/`, with its command,
seeds, settings, versions and date; `docs/make_results.py` writes this page from them. Embedded runs
need no download; runs on real data say so. With more than one seed a cell is mean ± standard
deviation over seeds. Quick runs have one seed and few images: they show that the command works, and
differences between methods in them mean little.
"""


def main() -> int:
    """Writes the page; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="folders of runs")
    parser.add_argument("--lines", type=Path, nargs="*", default=[], help="folders of runs")
    parser.add_argument("--again", nargs="*", default=[], help="methods whose lines give way")
    asked = parser.parse_args()
    for folder in asked.add:
        add(folder)
    for folder in asked.lines:
        add_lines(folder, asked.again)
    text = page(sorted(RESULTS.glob("*.json")))
    write_atomically(PAGE, lambda file: file.write(text), text=True)
    print(f"Wrote {PAGE.relative_to(ROOT)}")
    return 0


def add(folder: Path) -> None:
    """Copies a run's results and figures into the repository."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    RESULTS.mkdir(exist_ok=True)
    shutil.copyfile(folder / "results.json", RESULTS / f"{results['name']}.json")
    for figure in folder.glob("*.png"):
        shutil.copyfile(figure, IMAGES / f"{results['name']}-{figure.name}")


def add_lines(folder: Path, again: Sequence[str] = ()) -> None:
    """Puts a run's lines of new methods beside committed ones, and draws the picture of all.

    What was committed stays as it is, but for the methods that were run `again`. A line says by
    `added` which run it comes from. Where networks were trained again, the constant variance of
    these is a line, too.
    """
    run = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    path = RESULTS / f"{run['name']}.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    if _settings(run) != _settings(known):
        raise ValueError(f"`{folder}` has other settings than `{path.name}`; use `--add`.")
    merged = with_lines(known, run, again)
    write_json(path, merged)
    module(run["task"]).draw(merged, IMAGES / f"{run['name']}-{PICTURE}")
    for figure in folder.glob("gallery.png"):
        shutil.copyfile(figure, IMAGES / f"{run['name']}-{figure.name}")


def _settings(run: dict[str, Any]) -> Any:
    """What lines depend on: all settings but the lists of methods."""

    def kept(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: kept(each) for key, each in value.items() if key != "methods"}

    return kept(run["settings"])


def with_lines(
    known: dict[str, Any], run: dict[str, Any], again: Sequence[str] = ()
) -> dict[str, Any]:
    """The committed results with the lines of a run that they do not have, or that are made again.

    An addition whose lines were all replaced stays in the list, since lines say their place in it.
    """
    gone = {*_GONE, *again}
    order = list(module(known["task"]).LABELS)
    about = {name: run[name] for name in ("command", "environment")}
    additions = [*known.get("additions", []), about]
    merged = {**known, "additions": additions}
    for key in (key for key in _LINES if key in known):
        found = [line for line in known[key] if line["method"] not in gone]
        new = _new_lines(found, run[key])
        found += [{**line, "added": len(additions) - 1} for line in new]
        merged[key] = sorted(found, key=lambda line: _rank(line["method"], order))
    return merged


def _new_lines(known: list[Any], lines: list[Any]) -> list[Any]:
    """The lines of methods that are not known; and the floor of networks that are not."""
    methods = {line["method"] for line in known}
    new = [line for line in lines if line["method"] not in methods]
    floors = [line for line in known if line["method"] in (_FLOOR, _AGAIN)]
    unknown = [
        {**line, "method": _AGAIN}
        for line in lines
        if line["method"] == _FLOOR and floors
        if not any(_place(line) == _place(each) and _agree(line, each) for each in floors)
    ]
    return [*unknown, *new]


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(key) for key in ("data", "split", "seed"))


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two lines have the same NLL, under every condition."""
    found, wanted = (dict(_likelihoods(line["scores"])) for line in (one, other))
    return all(abs(found[key] - wanted[key]) <= _SAME for key in wanted)


def _likelihoods(scores: dict[str, Any], name: str = "") -> Iterator[tuple[str, float]]:
    for key, value in scores.items():
        if isinstance(value, dict):
            yield from _likelihoods(value, f"{name}{key} ")
        elif "nll" in key:
            yield name + key, value


def _rank(method: str, order: Sequence[str]) -> float:
    """The place of a method's line: as its label; the floor again before what is added."""
    first = order.index("gradients_dropout")
    return first - 0.5 if method == _AGAIN else order.index(method)


def module(task: str) -> Any:
    """The module with a task's tables and picture."""
    return import_module(_TABLES[task])


def page(files: list[Path]) -> str:
    """The whole page: one part per task, real data and full runs first."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    parts = [HEAD, filled(READING.read_text(encoding="utf-8"), known(runs))]
    for task, title in TITLES.items():
        found = [run for run in runs if run["task"] == task]
        if found:
            parts.append(f"## {title}\n")
            parts += [section(run) for run in sorted(found, key=_order)]
    return "\n".join(part for part in parts if part)


def known(runs: Sequence[dict[str, Any]]) -> Figures:
    """The figures of all runs and of the benchmark that the reading compares them with."""
    shift = json.loads(SHIFT.read_text(encoding="utf-8"))
    lines = [
        {"data": data, "seed": seed, "scores": scores}
        for data, part in shift.items()
        for seed, scores in enumerate(part["scores"])
    ]
    every = [*runs, {"name": "shift", "lines": lines}]
    return {key: values for run in every for key, values in figures(run).items()}


def _order(run: dict[str, Any]) -> tuple[bool, bool]:
    return "quick" in run["name"], "real" not in run["name"]


def section(run: dict[str, Any]) -> str:
    """One run: how it was made, its tables, its figures."""
    data = "real data" if "-real" in run["name"] else "embedded data"
    size = "quick" if "-quick" in run["name"] else "full"
    about = [f"{_made(run)} Source: `results/{run['name']}.json`.\n"]
    for index, addition in enumerate(run.get("additions", [])):
        lines = [line for key in _LINES for line in run.get(key, ()) if line.get("added") == index]
        names = dict.fromkeys(module(run["task"]).LABELS[line["method"]] for line in lines)
        if names:
            about.append(f"Added later, *{'*, *'.join(names)}*: {_made(addition)}\n")
    tables = module(run["task"]).tables(run)
    inner = [table.replace("### ", "#### ") for table in tables]
    drawn = [IMAGES / f"{run['name']}-{figure}.png" for figure in FIGURES]
    figures = [f"![{path.stem}](img/{path.name})\n" for path in drawn if path.is_file()]
    title = f"### {data.capitalize()}, {size} run\n"
    return "\n".join([title, *about, *inner, *figures])


def _made(run: dict[str, Any]) -> str:
    """The command with versions, date and hardware."""
    made = run["environment"]
    return (
        f"`{run['command']}`, {made['date']}, howsure {made['packages'].get('howsure')}, torch "
        f"{made['packages'].get('torch')}, {made['hardware']['processor']}, "
        f"{made['hardware']['threads']} thread."
    )


if __name__ == "__main__":
    sys.exit(main())
