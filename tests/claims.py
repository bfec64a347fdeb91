"""What tests of figures inside sentences share: results by name, and the pages' words.

A claim is a function that writes a part of a sentence from the committed results.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# Of every seed or split, by method.
Rows = list[dict[str, Any]]
Claims = dict[Callable[[], str], list[str]]

TOP_CLASS = ", top class"


def result(name: str) -> dict[str, Any]:
    """A committed file of results."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def each_page(claims: Claims) -> pytest.MarkDecorator:
    """Runs a test for every claim on every page that makes it."""
    return pytest.mark.parametrize(
        "claim, page",
        [(claim, page) for claim, pages in claims.items() for page in pages],
        ids=lambda part: getattr(part, "__name__", part),
    )


def words_of(page: str) -> str:
    """The page without its line breaks."""
    return " ".join((ROOT / page).read_text().split())


def listed(parts: Iterable[str]) -> str:
    """As a sentence has them: a, b and c."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def accuracy(case: str, measure: str, method: str | None = None) -> float:
    """Of the default, unless a method is named."""
    from accuracy_bounds import DEFAULT

    return result("accuracy")["cases"][case][method or DEFAULT][measure]


def covered(scores: Rows, method: str) -> dict[str, float]:
    """Mean coverage in percent of every condition."""
    return {
        condition: 100 * mean(each[method][condition]["coverage"] for each in scores)
        for condition in scores[0][method]
    }


def of_tables(start: str, without: str | None = None) -> Rows:
    """The scores of every split or gap of UCI sets whose name begins so."""
    every = result("uci")["found"].items()
    chosen = [
        part for name, part in every if name.startswith(start) and not (without and without in name)
    ]
    return [each["scores"] for part in chosen for each in part]


def coverage(rows: Rows, method: str) -> float:
    """Its mean in percent."""
    return 100 * mean(row[method]["coverage"] for row in rows)
