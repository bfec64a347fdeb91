"""What a report says, as plain values: they know nothing of models, tensors or HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Scale = Literal["linear", "log", "percent"]
Mark = Literal["line", "points", "band", "bars", "reference"]
# What a series shows; the style sheet gives each role a colour, a dash and a marker.
Role = Literal["first", "second", "truth", "good", "bad", "now", "ideal"]


@dataclass(frozen=True)
class Axis:
    """A direction of a chart. Positions on a log axis are decimal logarithms.

    Attributes:
        label: What it measures, with the unit.
        low: The position of its lower end.
        high: The position of its upper end.
        ticks: Positions and what is written there.
        scale: Whether positions are values, shares of 1, or decimal logarithms.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    scale: Scale = "linear"


@dataclass(frozen=True)
class Series:
    """One line, cloud or band of a chart.

    Attributes:
        name: For the legend; one without a name is not listed.
        mark: How it is drawn; a "reference" is a line that is not read off.
        role: Which colour, dash and marker it has.
        x: Positions along the chart's x axis.
        y: Positions along its y axis; of a band and of bars the lower edge.
        upper: Of a band and of bars the upper edge.
        tips: What is said of each point in place of its coordinates.
    """

    name: str
    mark: Mark
    role: Role
    x: tuple[float, ...]
    y: tuple[float, ...]
    upper: tuple[float, ...] = ()
    tips: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A plot: `key` is the place on the page, `caption` says how to read it."""

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Metric:
    """A number with what it means in plain words; the value is `None` where it is undefined."""

    name: str
    value: float | None
    text: str
    reading: str


@dataclass(frozen=True)
class View:
    """All that is said of one output at one noise level."""

    headline: tuple[str, ...]
    metrics: tuple[Metric, ...]
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and the number by which it sorts if that is another."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """A table; `numeric` tells for each column whether it sorts and aligns as numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[bool, ...]
    caption: str = ""


@dataclass(frozen=True)
class Card:
    """One case of the gallery; `picture` is a data URI, or empty."""

    name: str
    lines: tuple[str, ...]
    picture: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Gallery:
    """Cases that have something in common."""

    title: str
    caption: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Share:
    """A source of variance and its part of the total, from 0 to 1."""

    name: str
    kind: str
    share: float
    variance: float


@dataclass(frozen=True)
class Report:
    """One evaluation of one model, ready to be written; `build` gathers it.

    Attributes:
        title: The heading.
        task: "regression" or "classification".
        facts: What was run: names and values.
        levels: Names of the noise levels, ascending.
        start: Which level is shown first.
        outputs: Names of the outputs that can be chosen.
        views: What is said, by level and then by output.
        cases: The table of single cases, at the first level shown.
        galleries: The surest, the least sure and the worst cases, at the first level shown.
        search: The curve of the rate search.
        budget: Where the variance comes from.
        audit: Tables and verdict of an audit, as `Audit.to_dict()` gives them.
        notes: What the method has to say about its own result.
        settings: Everything that a repetition needs, as plain data.
        code: Python that repeats it.
    """

    title: str
    task: str
    facts: tuple[tuple[str, str], ...]
    levels: tuple[str, ...]
    start: int
    outputs: tuple[str, ...]
    views: tuple[tuple[View, ...], ...]
    cases: Table
    galleries: tuple[Gallery, ...] = ()
    search: Chart | None = None
    budget: tuple[Share, ...] = ()
    audit: Mapping[str, object] | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    code: str = ""

    @property
    def view(self) -> View:
        """The view that is shown first."""
        return self.views[self.start][0]
