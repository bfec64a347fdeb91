"""Work on batches that several processes share, with the results of all in the batches' order.

The order makes the outcome the same, bit for bit, as that of one process: nothing is summed before
all parts are in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Gather(Protocol):
    """Exchanges results between processes."""

    def __call__(self, mine: list[Result]) -> list[list[Result]]:
        """The results of every process, in the order of ranks, from those of this one."""
        ...


def _alone(mine: list[Result]) -> list[list[Result]]:
    return [mine]


@dataclass(frozen=True)
class Share:
    """Which batches this process works on: `rank`, `rank + size`, `rank + 2 * size`, ...

    Attributes:
        rank: The number of this process.
        size: How many processes there are.
        gather: From this process's results to those of every process, in the order of ranks.
    """

    rank: int = 0
    size: int = 1
    gather: Gather = _alone

    def map(self, function: Callable[[int, Item], Result], batches: Iterable[Item]) -> list[Result]:
        """`function(index, batch)` of every batch, computed together and known to all."""
        numbered = enumerate(batches)
        return self.joined([function(i, b) for i, b in numbered if i % self.size == self.rank])

    def joined(self, mine: list[Result]) -> list[Result]:
        """The results of all processes in the order of the batches, from those of this one."""
        parts = self.gather(mine)
        count = sum(map(len, parts))
        return [parts[index % self.size][index // self.size] for index in range(count)]


WHOLE = Share()
