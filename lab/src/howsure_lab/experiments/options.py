"""What the user asks of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The options of `howsure reproduce`.

    Attributes:
        task: Which experiment.
        data: Folder with the real data; `None` for the data that needs no download.
        quick: Smaller data, fewer steps: minutes instead of hours.
        seeds: How many seeds; 1 in quick runs unless given, else 3.
        out: The run's folder.
        fresh: Compute everything again, also what an earlier run has finished.
        methods: Only these lines of the table; `None` for all.
        show_progress: Show a bar.
    """

    task: str
    data: Path | None = None
    quick: bool = False
    seeds: int | None = None
    out: Path | None = None
    fresh: bool = False
    methods: tuple[str, ...] | None = None
    show_progress: bool = True

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds: 0, 1, ..."""
        return tuple(range(self.seeds or (1 if self.quick else 3)))

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return self.out or Path("out") / self.name

    def chosen(self, methods: Sequence[str]) -> tuple[str, ...]:
        """Those of a task's methods that were asked for, in its order."""
        if self.methods is None:
            return tuple(methods)
        if unknown := [name for name in self.methods if name not in methods]:
            raise ValueError(f"This run has no methods {unknown}; there are {list(methods)}.")
        return tuple(name for name in methods if name in self.methods)

    @property
    def name(self) -> str:
        """The task with what kind of run it is, such as `steering-real-quick`."""
        parts = [self.task, *(["real"] if self.data else []), *(["quick"] if self.quick else [])]
        return "-".join(parts)

    @property
    def command(self) -> str:
        """The command that repeats the run; the data's folder is named DATA."""
        data = ["--data DATA"] if self.data else []
        quick = ["--quick"] if self.quick else []
        seeds = [] if self.seeds is None else [f"--seeds {self.seeds}"]
        only = ["--methods", *self.methods] if self.methods else []
        return " ".join(["howsure reproduce", self.task, *data, *quick, *seeds, *only])
