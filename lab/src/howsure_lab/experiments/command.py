"""Repeats an experiment of the paper; interrupted, the same command goes on where it was."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from howsure.cli.options import count
from howsure.cli.result import Result

if TYPE_CHECKING:
    from howsure_lab.experiments.runs import Options

# Where each task's `run(options)` is; imported when it is asked for.
TASKS = {
    "steering": "howsure_lab.experiments.steering.run",
    "recognition": "howsure_lab.experiments.recognition.run",
    "sensitivity": "howsure_lab.experiments.sensitivity",
    "runtime": "howsure_lab.experiments.runtime",
    "uci": "howsure_lab.experiments.uci.run",
    "quadrotor": "howsure_lab.experiments.quadrotor.run",
    "raptor": "howsure_lab.experiments.raptor.run",
    "motion": "howsure_lab.experiments.motion.run",
}

HELP = "the paper's experiments, each by one command"
EXAMPLES = """
  howsure reproduce steering --quick
  howsure reproduce uci --seeds 5 --out runs/uci
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure reproduce` to its parser."""
    parser.add_argument("task", choices=sorted(TASKS), help="which experiment")
    parser.add_argument("--data", type=Path, help="folder with the real data (default: none)")
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    parser.add_argument("--seeds", type=count, help="how many (3, quick 1)")
    parser.add_argument("--out", type=Path, help="folder of the run (out/TASK)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these lines (all)")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs finished")
    parser.set_defaults(resumes=True)


def run(arguments: argparse.Namespace) -> Result:
    """The table of the experiment."""
    # Both import torch, which no parser of options needs.
    from howsure.cli.building import shows_progress
    from howsure_lab.experiments.runs import Options

    if arguments.data is not None and not arguments.data.is_dir():
        raise ValueError(f"`--data` must be a folder, and `{arguments.data}` is none.")
    names = ("task", "data", "quick", "seeds", "out", "fresh")
    options = Options(
        **{name: getattr(arguments, name) for name in names},
        methods=tuple(arguments.methods) if arguments.methods else None,
        show_progress=shows_progress(arguments),
    )
    experiment: Callable[[Options], Path] = import_module(TASKS[options.task]).run
    table = experiment(options)
    text = table.read_text(encoding="utf-8")
    data = {"task": options.task, "folder": options.folder, "table": table, "text": text}
    return Result(f"{text}\nResults: {options.folder}", data)
