"""Writes docs/results.md from the committed results, and takes over those of new runs.

    python docs/make_results.py                     # writes the page anew
    python docs/make_results.py --add out/steering  # first takes over that run

Every number of the page comes from a file in results/, which has the command, the seeds, the
settings, the versions and the date.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from howsure.values.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
IMAGES = ROOT / "docs" / "img"
PAGE = ROOT / "docs" / "results.md"
READING = RESULTS / "reading.md"

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
FIGURES = ("curves", "gallery", "arrows", "runtime", "paths", "regimes", "commands")
_TABLES = {
    "raptor": "howsure_lab.experiments.raptor.report",
    "quadrotor": "howsure_lab.experiments.quadrotor.report",
    "steering": "howsure_lab.experiments.steering.report",
    "motion": "howsure_lab.experiments.motion.report",
    "recognition": "howsure_lab.experiments.recognition.run",
    "sensitivity": "howsure_lab.experiments.sensitivity.run",
    "runtime": "howsure_lab.experiments.runtime.run",
    "uci": "howsure_lab.experiments.uci.run",
}
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
    for folder in parser.parse_args().add:
        add(folder)
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


def page(files: list[Path]) -> str:
    """The whole page: one part per task, real data and full runs first."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    reading = READING.read_text(encoding="utf-8") if READING.is_file() else ""
    parts = [HEAD, reading]
    for task, title in TITLES.items():
        found = [run for run in runs if run["task"] == task]
        if found:
            parts.append(f"## {title}\n")
            parts += [section(run) for run in sorted(found, key=_order)]
    return "\n".join(part for part in parts if part)


def _order(run: dict[str, Any]) -> tuple[bool, bool]:
    return "quick" in run["name"], "real" not in run["name"]


def section(run: dict[str, Any]) -> str:
    """One run: how it was made, its tables, its figures."""
    data = "real data" if "-real" in run["name"] else "embedded data"
    size = "quick" if "-quick" in run["name"] else "full"
    made = run["environment"]
    about = (
        f"`{run['command']}`, {made['date']}, howsure {made['packages'].get('howsure')}, torch "
        f"{made['packages'].get('torch')}, {made['hardware']['processor']}, "
        f"{made['hardware']['threads']} thread. Source: `results/{run['name']}.json`.\n"
    )
    tables = import_module(_TABLES[run["task"]]).tables(run)
    inner = [table.replace("### ", "#### ") for table in tables]
    drawn = [IMAGES / f"{run['name']}-{figure}.png" for figure in FIGURES]
    figures = [f"![{path.stem}](img/{path.name})\n" for path in drawn if path.is_file()]
    title = f"### {data.capitalize()}, {size} run\n"
    return "\n".join([title, about, *inner, *figures])


if __name__ == "__main__":
    sys.exit(main())
