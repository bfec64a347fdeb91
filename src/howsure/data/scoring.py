"""Predictions for every row of a data set, in one file: shard by shard, resumed after a kill.

Batches begin at whole multiples of their size, counted from the first row of the data. A row is
therefore always computed in the same batch, wherever a run was cut and whoever computes it.

Beside the result is a folder `<out>.parts` until the last shard is done: a lock, a manifest that
says what the run is about, and a file for every finished shard. Files get their names when they are
complete. A shard ends with a digest of itself, its name and the manifest: one that was damaged, or
belongs to other rows or another run, is computed again.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from howsure.arrays import Columns, check_tensor, columns_of, flatten_columns, join_columns
from howsure.data.identity import digest
from howsure.data.reading.files import Inputs, Source
from howsure.errors import import_extra
from howsure.files import open_without_following, sealed, unsealed, write_atomically
from howsure.private_torch import pytree
from howsure.progress import progress
from howsure.trees import as_call, map_leaves

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain

_BATCHES = 16  # in a shard unless told: about what sampling holds in memory anyway
_MOST_COLUMNS = 2000  # of a table
_MOST_NOTES = 10  # a note that counts something is another one in every batch
_MANIFEST, _LOCK = "manifest.json", "lock"
_SHARD = r"rows-\d{12}-\d{12}\.npz"
_NOTES, _INPUTS = "__notes__", "__inputs__"  # the members of a shard's file that are no columns

# Type and shape per row of every column.
Layout: TypeAlias = dict[str, tuple[np.dtype, tuple[int, ...]]]
# The columns of every shard, read on demand.
Shards: TypeAlias = Callable[[], Iterator[Mapping[str, np.ndarray]]]
# The rows of a shard, and its file.
Computed: TypeAlias = tuple[range, bytes]


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

    Examples:
        >>> sure = hs.Uncertain(nn.Linear(3, 1).eval(), noise=0.01)
        >>> x = torch.zeros(4, 3)
        >>> done = hs.predict_to_file(sure, x, "predictions.csv", show_progress=False)
        >>> done.path.name, done.rows
        ('predictions.csv', 4)
    """

    path: Path
    rows: int
    columns: dict[str, tuple[int, ...]]
    resumed_rows: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The file, its columns and the time, in a few lines."""
        lines = [
            f"{self.rows} rows in {self.path}",
            "columns: " + ", ".join(f"{name} {shape}" for name, shape in self.columns.items()),
            f"{self.rows - self.resumed_rows} rows scored in {self.seconds:.1f} s",
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

    Examples:
        >>> sure = hs.Uncertain(nn.Linear(3, 1).eval(), noise=0.01)
        >>> x = torch.zeros(4, 3)
        >>> done = hs.predict_to_file(sure, x, "predictions.csv", show_progress=False)
        >>> done.rows
        4
    """
    started, out = time.perf_counter(), Path(out)
    if out.suffix not in _WRITERS:
        raise ValueError(
            f"The result's name must end in one of {list(_WRITERS)}, not {out.suffix!r}."
        )
    if out.is_dir():
        raise ValueError(f"`{out}` is a folder; give the name of a file.")
    if out.suffix == ".parquet":
        import_extra("pyarrow", "Parquet files need `pyarrow`")
    if engine not in _ENGINES:
        raise ValueError(f"`engine` must be one of {list(_ENGINES)}, not {engine!r}.")
    if level is not None and not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, not {level}.")
    scorer = Scorer(sure, as_source(source), batch, level)
    count = len(scorer.source)
    shards = cut_shards(count, batch, shard_rows)
    parts = _Parts(out, shards, manifest_of(scorer, len(shards[0])))
    with parts.opened(fresh=fresh):
        missing = [rows for rows in shards if not parts.has(rows, scorer.inputs_digest)]
        computed = _ENGINES[engine](scorer, missing, address) if missing else iter(())
        bar = progress(missing, show_progress, "predict")
        for _, (rows, shard) in zip(bar, computed, strict=True):
            parts.add(rows, shard)
        parts.merge()
    return ScoreSummary(
        out,
        rows=count,
        columns={name: shape for name, (_, shape) in parts.layout.items()},
        resumed_rows=count - sum(map(len, missing)),
        seconds=time.perf_counter() - started,
        notes=tuple(_first(note for rows in shards for note in parts.notes[rows])),
    )


