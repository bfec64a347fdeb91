"""The page: one template with the report's values, its styles and its script in one file.

An audit is read as plain data, so that one from a file looks like one that was just made. A number
with its interval is a dictionary {value, low, high}; other dictionaries inside a row become columns
of their own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from howsure.files import write_atomically
from howsure.report.charts import variables
from howsure.report.readings import percent, short
from howsure.report.reproduce import STATE_FILE
from howsure.report.values import Cell, Report, Table

_TITLES = {"rows": "Methods against Monte Carlo", "layers": "Layer by layer"}
_IN_WORDS = ("verdict", "notes", "recommended")  # the sentences say it
_ESTIMATE = {"value", "low", "high"}


def write(path: str | Path, report: Report) -> Path:
    """Writes the report as one HTML file, whole or not at all, and returns its path.

    What `fit` found goes into a file beside it, `report.fit.pt`, as `Uncertain.save` writes it.

    Examples:
        >>> p = hs.Prediction(torch.zeros(60, 1), torch.ones(60, 1), torch.zeros(60, 1))
        >>> report = hs.report.from_predictions({1.0: p}, torch.randn(60, 1))
        >>> hs.report.write("report.html", report).exists()
        True
    """
    if not isinstance(report, Report):
        raise TypeError(
            f"`report` is a {type(report).__name__}; give what `howsure.report.build` returned."
        )
    path = Path(path)
    beside = path.with_suffix(".fit.pt")
    is_new = report.state is not None and not beside.exists()
    if report.state is not None:
        write_atomically(beside, lambda file: torch.save(report.state, file))
        report = replace(report, code=report.code.replace(STATE_FILE, beside.name))
    try:
        page = to_html(report)
        write_atomically(path, lambda file: file.write(page), text=True)
    except BaseException:
        if is_new:
            beside.unlink(missing_ok=True)
        raise
    return path


def to_html(report: Report) -> str:
    """The whole page; the same report gives the same text.

    Examples:
        >>> p = hs.Prediction(torch.zeros(60, 1), torch.ones(60, 1), torch.zeros(60, 1))
        >>> report = hs.report.from_predictions({1.0: p}, torch.randn(60, 1))
        >>> hs.report.to_html(report)[:15]
        '<!DOCTYPE html>'
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "sentence": _sentence,
        "percent": percent,
        "short": short,
        # A number that JavaScript reads.
        "sort_key": lambda value: repr(float(f"{value:.9g}")).replace("inf", "Infinity"),
        "with_ids": _with_ids,
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }
    script = _asset("report.js")
    return environment.from_string(_asset("template.html")).render(
        report=report,
        audit=_audit_section(report.audit) if report.audit else None,
        light=Markup(variables(dark=False)),
        dark=Markup(variables(dark=True)),
        style=Markup(_asset("report.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )


def _sentence(line: str) -> Markup:
    """Words of a person; what stands between backticks is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(line))))


def _with_ids(svg: str, place: str) -> Markup:
    """A drawing with ids of its own: a browser draws none of what a hidden element defines."""
    return Markup(re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{place}-", svg))


def _asset(name: str) -> str:
    return resources.files("howsure.report").joinpath(name).read_text(encoding="utf-8")


def _audit_section(audit: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the page shows of an audit: sentences, names with values, tables with titles."""
    verdict = audit.get("verdict", ())
    sentences = [verdict] if isinstance(verdict, str) else [*verdict]
    facts: list[tuple[str, str]] = []
    tables: list[tuple[str, Table]] = []
    for key, value in audit.items():
        if key in _IN_WORDS or value in (None, [], (), {}, ""):
            continue
        if not isinstance(value, list | tuple):
            facts.append((_words(key), _text(value)))
        elif all(isinstance(row, Mapping) for row in value):
            tables.append((_TITLES.get(key, _words(key)), _table(value)))
        elif all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            facts += [(f"{_words(key)}: {name}", str(why)) for name, why in value]
    return {
        "sentences": [*sentences, *(audit.get("notes") or ())],
        "facts": facts,
        "tables": tables,
    }


def _table(rows: Sequence[Mapping[str, object]]) -> Table:
    """A table of dictionaries; columns in the order of their first appearance."""
    flat = [_flatten(row) for row in rows]
    keys = [*dict.fromkeys(key for row in flat for key, value in row.items() if value is not None)]
    cells = tuple(tuple(_cell(row.get(key)) for key in keys) for row in flat)
    numeric = tuple(any(row[i].value is not None for row in cells) for i in range(len(keys)))
    return Table(tuple(keys), cells, numeric)


def _flatten(row: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    # A label already names the method and its options.
    repeated = ("method", "options") if "label" in row else ()
    columns: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and set(value) != _ESTIMATE:
            columns |= _flatten(value, f"{prefix}{_words(key)}, ") if key not in repeated else {}
        elif key not in repeated:
            columns[f"{prefix}{_words(key)}"] = value
    return columns


def _cell(value: Any) -> Cell:
    number = value["value"] if isinstance(value, Mapping) else value
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return Cell(_text(value), float(number) if is_number else None)


def _text(value: Any) -> str:
    """A value in few characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else short(value)
    if isinstance(value, Mapping) and set(value) == _ESTIMATE:
        return f"{short(value['value'])} ({short(value['low'])} to {short(value['high'])})"
    if isinstance(value, Mapping):
        parts = {key: part for key, part in value.items() if part not in (None, {}, "")}
        return ", ".join(f"{_words(key)}: {_text(part)}" for key, part in parts.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _words(key: object) -> str:
    """A key as a reader would write it."""
    return str(key).replace("_", " ")
