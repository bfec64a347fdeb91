"""What a report says, as plain values: they know nothing of models, tensors or HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Chart:
    """A plot; `svg` is empty where it is not defined, and the caption then says why.

    Attributes:
        key: The place on the page.
        title: The question that it answers.
        caption: How to read it.
        svg: The drawing, an element of HTML.
    """

    key: str
    title: str
    caption: str
    svg: str


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
        settings: What was asked for, as short plain data.
        code: Python that repeats it.
        state: What `Uncertain.save` would write, for the file beside the page.

    Examples:
        >>> p = hs.Prediction(torch.zeros(60, 1), torch.ones(60, 1), torch.zeros(60, 1))
        >>> report = hs.report.from_predictions({1.0: p}, torch.randn(60, 1))
        >>> report.title
        'How sure is this network?'
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
    state: Mapping[str, object] | None = None

    @property
    def view(self) -> View:
        """The view that is shown first."""
        return self.views[self.start][0]
