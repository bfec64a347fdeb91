"""Predicts a data set of any size: shard by shard, each a checkpoint, merged at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

import torch

from howsure.data.scoring.folder import WorkFolder
from howsure.data.scoring.formats import WRITERS, check_format, check_width
from howsure.data.scoring.identity import digest
from howsure.data.scoring.ray_engine import on_ray
from howsure.data.scoring.scorer import Scorer, Shard, cut
from howsure.data.scoring.sources import as_source
from howsure.progress import progress
from howsure.uncertain import Uncertain

_BATCHES = 16  # in a shard unless told: about what sampling holds in memory anyway

# From a scorer, shards' rows and an address to their shards, in any order.
ENGINES: dict[str, Callable[[Scorer, list[range], str | None], Iterator[tuple[range, Shard]]]] = {
    "local": lambda scorer, todo, _: ((rows, scorer.shard(rows)) for rows in todo),
    "ray": on_ray,
}


@dataclass(frozen=True)
class ScoreSummary:
    """A finished scoring run.

    Attributes:
        path: The file of predictions.
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
    Shards whose inputs have changed since are computed again.

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
    check_format(out.suffix)
    if out.is_dir():
        raise ValueError(f"`{out}` is a folder; give the name of a file.")
    if engine not in ENGINES:
        raise ValueError(f"`engine` must be one of {list(ENGINES)}, not {engine!r}.")
    if level is not None and not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, not {level}.")
    data = as_source(source)
    shards = cut_shards(len(data), batch, shard_rows)
    scorer = Scorer(sure, data, batch, level)
    folder = WorkFolder(out, shards, manifest_of(scorer, len(shards[0])))
    with folder.opened(fresh=fresh):
        missing = [rows for rows in shards if not folder.holds(rows, scorer.inputs_digest)]
        results = ENGINES[engine](scorer, missing, address) if missing else iter(())
        bar = progress(missing, show_progress, "predict")
        for _, (rows, shard) in zip(bar, results, strict=True):
            if not folder.layout:
                check_width(out.suffix, shard.columns)
            folder.add(rows, shard)
        folder.finish(lambda file: WRITERS[out.suffix](folder, folder.layout, file))
    shapes = {name: shape for name, (_, shape) in folder.layout.items()}
    resumed, seconds = len(data) - sum(map(len, missing)), time.perf_counter() - started
    return ScoreSummary(out, len(data), shapes, resumed, seconds, folder.notes)


def cut_shards(count: int, batch: int, shard_rows: int | None) -> list[range]:
    """The rows of every shard, which has whole batches."""
    wanted = batch * _BATCHES if shard_rows is None else shard_rows
    for name, value in (("batch", batch), ("shard_rows", wanted)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1, not {value!r}.")
    if count == 0:
        raise ValueError("The data have no rows; there is nothing to predict.")
    return cut(range(count), -(-wanted // batch) * batch)


def manifest_of(scorer: Scorer, shard_rows: int) -> dict[str, object]:
    """The identity of a run: one that differs in any entry is another run.

    Of the data it has the first row, so that another file is noticed at once; every shard has the
    digest of its own inputs.
    """
    sure, rows = scorer.sure, len(scorer.source)
    first = scorer.inputs_digest(range(1))
    # What begins with an underscore is a cache, which fills while the model runs.
    names = [f.name for f in fields(sure.setup) if f.name != "model" and f.name[0] != "_"]
    settings = [
        sure.method,
        None if sure._method is None else sure._method.predict,
        {name: getattr(sure.setup, name) for name in names},
        [calibrator.state() for calibrator in sure.calibrators],
        sure._compiled is not None,  # rounds in another way
    ]
    return {
        "data": digest([rows, first]),
        "weights": digest(sure.model.state_dict()),
        "model": digest(sure.model),
        "settings": digest(settings),
        "rows": rows,
        "batch": scorer.batch,
        "shard_rows": shard_rows,
        "level": scorer.level,
        "torch": str(torch.__version__),
        "howsure": version("howsure"),
    }
