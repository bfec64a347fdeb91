"""Parts of the page as HTML. Every text from outside goes through `escape`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from howsure.report.axes import short
from howsure.report.readings import percent
from howsure.report.values import Card, Cell, Chart, Gallery, Metric, Report, Share, Table

_CODE = re.compile("`([^`]+)`")


def section(key: str, title: str, body: str) -> str:
    """A section with its heading; nothing if it has no body."""
    if not body:
        return ""
    return f'<section id="{key}"><h2>{escape(title)}</h2>\n{body}\n</section>'


def sentences(lines: Iterable[str]) -> str:
    """Short paragraphs; what stands between backticks is code."""
    return "\n".join(f"<p>{_CODE.sub(_as_code, escape(line))}</p>" for line in lines)


def _as_code(found: re.Match[str]) -> str:
    return f"<code>{found[1]}</code>"


def heading(title: str) -> str:
    """A heading inside a section."""
    return f"<h3>{escape(title)}</h3>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values; nothing if there are none."""
    if not pairs:
        return ""
    rows = "\n".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs)
    return f"<dl>{rows}</dl>"


def metric_rows(metrics: Sequence[Metric]) -> str:
    """The table of numbers; the script replaces its texts when another level is chosen."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(m.name)}</th><td class="number">{escape(m.text)}</td>'
        f"<td>{escape(m.reading)}</td></tr>"
        for m in metrics
    )
    head = '<tr><th>metric</th><th class="number">value</th><th>in words</th></tr>'
    return f'<table id="metrics"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def all_levels(report: Report) -> str:
    """Every metric at every level, for all outputs together; it needs no script."""
    if len(report.levels) < 2:
        return ""
    columns = ("metric", *report.levels)
    by_level = [views[0].metrics for views in report.views]
    rows = [
        (Cell(group[0].name), *(Cell(metric.text) for metric in group))
        for group in zip(*by_level, strict=True)
    ]
    numeric = (False, *(True for _ in report.levels))
    inner = table(Table(columns, tuple(rows), numeric))
    return f"<details><summary>Every metric at every noise level</summary>{inner}</details>"


def figure(chart: Chart) -> str:
    """The place of a chart; the script draws it."""
    return (
        f'<figure id="chart-{escape(chart.key)}"><h3>{escape(chart.title)}</h3>'
        '<div class="legend"></div>'
        '<div class="plot" tabindex="0" role="group" aria-roledescription="chart" '
        f'aria-label="{escape(chart.title)} Arrow keys read the values."></div>'
        '<div class="tip" role="status" hidden></div>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def figures(charts: Iterable[Chart]) -> str:
    """Places of charts, side by side where there is room."""
    return f'<div class="charts">{"".join(map(figure, charts))}</div>'


def galleries(found: Iterable[Gallery]) -> str:
    """Rows of cards."""
    return "\n".join(
        f"{heading(g.title)}<p>{escape(g.caption)}</p>"
        f'<ul class="cards">{"".join(map(_card, g.cards))}</ul>'
        for g in found
        if g.cards
    )


def _card(card: Card) -> str:
    picture = f'<img src="{card.picture}" alt="{escape(card.name)}">' if card.picture else ""
    lines = "".join(f"<span>{escape(line)}</span>" for line in card.lines)
    kind = ' class="wrong"' if card.wrong else ""
    return f"<li{kind}>{picture}<b>{escape(card.name)}</b>{lines}</li>"


def table(content: Table, *, sortable: bool = False) -> str:
    """A table that scrolls in its own box; sortable ones have buttons in their heads."""
    caption = f"<caption>{escape(content.caption)}</caption>" if content.caption else ""
    head = "".join(
        _head(name, sortable, numeric)
        for name, numeric in zip(content.columns, content.numeric, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(map(_cell, row, content.numeric))}</tr>" for row in content.rows
    )
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table{kind}>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(name: str, sortable: bool, numeric: bool) -> str:
    kind = ' class="number"' if numeric else ""
    if not sortable:
        return f"<th{kind}>{escape(name)}</th>"
    return f'<th{kind} aria-sort="none"><button type="button">{escape(name)}</button></th>'


def _cell(cell: Cell, numeric: bool) -> str:
    kind = ' class="number"' if numeric else ""
    value = "" if cell.value is None else f' data-value="{_sort_key(cell.value)}"'
    return f"<td{kind}{value}>{escape(cell.text)}</td>"


def _sort_key(value: float) -> str:
    """A number that JavaScript reads."""
    if math.isfinite(value):
        return repr(float(f"{value:.9g}"))
    return "Infinity" if value > 0 else "-Infinity"


def budget(shares: Sequence[Share]) -> str:
    """Bars of the shares; each also has its number."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(s.name)}</th><td>{escape(s.kind)}</td>'
        f'<td class="number">{percent(s.share)}</td><td class="bar-cell"><span class="bar" '
        f'style="width:{100 * min(max(s.share, 0), 1):.2f}%"></span></td>'
        f'<td class="number">{escape(short(s.variance))}</td></tr>'
        for s in shares
    )
    if not rows:
        return ""
    head = (
        "<tr><th>source</th><th>kind</th><th class='number'>share</th><th></th>"
        "<th class='number'>variance</th></tr>"
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="budget"><table class="budget">'
        f"<thead>{head}</thead><tbody>{rows}</tbody></table></div>"
    )