def cut_shards(count: int, batch: int, shard_rows: int | None) -> list[range]:
    """The rows of every shard, which has whole batches."""
    size = batch * _BATCHES if shard_rows is None else shard_rows
    for name, value in (("batch", batch), ("shard_rows", size)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1, not {value!r}.")
    if count == 0:
        raise ValueError("The data have no rows; there is nothing to predict.")
    return _cut(range(count), -(-size // batch) * batch)


def _cut(rows: range, size: int) -> list[range]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


# --- Rows of data -----------------------------------------------------------------------------


def as_source(data: Any) -> Source:
    """The data as a source of rows.

    Args:
        data: A source itself; a tensor or array of shape (rows, ...); a tuple of them (the
            model's arguments by position) or a dict (by name); or a torch data set with a
            length, whose items are inputs or pairs (inputs, target).

    Examples:
        >>> from howsure.data.scoring import as_source
        >>> len(as_source(torch.zeros(4, 3)))
        4
    """
    if hasattr(data, "rows") and hasattr(data, "__len__"):
        return data
    if isinstance(data, (Tensor, np.ndarray, tuple, Mapping)):
        return InMemory(dict(data) if isinstance(data, Mapping) else data)
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise TypeError(
            f"A {type(data).__name__} can only be iterated, and scoring needs rows by number in "
            "order to resume; give a tensor, an array, a data set with `__len__` and "
            "`__getitem__`, or an object with `__len__` and `rows`."
        )
    return _Items(data)


@dataclass(frozen=True, eq=False)
class InMemory:
    """Tensors or arrays, also memory-mapped ones, whose first axis counts the rows."""

    data: Any

    def __post_init__(self) -> None:
        """All must have the same number of rows."""
        for column in self.columns:
            if not isinstance(column, (Tensor, np.ndarray)) or column.ndim == 0:
                raise TypeError(
                    "Data in memory must be tensors or arrays of shape (rows, ...), not "
                    f"{type(column).__name__}."
                )
            if isinstance(column, Tensor):
                check_tensor(column)
        lengths = [len(column) for column in self.columns]
        if not lengths or len(set(lengths)) > 1:
            raise ValueError(f"All inputs must have the same number of rows, not {lengths}.")

    @property
    def columns(self) -> list[Any]:
        """The tensors and arrays, without names."""
        return pytree.tree_leaves(self.data)

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, start: int, stop: int) -> Inputs:
        """The rows as tensors."""

        def tensor(column: Any) -> Tensor:
            part = column[start:stop]
            # Copied: torch would warn that a memory-mapped file cannot be written to.
            return part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))

        return map_leaves(tensor, self.data)


@dataclass(frozen=True, eq=False)
class _Items:
    """A torch data set with a length; targets are left aside."""

    data: Dataset[object]

    def __len__(self) -> int:
        return len(self.data)  # pyright: ignore[reportArgumentType]

    def rows(self, start: int, stop: int) -> Inputs:
        """The items' inputs, collated as a `DataLoader` does."""
        items: list[Any] = [self.data[index] for index in range(start, stop)]
        is_pair = isinstance(items[0], (tuple, list)) and len(items[0]) == 2
        batch = default_collate([item[0] for item in items] if is_pair else items)
        return tuple(batch) if isinstance(batch, list) else batch


