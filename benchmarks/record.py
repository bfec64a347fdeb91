"""How a result was made, beside the result: command, seed, versions, hardware and date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from howsure_lab.experiments.runs import environment

# Options with a place on one machine, and the word that stands for it.
_PLACES = {
    "--data": "PATH",
    "--peer-python": "PYTHON",
    "--out": "FOLDER",
    "--truth": "FILE",
    "--rows": "FILE",
}


def record(seed: int | Sequence[int] = 0) -> dict[str, Any]:
    """What it takes to make the result of this process again."""
    return {"command": command(sys.argv), "seed": seed, "environment": environment()}


def command(given: Sequence[str]) -> str:
    """The command line of a benchmark, without the places of one machine."""
    script = Path(given[0]).resolve()
    names = [script.name] if script.parent.name == "benchmarks" else script.parts[-2:]
    words = ["python", "/".join(["benchmarks", *names])]
    words += [_PLACES.get(before, word) for before, word in pairwise(given)]
    return " ".join(words)
