"""An audit on the page: its verdict in words, its lists of rows as tables.

It reads plain data, so that an audit from a file looks like one that was just made. A number with
its interval is a dictionary {value, low, high}; other dictionaries inside a row become columns of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from howsure.report.readings import short
from howsure.report.values import Cell, Table

_TITLES = {"rows": "Methods against Monte Carlo", "layers": "Layer by layer"}
_ESTIMATE = {"value", "low", "high"}


class AuditSection(NamedTuple):
    """An audit as the page shows it."""

    sentences: list[str]
    facts: list[tuple[str, str]]
    tables: list[tuple[str, Table]]


def audit_section(found: Mapping[str, Any] | None) -> AuditSection | None:
    """What the page shows of an audit; nothing if there is none."""
    if not found:
        return None
    verdict = found.get("verdict", "")
    lines = [verdict] if isinstance(verdict, str) else [str(line) for line in verdict]
    tables = [
        (_TITLES.get(key, words(key)), records(rows))
        for key, rows in found.items()
        if _is_list(rows) and all(isinstance(row, Mapping) for row in rows)
    ]
    return AuditSection([*filter(None, lines), *(found.get("notes") or ())], _plain(found), tables)


def _plain(found: Mapping[str, object]) -> list[tuple[str, str]]:
    """What is one value or a pair of words: numbers, the recommendation, what was left out."""
    rows: list[tuple[str, str]] = []
    for key, value in found.items():
        if key in ("verdict", "notes") or value in (None, [], (), {}, ""):
            continue
        if not _is_list(value):
            rows.append((words(key), text(value)))
        elif all(_is_list(pair) and len(pair) == 2 for pair in value):
            rows += [(f"{words(key)}: {name}", str(reason)) for name, reason in value]
    return rows


def records(rows: Sequence[Mapping[str, object]]) -> Table:
    """A table of dictionaries; columns in the order of their first appearance."""
    flat = [dict(_flattened(_without_repetition(row))) for row in rows]
    keys = list(dict.fromkeys(key for row in flat for key in row))
    keys = [key for key in keys if any(row.get(key) is not None for row in flat)]
    cells = tuple(tuple(_cell(row.get(key)) for key in keys) for row in flat)
    numeric = tuple(any(row[i].value is not None for row in cells) for i in range(len(keys)))
    return Table(tuple(keys), cells, numeric)


def _without_repetition(row: Mapping[str, object]) -> dict[str, object]:
    """A label already names the method and its options."""
    repeated = ("method", "options") if "label" in row else ()
    return {key: value for key, value in row.items() if key not in repeated}


def _flattened(row: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in row.items():
        name = f"{prefix}{words(key)}"
        if isinstance(value, Mapping) and set(value) != _ESTIMATE:
            yield from _flattened(value, f"{name}, ")
        else:
            yield name, value


def _cell(value: object) -> Cell:
    number = value["value"] if isinstance(value, Mapping) else value
    return Cell(text(value), float(number) if _is_number(number) else None)


def text(value: object) -> str:
    """A value in few characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_number(value):
        return f"{value:,}" if isinstance(value, int) else short(value)
    if isinstance(value, Mapping) and set(value) == _ESTIMATE:
        low, high = (short(value[key]) for key in ("low", "high"))
        return f"{short(value['value'])} ({low} to {high})"
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if item not in (None, {}, "")}
        return ", ".join(f"{words(key)}: {text(item)}" for key, item in known.items())
    return ", ".join(map(text, value)) if _is_list(value) else str(value)


def words(key: object) -> str:
    """A key as a reader would write it."""
    return str(key).replace("_", " ")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple) and len(value) > 0
