"""All cases of the suite, and how each is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from speed import against, against_peer, case, exactness, growth

Measure = Callable[..., dict[str, Any]]
_MEASURES: dict[str, tuple[tuple[str, ...], Measure]] = {
    "speed": (tuple(case.names()), case.measure),
    "textbook": (against.CASES, against.measure),
    "growth": (tuple(growth.GROWTH), growth.measure),
    "exactness": (exactness.CASES, exactness.measure),
    "peers": (against_peer.CASES, against_peer.measure),
}
KINDS = tuple(_MEASURES)
_QUICK = (
    "speed: DroNet, batch 1",
    "speed: MLP, batch 1",
    "speed: MLP, batch 8",
    "speed: LSTM, batch 1",
    "textbook: DroNet",
    "growth: samples",
    "growth: outputs",
    "exactness",
)


@dataclass(frozen=True)
class Case:
    """One case: a kind, which is a result file, and a name in it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"

    def measure(self, *, quick: bool, compile_all: bool) -> dict[str, Any]:
        """Its result; takes seconds to minutes."""
        return _MEASURES[self.kind][1](self.name, quick=quick, compile_all=compile_all)


def chosen(only: list[str], *, quick: bool) -> list[Case]:
    """The cases whose text contains one of `only`; all of them, or the quick ones, for none."""
    every = [Case(kind, name) for kind, (names, _) in _MEASURES.items() for name in names]
    wanted = only or (list(_QUICK) if quick else [""])
    return [each for each in every if any(word in str(each) for word in wanted)]
