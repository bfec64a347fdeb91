"""An audit as text."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from howsure.auditing.layers import LayerRow
from howsure.auditing.measures import Estimate, Measures
from howsure.auditing.result import Audit

_WIDTH = 100
_MOST_LAYERS = 20


def text(audit: Audit) -> str:
    """The tables and the verdict."""
    parts = [_heading(audit), methods_table(audit)]
    if audit.skipped:
        lines = [f"Left out: {label}: {reason}." for label, reason in audit.skipped]
        parts.append("\n".join(fill(line, _WIDTH) for line in lines))
    if audit.layers:
        parts.append(f"{_layers_heading(audit)}\n{layers_table(audit)}")
    parts.append("\n".join(fill(each, _WIDTH) for each in (*audit.verdict, *audit.notes)))
    return "\n\n".join(parts)


def _heading(audit: Audit) -> str:
    return fill(
        f"Std of {audit.inputs} inputs x {audit.outputs} outputs against Monte Carlo with "
        f"{audit.samples} samples, which knows each std to {100 * audit.truth_error:.1f} %. "
        "Numbers in brackets are 95 % intervals, for the cost the range of repeated measurements. "
        "Stated: the relative standard error that a method gives for its own std.",
        _WIDTH,
    )


def _layers_heading(audit: Audit) -> str:
    shown, count = len(shown_layers(audit)), len(audit.layers)
    some = "" if shown == count else f" ({shown} of {count}; all are in `.layers`)"
    return f"Diagonal ADF, layer by layer{some}"


def methods_table(audit: Audit) -> str:
    """One line per method, and one for each part of the variance."""
    lines = [("method", "std ratio", "log error", "rank", "stated", "mean shift", "cost")]
    shift = _cell(audit.plain_shift)
    lines.append(("plain network", "", "", "", "", shift, "1"))
    for row in audit.rows:
        own = "-" if row.std_error is None else _number(row.std_error)
        lines.append((row.label, *_cells(row.total), own, _cell(row.mean_shift), _cell(row.cost)))
        for name, part in (("data part", row.data), ("model part", row.model)):
            if part is not None:
                lines.append((f"  {name}", *_cells(part), "", "", ""))
    return aligned(lines)


def _cells(measures: Measures) -> tuple[str, str, str]:
    rank = "-" if measures.rank is None else _cell(measures.rank)
    return _cell(measures.ratio), _cell(measures.log_error), rank


def _cell(estimate: Estimate) -> str:
    low, value, high = (_number(x) for x in (estimate.low, estimate.value, estimate.high))
    return f"{value} [{low}, {high}]"


def _number(value: float) -> str:
    """Three digits, without exponents."""
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size < 0.0005 else f"{value:.3f}"


def layers_table(audit: Audit) -> str:
    """One line per layer, of long networks some; the first that departs is marked."""
    lines = [("layer", "kind", "std ratio", "mean error", "")]
    first = audit.departure
    for row in shown_layers(audit):
        mark = "<- departs" if row is first else ""
        lines.append((row.name, row.kind, _number(row.ratio), _number(row.mean_error), mark))
    return aligned(lines)


def shown_layers(audit: Audit) -> list[LayerRow]:
    """At most some twenty layers: evenly spread, and those around the first that departs."""
    count = len(audit.layers)
    if count <= _MOST_LAYERS:
        return list(audit.layers)
    chosen = {round(i * (count - 1) / (_MOST_LAYERS - 1)) for i in range(_MOST_LAYERS)}
    if audit.departure is not None:
        first = audit.layers.index(audit.departure)
        chosen |= {max(first - 1, 0), first}
    return [audit.layers[index] for index in sorted(chosen)]


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first line as heading."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    found = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    rule = "-" * len(found[0].rstrip())
    return "\n".join([found[0].rstrip(), rule, *(line.rstrip() for line in found[1:])])
