"""An audit as text."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from howsure.auditing.layers import LayerRow
    from howsure.auditing.measures import Estimate, Measures
    from howsure.auditing.result import Audit

_WIDTH = 100
_MOST_LAYERS = 20


def align_columns(lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first line as heading."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    heading, *rows = (line.rstrip() for line in padded)
    return "\n".join([heading, "-" * len(heading), *rows])


def audit_text(audit: Audit) -> str:
    """The tables and the verdict."""
    heading = (
        f"Std of {audit.inputs} inputs x {audit.outputs} outputs against Monte Carlo with "
        f"{audit.samples} samples, which knows each std to {100 * audit.truth_error:.1f} %. "
        "Numbers in brackets are 95 % intervals, for the cost the range of repeated measurements. "
        "Stated: the relative standard error that a method gives for its own std."
    )
    parts = [fill(heading, _WIDTH), _methods_table(audit)]
    if audit.skipped:
        lines = [f"Left out: {label}: {reason}." for label, reason in audit.skipped]
        parts.append("\n".join(fill(line, _WIDTH) for line in lines))
    if audit.layers:
        parts.append(_layers_table(audit))
    parts.append("\n".join(fill(line, _WIDTH) for line in (*audit.verdict, *audit.notes)))
    return "\n\n".join(parts)


def _methods_table(audit: Audit) -> str:
    """One line per method, and one for each part of the variance."""

    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "-"
        low, value, high = map(_digits, (estimate.low, estimate.value, estimate.high))
        return f"{value} [{low}, {high}]"

    def cells(measures: Measures) -> list[str]:
        return [cell(measures.ratio), cell(measures.log_error), cell(measures.rank)]

    lines = [["method", "std ratio", "log error", "rank", "stated", "mean shift", "cost"]]
    lines.append(["plain network", "", "", "", "", cell(audit.plain_shift), "1"])
    for row in audit.rows:
        stated = "-" if row.std_error is None else _digits(row.std_error)
        lines.append([row.label, *cells(row.total), stated, cell(row.mean_shift), cell(row.cost)])
        for name, part in (("data part", row.data), ("model part", row.model)):
            if part is not None:
                lines.append([f"  {name}", *cells(part), "", "", ""])
    return align_columns(lines)


def _layers_table(audit: Audit) -> str:
    """One line per layer, of long networks some; the first that departs is marked."""
    shown, count = _shown_layers(audit), len(audit.layers)
    some = "" if len(shown) == count else f" ({len(shown)} of {count}; all are in `.layers`)"
    lines = [("layer", "kind", "std ratio", "mean error", "")]
    for row in shown:
        mark = "<- departs" if row is audit.departure else ""
        lines.append((row.name, row.kind, _digits(row.ratio), _digits(row.mean_error), mark))
    return f"Diagonal ADF, layer by layer{some}\n{align_columns(lines)}"


def _shown_layers(audit: Audit) -> list[LayerRow]:
    """At most some twenty layers: evenly spread, and those around the first that departs."""
    last = len(audit.layers) - 1
    if last < _MOST_LAYERS:
        return list(audit.layers)
    chosen = {round(i * last / (_MOST_LAYERS - 1)) for i in range(_MOST_LAYERS)}
    if audit.departure is not None:
        first = audit.layers.index(audit.departure)
        chosen |= {max(first - 1, 0), first}
    return [audit.layers[index] for index in sorted(chosen)]


def _digits(value: float) -> str:
    """Three digits, without exponents."""
    size = abs(value)
    if size >= 10:
        return f"{value:.0f}" if size >= 100 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size < 0.0005 else f"{value:.3f}"
