"""The page: a template, a style sheet, a script, and the report's data, all in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from howsure.files import write_atomically
from howsure.report import fragments
from howsure.report.audit_tables import audit
from howsure.report.values import Chart, Report, View

# What could end the script element, or a line of it, inside a JSON string.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write(path: str | Path, report: Report) -> Path:
    """Writes the report as one HTML file, whole or not at all, and returns its path."""
    if not isinstance(report, Report):
        raise TypeError(
            f"`report` is a {type(report).__name__}; give what `howsure.report.build` returned."
        )
    page = to_html(report)
    write_atomically(Path(path), lambda file: file.write(page), text=True)
    return Path(path)


def to_html(report: Report) -> str:
    """The whole page; the same report gives the same text."""
    script = _asset("report.js")
    return Template(_asset("template.html")).substitute(
        title=escape(report.title),
        policy=_policy(script),
        style=_asset("report.css"),
        script=script,
        data=as_json(_data(report)),
        controls=_controls(report),
        summary=fragments.sentences(report.view.headline),
        sections="\n".join(part for part in _sections(report) if part),
    )


def as_json(value: object) -> str:
    """JSON that may stand in a script element, whatever its strings hold."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, replacement in _UNSAFE.items():
        text = text.replace(character, replacement)
    return text


def _sections(report: Report) -> list[str]:
    view = report.view
    numbers = fragments.metric_rows(view.metrics) + fragments.all_levels(report)
    return [
        fragments.section("numbers", "The numbers", numbers),
        fragments.section("plots", "The plots", fragments.figures(view.charts)),
        fragments.section("gallery", "Examples", fragments.galleries(report.galleries)),
        fragments.section("cases", "Single cases", fragments.table(report.cases, sortable=True)),
        fragments.section("search", "The rate search", _search(report)),
        fragments.section(
            "budget", "Where the variance comes from", fragments.budget(report.budget)
        ),
        fragments.section("audit", "Audit against Monte Carlo", audit(report.audit)),
        fragments.section("notes", "Notes of the method", fragments.sentences(report.notes)),
        fragments.section("run", "What was run", fragments.facts(report.facts)),
        fragments.section("reproduce", "To run it again", _reproduce(report)),
    ]


def _search(report: Report) -> str:
    return "" if report.search is None else fragments.figures([report.search])


def _reproduce(report: Report) -> str:
    if not report.code:
        return ""
    settings = json.dumps(report.settings, indent=2, ensure_ascii=False)
    return (
        f'<pre id="code" tabindex="0"><code>{escape(report.code)}</code></pre>'
        "<details><summary>Settings as JSON</summary>"
        f'<pre id="settings" tabindex="0"><code>{escape(settings)}</code></pre></details>'
    )


def _controls(report: Report) -> str:
    """The slider over noise levels and the choice of the output, where there are several."""
    parts = []
    if len(report.levels) > 1:
        name, last = escape(report.levels[report.start]), len(report.levels) - 1
        parts.append(
            '<span class="control"><label for="level">Noise</label>'
            f'<input id="level" type="range" min="0" max="{last}" step="1" value="{report.start}" '
            f'aria-valuetext="{name}"><output id="level-name" for="level">{name}</output></span>'
        )
    if len(report.outputs) > 1:
        options = "".join(
            f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(report.outputs)
        )
        parts.append(
            '<span class="control"><label for="output">Output</label>'
            f'<select id="output">{options}</select></span>'
        )
    return f'<form id="controls">{"".join(parts)}</form>' if parts else ""


def _data(report: Report) -> dict[str, object]:
    return {
        "levels": report.levels,
        "start": report.start,
        "views": [[_view(view) for view in views] for views in report.views],
        "search": None if report.search is None else _chart(report.search),
    }


def _view(view: View) -> dict[str, object]:
    metrics = [(m.name, m.text, m.reading) for m in view.metrics]
    return {
        "headline": view.headline,
        "metrics": metrics,
        "charts": [_chart(chart) for chart in view.charts],
    }


def _chart(chart: Chart) -> dict[str, object]:
    return asdict(chart)


def _plain(value: object) -> object:
    """Numbers with the digits that a screen shows; what is not finite becomes null."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _policy(script: str) -> str:
    """Lets the browser run this script and nothing else, and load nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return resources.files("howsure.report").joinpath(name).read_text(encoding="utf-8")
