"""Result files: cases are added one by one, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from howsure.files import write_atomically
from howsure_lab.experiments.runs import environment


class Results:
    """The results of one kind of case in one JSON file.

    Cases that were measured with other versions or on another machine are dropped: the figures of
    a file can be compared.
    """

    def __init__(self, folder: Path, kind: str, command: str) -> None:
        self.path = folder / f"{kind}.json"
        self.command = command
        self.environment = environment()
        self.date = self.environment.pop("date")
        self.environment["hardware"]["threads"] = 1  # what the cases run with
        found = json.loads(self.path.read_text()) if self.path.exists() else {}
        same = found.get("environment") == self.environment
        self.cases: dict[str, Any] = found["cases"] if same else {}

    def has(self, name: str, *, quick: bool) -> bool:
        """Whether a case is there.

        A quick one does not stand for a full one, nor does one that could not be measured.
        """
        found = self.cases.get(name)
        if found is None or isinstance(found["result"].get("left_out"), str):
            return False
        return quick or not found["quick"]

    def add(self, name: str, result: dict[str, Any], *, quick: bool) -> None:
        """Writes the file with a case more."""
        self.cases[name] = {"date": self.date, "quick": quick, "result": _rounded(result)}
        content = {
            "command": self.command,
            "seed": 0,  # of the weights; those of inputs and points are fixed, too
            "environment": self.environment,
            "cases": self.cases,
        }
        text = json.dumps(content, indent=1) + "\n"
        write_atomically(self.path, lambda file: file.write(text), text=True)


def load(folder: Path, kind: str) -> dict[str, Any]:
    """The results of a kind's cases by name; none if there is no file."""
    path = folder / f"{kind}.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    return {name: case["result"] for name, case in cases.items()}


def _rounded(tree: Any) -> Any:
    """Floats with four digits: more would be noise."""
    if isinstance(tree, dict):
        return {key: _rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return float(f"{tree:.4g}") if isinstance(tree, float) else tree