# --- Shards -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scorer:
    """Turns numbers of rows into predictions; may be sent to another process.

    Attributes:
        sure: The model with its noise and method.
        source: The data.
        batch: Rows that run through the model at once.
        level: Level of the intervals, if they are wanted.
    """

    sure: Uncertain
    source: Source
    batch: int
    level: float | None = None

    def shard(self, rows: range) -> bytes:
        """The `.npz` of some rows: their columns, the first notes and the digest of the inputs."""
        columns, notes, digests = [], [], []
        for batch in _cut(rows, self.batch):
            inputs = self._inputs(batch)
            digests.append(digest(inputs))
            with torch.no_grad(), _naming(batch):
                args, kwargs = as_call(map_leaves(self._on_device, inputs))
                prediction = self.sure(*args, **kwargs)
                columns.append(columns_of(prediction.to_dict(self.level), len(batch)))
            notes += prediction.notes
        about = {_NOTES: np.array(_first(notes), np.str_), _INPUTS: np.array(digest(digests))}
        buffer = io.BytesIO()
        np.savez(buffer, **join_columns(columns), **about)  # pyright: ignore[reportArgumentType]
        return buffer.getvalue()

    def inputs_digest(self, rows: range) -> str:
        """The digest of the inputs of these rows, without running the model."""
        return digest([digest(self._inputs(batch)) for batch in _cut(rows, self.batch)])

    def _inputs(self, rows: range) -> Inputs:
        with _naming(rows):
            return self.source.rows(rows.start, rows.stop)

    def _on_device(self, leaf: object) -> object:
        weight = next(self.sure.model.parameters(), None)
        return leaf.to(weight.device) if isinstance(leaf, Tensor) and weight is not None else leaf


@contextmanager
def _naming(rows: range) -> Iterator[None]:
    """Puts the rows before the message of an error."""
    try:
        yield
    except (ValueError, TypeError) as error:
        which = f"Rows {rows[0]} to {rows[-1]}" if len(rows) > 1 else f"Row {rows[0]}"
        raise type(error)(f"{which}: {error}") from error


def _first(notes: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(notes))[:_MOST_NOTES]


def manifest_of(scorer: Scorer, shard_rows: int) -> dict[str, object]:
    """The identity of a run: one that differs in any entry is another run.

    Of the data it has the first row, so that another file is noticed at once; every shard has the
    digest of its own inputs.
    """
    sure, rows = scorer.sure, len(scorer.source)
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
        "data": digest([rows, scorer.inputs_digest(range(1))]),
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


