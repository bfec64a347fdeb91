"""Writes the tables of the pages from the committed results, without measuring anything.

    python benchmarks/figures.py

Each benchmark puts its own table into its own page; this puts all of them everywhere, also where a
page shows the table of another. A test compares the pages with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import accuracy
import accuracy_bounds
import dense
import dense_classes
import image_tasks
import posthoc
import rule_accuracy
import shift
import shift_classes
import uci
from bench import DOCS, RESULTS, into_page, load_cases, markdown
from real_networks_pip.page import everyday_table
from speed import must_hold
from speed.page import time_to_accuracy

import scoring


def result(name: str) -> dict[str, Any]:
    """A committed file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


# Of the accuracy of the default: what a reader compares.
_MEASURES = {
    "std ratio": "ratio",
    "log error": "log_error",
    "rank": "rank",
    "mean error": "mean_error",
}


def _by_default() -> str:
    """The accuracy of the default number of points against noise at the input."""
    rows = []
    for name, case in result("accuracy")["cases"].items():
        if "dropout" not in name and "top class" not in name:
            row = case[accuracy_bounds.DEFAULT]
            cells = [f"{row[key]:.3f}" for key in _MEASURES.values()]
            cells.append(f"{row['stated_error']:.3f} / {row['actual_error']:.3f}")
            rows.append([name, *cells, f"{row['forward_passes']:.0f}"])
    return markdown(["network and noise", *_MEASURES, "stated / actual error", "passes"], rows)


def _shift(study: str) -> str:
    return shift.table(result("shift")[study]["scores"])


def _cifar(study: str) -> str:
    return shift_classes.table(result("shift")[study]["scores"])


def _uci() -> str:
    return uci.table(result("uci")["found"])


def _dense() -> str:
    return shift.table([result("dense")["scores"]])


def _costs() -> str:
    """What the default and samples cost."""
    rows = []
    for row in must_hold.costs(RESULTS):
        if row["figure"] is not None:
            name = row["row"].removeprefix("plain forwards: ").replace(", batch 1", "")
            missed = "" if row["reached"] else ", **missed**"
            rows.append((name, f"{row['figure']:.1f}", f"{row['target']}{missed}"))
    return markdown(("pass", "plain forwards", "target"), rows)


# By page and mark.
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("gradients.md", "bounds"): lambda: accuracy_bounds.table(
        accuracy_bounds.rows(result("accuracy")["cases"])
    ),
    ("gradients.md", "accuracy"): lambda: accuracy.table(result("accuracy")["cases"]),
    ("gradients.md", "costs"): _costs,
    ("method.md", "by-default"): _by_default,
    ("model.md", "drive"): lambda: _shift("drive"),
    ("method.md", "roads"): lambda: _shift("roads"),
    ("method.md", "uci"): _uci,
    ("method.md", "cifar"): lambda: _cifar("cifar"),
    ("method.md", "dense"): _dense,
    ("methods.md", "methods"): lambda: time_to_accuracy(load_cases(RESULTS, "time_to_accuracy")),
    ("model.md", "roads"): lambda: _shift("roads"),
    ("model.md", "uci"): _uci,
    ("model.md", "image-tasks"): lambda: image_tasks.table(result("image_tasks")),
    ("model.md", "cifar"): lambda: _cifar("cifar"),
    ("model.md", "cifar32"): lambda: _cifar("cifar32"),
    ("model.md", "posthoc"): lambda: posthoc.table(result("posthoc")["cases"]),
    ("model.md", "dense"): _dense,
    ("model.md", "dense-novelty"): lambda: dense.table_of_novelty(
        result("dense")["novelty"], result("dense")["scores"]
    ),
    ("model.md", "dense-classes"): lambda: dense_classes.table(result("dense_classes")["scores"]),
    ("right_for_my_model.md", "everyday-networks"): lambda: everyday_table(
        result("everyday_networks")
    ),
    ("scoring.md", "scoring"): lambda: scoring.table(result("scoring")),
}


def accuracy_page() -> str:
    """The page of the rules' accuracy, which is generated as a whole."""
    return rule_accuracy.page(result("rule_accuracy")["tables"])


def main() -> None:
    """Writes every table."""
    for (page, name), table in TABLES.items():
        into_page(DOCS / page, name, table())
    (DOCS / "accuracy.md").write_text(accuracy_page())


if __name__ == "__main__":
    main()
