"""The page: one template with the report's values, its styles and its script in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import torch
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from howsure.files import write_atomically
from howsure.report.audit_tables import audit_section
from howsure.report.charts import variables
from howsure.report.readings import percent, short
from howsure.report.reproduce import STATE_FILE
from howsure.report.values import Cell, Report, Table


def write(path: str | Path, report: Report) -> Path:
    """Writes the report as one HTML file, whole or not at all, and returns its path.

    What `fit` found goes into a file beside it, `report.fit.pt`, as `Uncertain.save` writes it.
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
    """The whole page; the same report gives the same text."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "words": _words,
        "percent": percent,
        "short": short,
        "sort_key": _sort_key,
        "with_ids": _with_ids,
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }
    script = _asset("report.js")
    page = environment.from_string(_asset("template.html")).render(
        report=report,
        all_levels=_all_levels(report),
        audit=audit_section(report.audit),
        light=Markup(variables(dark=False)),
        dark=Markup(variables(dark=True)),
        style=Markup(_asset("report.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )
    return _with_shared_styles(page)


def _with_shared_styles(page: str) -> str:
    """The page with one rule for every style of its drawings, which repeat a few of them often."""
    names: dict[str, str] = {}

    def as_class(style: re.Match[str]) -> str:
        return f' class="{names.setdefault(style[1], f"s{len(names)}")}"'

    def change(drawing: re.Match[str]) -> str:
        return re.sub(
            "<[^>]+>", lambda tag: re.sub(r' style="([^"]*)"', as_class, tag[0]), drawing[0]
        )

    page = re.sub(r"<svg viewBox=.*?</svg>", change, page, flags=re.DOTALL)
    rules = "".join(f".{name}{{{style}}}\n" for style, name in names.items())
    head, end, rest = page.partition("</style>\n</head>")
    return head + rules + end + rest


def _all_levels(report: Report) -> Table:
    """Every metric at every level, for all outputs together; it needs no script."""
    by_level = [views[0].metrics for views in report.views]
    rows = [
        (Cell(group[0].name), *(Cell(metric.text) for metric in group))
        for group in zip(*by_level, strict=True)
    ]
    return Table(("metric", *report.levels), tuple(rows), (False, *(True for _ in report.levels)))


def _words(line: str) -> Markup:
    """A sentence; what stands between backticks is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(line))))


def _with_ids(svg: str, place: str) -> Markup:
    """A drawing with ids of its own: a browser draws none of what a hidden element defines."""
    return Markup(re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{place}-", svg))


def _sort_key(value: float) -> str:
    """A number that JavaScript reads."""
    if math.isfinite(value):
        return repr(float(f"{value:.9g}"))
    return "Infinity" if value > 0 else "-Infinity"


def _asset(name: str) -> str:
    return resources.files("howsure.report").joinpath(name).read_text(encoding="utf-8")