class _Parts:
    """The folder `<out>.parts`, in which the shards of one run wait for the last of them."""

    def __init__(self, out: Path, shards: list[range], manifest: dict[str, object]) -> None:
        self.out, self.folder = out, out.with_name(f"{out.name}.parts")
        self.shards, self.manifest = shards, manifest
        self.layout: Layout = {}
        self.notes: dict[range, list[str]] = {}

    @contextmanager
    def opened(self, *, fresh: bool) -> Iterator[None]:
        """The folder for this process alone; refuses to continue another run unless `fresh`."""
        with _locked(self.folder):
            try:
                # Temporary files of a run that was killed. Files of other names are not ours.
                names = "|".join((re.escape(_MANIFEST), re.escape(self.out.name), _SHARD))
                self._remove(rf"\.({names})\.[0-9a-f]{{16}}")
                if fresh:
                    self._remove(_SHARD)
                self._check_manifest()
                text = json.dumps(self.manifest, indent=2) + "\n"
                write_atomically(self.folder / _MANIFEST, lambda file: file.write(text), text=True)
                yield
            finally:
                if not self._files(_SHARD):  # finished, or failed before the first shard
                    self._remove(f"{re.escape(_MANIFEST)}|{_LOCK}")
                    with suppress(OSError):  # a file that is not ours keeps its folder
                        self.folder.rmdir()

    def _check_manifest(self) -> None:
        """An error if there are shards of another run."""
        try:
            earlier = dict(json.loads((self.folder / _MANIFEST).read_text(encoding="utf-8")))
        except (TypeError, ValueError, FileNotFoundError):
            return  # shards of another run do not have this manifest in their digest
        changed = [name for name, value in self.manifest.items() if earlier.get(name) != value]
        if changed and self._files(_SHARD):
            listed = " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]]))
            raise ValueError(
                f"`{self.folder}` holds an unfinished run with other {listed}. Run it as before to "
                "finish it, or drop what it has done with `fresh=True`."
            )

    def has(self, rows: range, inputs_digest: Callable[[range], str]) -> bool:
        """Whether the shard of these rows is whole, and its inputs are still the same."""
        shard = unsealed(self._path(rows), self._context(rows))
        if shard is None:
            return False
        arrays = _arrays(shard)
        if str(arrays[_INPUTS]) != inputs_digest(rows):
            return False
        self._register(rows, arrays)
        return True

    def add(self, rows: range, shard: bytes) -> None:
        """Writes a shard; from here on it is done."""
        self._register(rows, _arrays(shard))
        content = sealed(shard, self._context(rows))
        write_atomically(self._path(rows), lambda file: file.write(content))

    def _register(self, rows: range, arrays: Columns) -> None:
        """Keeps the layout and the notes; all shards must have the same columns."""
        columns = {name: array for name, array in arrays.items() if name not in (_NOTES, _INPUTS)}
        layout = {name: (array.dtype, array.shape[1:]) for name, array in columns.items()}
        if not self.layout:
            count = sum(math.prod(shape) for _, shape in layout.values())
            if self.out.suffix != ".npz" and count > _MOST_COLUMNS:
                raise ValueError(
                    f"A table would have {count} columns; write large outputs to a `.npz` file."
                )
            self.layout = layout
        if layout != self.layout:
            raise ValueError(
                f"Rows {rows.start} to {rows.stop - 1}: the outputs have the types and shapes "
                f"{layout}, and {self.layout} elsewhere; all rows of a file must be alike."
            )
        self.notes[rows] = arrays[_NOTES].tolist()

    def merge(self) -> None:
        """Writes the result, gives it its name in one step, and removes the shards."""

        def shards() -> Iterator[Mapping[str, np.ndarray]]:
            for rows in self.shards:
                # Readers of zip files leave aside the digest that follows the archive.
                with np.load(self._path(rows), allow_pickle=False) as arrays:
                    yield arrays

        write, rows = _WRITERS[self.out.suffix], self.shards[-1].stop
        write_atomically(
            self.out, lambda file: write(shards, self.layout, rows, file), folder=self.folder
        )
        self._remove(_SHARD)

    def _path(self, rows: range) -> Path:
        return self.folder / f"rows-{rows.start:012d}-{rows.stop:012d}.npz"

    def _context(self, rows: range) -> bytes:
        return json.dumps([self._path(rows).name, self.manifest]).encode()

    def _files(self, pattern: str) -> list[Path]:
        return [path for path in self.folder.iterdir() if re.fullmatch(pattern, path.name)]

    def _remove(self, pattern: str) -> None:
        for path in self._files(pattern):
            path.unlink()


def _arrays(shard: bytes) -> Columns:
    with np.load(io.BytesIO(shard), allow_pickle=False) as arrays:
        return dict(arrays)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made if it is missing, for this process alone; an error if another has it.

    The system drops the lock when a process ends, also by a kill.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open_without_following(folder / _LOCK)
        except FileNotFoundError:
            continue  # another run has just finished and removed the folder
        with file:
            if not _lock(file):
                raise ValueError(
                    f"Another process is at work in `{folder}`; wait for it, or write to another "
                    "file."
                )
            # Not a lock on a file that another run has removed since it was opened.
            if _is_still(file, folder / _LOCK):
                yield
                return


