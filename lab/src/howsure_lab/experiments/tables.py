"""Tables of results as Markdown: mean and spread over seeds, with the paper's numbers beside."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """A metric of a table: its key in the results, its heading, its digits."""

    key: str
    heading: str
    digits: int = 3


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of a metric over seeds, `None` where it is not finite."""

    mean: float | None
    spread: float | None
    count: int

    @staticmethod
    def of(values: Iterable[float | None]) -> Summary:
        """The summary of one value per seed; a missing one makes the mean missing."""
        found = list(values)
        known = [value for value in found if value is not None]
        if not found or len(known) < len(found):
            return Summary(None, None, len(found))
        spread = statistics.stdev(known) if len(known) > 1 else None
        return Summary(statistics.fmean(known), spread, len(known))

    def text(self, digits: int) -> str:
        """`mean` or `mean ± spread`."""
        if self.mean is None:
            return MISSING
        words = number(self.mean, digits)
        return words if self.spread is None else f"{words} ± {number(self.spread, digits)}"


def number(value: float | None, digits: int) -> str:
    """A number with fixed digits; large ones with three significant digits."""
    if value is None:
        return MISSING
    return f"{value:.3g}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def summaries(runs: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> dict[str, Summary]:
    """The summary of every metric over the runs of one method."""
    return {key: Summary.of(run.get(key) for run in runs) for key in keys}


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column is text, the others are numbers."""
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ruler, *rows)) + "\n"


def method_table(
    runs: Mapping[str, Sequence[Mapping[str, object]]],  # per method, one mapping per seed
    columns: Sequence[Column],
    *,
    labels: Mapping[str, str],
    paper: Mapping[str, str] | None = None,
) -> str:
    """A table with one line per method; with the paper's numbers in the last column."""
    headings = ["method", *(column.heading for column in columns)]
    rows = []
    for method, found in runs.items():
        summary = summaries(found, [column.key for column in columns])
        cells = [summary[column.key].text(column.digits) for column in columns]
        rows.append([labels.get(method, method), *cells])
        if paper is not None:
            rows[-1].append(paper.get(method, MISSING))
    return markdown(headings if paper is None else [*headings, "paper"], rows)
