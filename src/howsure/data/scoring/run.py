"""Scores a data set of any size: shard by shard, each a checkpoint, merged at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

import torch

from howsure.data.scoring.digest import digest
from howsure.data.scoring.folder import WorkFolder
from howsure.data.scoring.formats import FORMATS, Finished, Layout, check_format
from howsure.data.scoring.plan import Plan, Span
from howsure.data.scoring.ray_engine import on_ray
from howsure.data.scoring.shard import Scorer, Shard
from howsure.data.scoring.sources import as_source
from howsure.progress import progress
from howsure.uncertain import Uncertain
from howsure.values.contents import contents_of

# From a scorer, spans and an address to their shards, in any order.
ENGINES: dict[str, Callable[[Scorer, list[Span], str | None], Iterator[Shard]]] = {
    "local": lambda scorer, spans, _: map(scorer.shard, spans),
    "ray": on_ray,
}


@dataclass(frozen=True)
class ScoreSummary:
    """A finished scoring run.

    Attributes:
        path: The file of scores.
        rows: How many rows it has.
        columns: Name and shape per row of every column.
        resumed_rows: Rows that an earlier, interrupted run had already done.
        seconds: How long this run took.
        notes: What the method said about its predictions; the first ten.
    """

    path: Path
    rows: int
    columns: dict[str, tuple[int, ...]]
    resumed_rows: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The file, its columns and the time, in a few lines."""
        done = self.rows - self.resumed_rows
        lines = [
            f"{self.rows} rows in {self.path}",
            "columns: " + ", ".join(f"{name} {shape}" for name, shape in self.columns.items()),
            f"{done} rows scored in {self.seconds:.1f} s",
        ]
        if self.resumed_rows:
            lines.append(f"{self.resumed_rows} rows taken over from an interrupted run")
        return "\n".join([*lines, *self.notes])


def predict_to_file(
    sure: Uncertain,
    source: object,
    out: str | Path,
    *,
    batch: int = 256,
    shard_rows: int | None = None,
    level: float | None = None,
    fresh: bool = False,
    engine: str = "local",
    address: str | None = None,
    show_progress: bool = True,
) -> ScoreSummary:
    """A file with the prediction for every row of a data set, and a summary of it.

    Finished shards are kept in the folder `<out>.parts`. Killed at any point and run again, it
    continues there; the file is the same, byte for byte, as that of a run without interruption.

    Args:
        sure: The model with its noise and method, fitted.
        source: Whatever `howsure.data.scoring.as_source` takes: a tensor or an array of rows,
            several in a tuple or dict, a torch data set, or a `howsure.data.reading` source.
        out: The file: `.npz`, `.csv` or `.parquet`.
        batch: Rows that run through the model at once; the masks of a batch may be shared.
        shard_rows: Rows between two checkpoints, by default 16 batches.
        level: Also write the ends `low` and `high` of the central interval of this level.
        fresh: Drop what an unfinished run left behind.
        engine: "local", or "ray" to spread the shards over a Ray cluster.
        address: The cluster's address; `None` is one on this machine.
        show_progress: Show a bar.
    """
    started = time.perf_counter()
    out = Path(out)
    _check(out, engine, level)
    data = as_source(source)
    plan = Plan.of(len(data), batch, shard_rows)
    scorer = Scorer(sure, data, batch, level)
    folder = WorkFolder(out)
    with folder.opened(manifest_of(scorer, plan), fresh=fresh):
        missing = folder.missing(plan.shards(), scorer.is_current)
        shards = ENGINES[engine](scorer, missing, address) if missing else iter(())
        bar = progress(missing, show_progress, "predict")
        found = (shard for _, shard in zip(bar, shards, strict=True))
        done = next((span for span in plan.shards() if span not in missing), None)
        finished = _filled(folder, plan, done, found)
        notes = finished.notes()
        folder.finish(lambda file: FORMATS[out.suffix](finished, file))
    resumed, seconds = plan.rows - sum(map(len, missing)), time.perf_counter() - started
    return ScoreSummary(out, plan.rows, finished.layout.shapes, resumed, seconds, notes)


def _check(out: Path, engine: str, level: float | None) -> None:
    """What can be refused before any work is done."""
    check_format(out.suffix)
    if out.is_dir():
        raise ValueError(f"`{out}` is a folder; give the name of a file.")
    if engine not in ENGINES:
        raise ValueError(f"`engine` must be one of {list(ENGINES)}, not {engine!r}.")
    if level is not None and not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, not {level}.")


def _filled(folder: WorkFolder, plan: Plan, done: Span | None, shards: Iterator[Shard]) -> Finished:
    """All shards, those that were missing written one by one as they come."""
    layout = None if done is None else Layout.of(folder.read(done).columns)
    for shard in shards:
        if layout is None:
            layout = Layout.of(shard.columns)
            if folder.out.suffix != ".npz":
                layout.check_table()
        layout.check(shard)
        folder.add(shard)
    assert layout is not None
    return Finished(folder, plan.shards(), layout)


_FORMAT = 2  # of shards and manifest


def manifest_of(scorer: Scorer, plan: Plan) -> dict[str, object]:
    """The manifest; a run that differs in any entry is another run."""
    model = scorer.sure.model
    return {
        "format": _FORMAT,
        "data": scorer.source.fingerprint(),
        "weights": digest(model.state_dict()),
        "model": digest(contents_of(model)),
        "settings": digest(contents_of(_settings(scorer.sure))),
        "rows": plan.rows,
        "batch": plan.batch,
        "shard_rows": plan.shard_rows,
        "level": scorer.level,
        "torch": str(torch.__version__),
        "howsure": version("howsure"),
    }


def _settings(sure: Uncertain) -> list[object]:
    # What begins with an underscore is a cache, which fills while the model runs.
    names = [f.name for f in fields(sure.setup) if f.name != "model" and f.name[0] != "_"]
    settings = {name: getattr(sure.setup, name) for name in names}
    calibrators = [calibrator.state() for calibrator in sure.calibrators]
    compiled = sure._compiled is not None  # rounds in another way
    own = None if sure._method is None else sure._method.predict
    return [sure.method, own, settings, calibrators, compiled]