def _is_still(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: users must see to it themselves
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- Formats of the result --------------------------------------------------------------------


def _write_npz(shards: Shards, layout: Layout, rows: int, file: IO[bytes]) -> None:
    """One uncompressed array per column; equal predictions give equal bytes."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, (dtype, shape) in layout.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system = 3  # as on Unix, wherever it is written
            descr = np.lib.format.dtype_to_descr(dtype)
            header = {"descr": descr, "fortran_order": False, "shape": (rows, *shape)}
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array_header_1_0(target, header)
                for shard in shards():
                    target.write(shard[name].tobytes())


def _tables(shards: Shards, layout: Layout) -> Iterator[Columns]:
    """A column of numbers for every element of the outputs, shard by shard."""
    for shard in shards():
        yield flatten_columns({name: shard[name] for name in layout})


def _write_csv(shards: Shards, layout: Layout, rows: int, file: IO[bytes]) -> None:
    """A line per row; the shortest digits that give the same numbers again."""
    for index, table in enumerate(_tables(shards, layout)):
        if index == 0:
            file.write((",".join(table) + "\n").encode())
        texts = [values.astype(str).tolist() for values in table.values()]
        file.write("".join(",".join(line) + "\n" for line in zip(*texts, strict=True)).encode())


def _write_parquet(shards: Shards, layout: Layout, rows: int, file: IO[bytes]) -> None:
    """A column per number, a row group per shard."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    writer = None
    for table in _tables(shards, layout):
        for name, values in table.items():
            # Few readers of Parquet know half precision.
            dtype = np.float32 if values.dtype == np.float16 else values.dtype
            table[name] = np.ascontiguousarray(values, dtype)
        group = arrow.table(table)
        writer = writer or parquet.ParquetWriter(file, group.schema)
        writer.write_table(group)
    assert writer is not None
    writer.close()


_WRITERS: dict[str, Callable[[Shards, Layout, int, IO[bytes]], None]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}


# --- Ray --------------------------------------------------------------------------------------


def _on_ray(scorer: Scorer, shards: list[range], address: str | None) -> Iterator[Computed]:
    """The same shards on a Ray cluster, in the order in which they are done.

    Every worker has the model, takes the next free shard, reads its rows from the source itself and
    sends predictions back; this process writes them. A worker that dies is replaced and its shard
    computed again.
    """
    ray = import_extra("ray", 'engine="ray" needs `ray`', "ray")
    datasets = import_extra("ray.data", 'engine="ray" needs `ray.data`', "ray")
    was_connected = ray.is_initialized()
    if not was_connected:
        # Workers on this machine find the modules that this process finds, the model's among them.
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {} if address else {"env_vars": {"PYTHONPATH": paths}}
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="warning",
            runtime_env=environment,
        )
    try:
        shared = ray.put(scorer)  # held here, so that a new worker can fetch it as well
        cores = int(ray.cluster_resources().get("CPU", 1))
        work = datasets.from_items(
            [{"start": rows.start, "stop": rows.stop} for rows in shards],
            override_num_blocks=len(shards),
        )
        work.context.enable_progress_bars = False
        rows_of_shards = work.map_batches(
            _Worker,
            fn_constructor_args=(shared,),
            batch_size=1,
            num_cpus=1,
            compute=datasets.ActorPoolStrategy(size=max(1, min(cores, len(shards)))),
        )
        for row in rows_of_shards.iter_rows():
            if row["refusal"]:
                raise ValueError(row["refusal"])
            yield range(row["start"], row["stop"]), row["shard"]
    finally:
        if not was_connected:
            ray.shutdown()


class _Worker:
    """A process of the cluster, with a model of its own."""

    def __init__(self, scorer: object) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1)  # a core for each worker
        self.scorer: Scorer = ray.get(scorer)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[object]]:
        """One shard as the bytes of its file, or the sentence that refuses it.

        Raised here, the sentence would drown in the traces of the cluster.
        """
        start, stop = int(batch["start"][0]), int(batch["stop"][0])
        shard, refusal = b"", ""
        try:
            shard = self.scorer.shard(range(start, stop))
        except (ValueError, TypeError, NotImplementedError) as error:
            refusal = str(error)
        return {"start": [start], "stop": [stop], "shard": [shard], "refusal": [refusal]}


# From a scorer, shards' rows and an address to the shards, in any order.
_ENGINES: dict[str, Callable[[Scorer, list[range], str | None], Iterator[Computed]]] = {
    "local": lambda scorer, shards, _: ((rows, scorer.shard(rows)) for rows in shards),
    "ray": _on_ray,
}
