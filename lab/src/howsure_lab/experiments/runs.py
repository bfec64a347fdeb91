"""A run of an experiment: what is asked for, and the folder, records and tables that it leaves.

A part is a value (JSON) or weights (a state dict). Its file appears whole or not at all, and ends
with a seal: a part that was damaged since is computed again. Parts live
in a folder named after the configuration: a run with other settings never meets them. The number
of seeds does not belong to it, so that more seeds can be added to a finished run.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from howsure.files import sealed, unsealed, write_atomically
from howsure.progress import progress

_PACKAGES = (
    *("howsure", "torch", "numpy", "scikit-learn", "pillow", "h5py", "laplace-torch"),
    "foundation-policy",
)
# The picture of a run that its results alone give, so that it can be drawn again.
PICTURE = "compared.png"


def environment(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Versions, hardware and date as plain data; of further `packages`, too."""
    versions = {}
    for package in (*_PACKAGES, *packages):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "packages": versions,
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": "cpu",
        },
    }


def _processor() -> str:
    """The processor's name: Linux has it in a file, elsewhere `platform` knows it."""
    info = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*:(.*)", info.read_text() if info.is_file() else "", re.M)
    return name[1].strip() if name else platform.processor() or platform.machine()


@dataclass(frozen=True)
class Options:
    """The options of `howsure reproduce`."""

    task: str
    data: Path | None = None  # folder with the real data; `None` for data without a download
    quick: bool = False  # smaller data, fewer steps: minutes instead of hours
    seeds: int | None = None  # how many; 1 in quick runs unless given, else 3
    out: Path | None = None
    fresh: bool = False  # compute everything again, also what an earlier run has finished
    methods: tuple[str, ...] | None = None  # only these lines of the table; `None` for all
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

    def narrowed(self, settings: Any) -> Any:
        """The settings with only those of their methods that were asked for."""
        return replace(settings, methods=self.chosen(settings.methods))

    @property
    def name(self) -> str:
        """The task with what kind of run it is, such as `steering-real-quick`."""
        return self.task + ("-real" if self.data else "") + ("-quick" if self.quick else "")

    @property
    def command(self) -> str:
        """The command that repeats the run; the data's folder is named DATA."""
        data = ["--data DATA"] if self.data else []
        quick = ["--quick"] if self.quick else []
        seeds = [] if self.seeds is None else [f"--seeds {self.seeds}"]
        only = ["--methods", *self.methods] if self.methods else []
        return " ".join(["howsure reproduce", self.task, *data, *quick, *seeds, *only])


class RunFolder:
    """A folder with parts: what was computed once is read from its file."""

    def __init__(self, path: Path, config: Mapping[str, object], *, fresh: bool = False) -> None:
        """Opens the folder.

        Args:
            path: The folder; it is made if it is not there.
            config: Everything that the parts depend on.
            fresh: Forget the parts of earlier runs with this configuration.
        """
        self.path = path
        text = json.dumps(config, sort_keys=True, default=str)
        self.parts = path / "parts" / hashlib.sha256(text.encode()).hexdigest()[:12]
        if fresh and self.parts.is_dir():
            shutil.rmtree(self.parts)
        self.parts.mkdir(parents=True, exist_ok=True)

    def value(self, name: str, compute: Callable[[], object]) -> Any:
        """The part of this name: from its file, else computed and written; plain data only."""
        return json.loads(self._part(f"{name}.json", lambda: _as_json(compute()).encode()))

    def trained(self, name: str, model: nn.Module, train: Callable[[nn.Module], object]) -> None:
        """Gives the model the weights of this name: from their file, else by training it."""

        def compute() -> bytes:
            train(model)
            buffer = io.BytesIO()
            state = model.state_dict()
            torch.save({key: each.detach().cpu() for key, each in state.items()}, buffer)
            return buffer.getvalue()

        content = io.BytesIO(self._part(f"{name}.pt", compute))
        model.load_state_dict(torch.load(content, weights_only=True))
        model.eval()

    def _part(self, name: str, compute: Callable[[], bytes]) -> bytes:
        file = self.parts / name
        content = unsealed(file)
        if content is None:
            content = compute()
            write_atomically(file, lambda opened: opened.write(sealed(content)))
        return content


class Run(RunFolder):
    """An experiment at work: what was asked for, and the folder with its parts and records."""

    settings: Any

    def __init__(self, options: Options, settings: Any) -> None:
        """Opens the run's folder and writes config.json; `settings` is a dataclass."""
        self.options, self.settings = options, settings
        self._record = asdict(settings)
        self._about = {
            "name": options.name,
            "command": options.command,
            "seeds": list(options.seed_list),
            "environment": environment(),
        }
        # Every line is a part of its own: which of them are wanted changes none.
        lasting = {key: value for key, value in self._record.items() if key != "methods"}
        config = {
            "task": options.task,
            "quick": options.quick,
            "real": options.data is not None,
            "howsure": self._about["environment"]["packages"].get("howsure"),
            "settings": lasting,
        }
        super().__init__(options.folder, config, fresh=options.fresh)
        write_json(self.path / "config.json", {**config, "settings": self._record, **self._about})

    def finished(self, steps: Mapping[str, Callable[[], object]]) -> list[Any]:
        """The values of all steps, each a part of the run, with one bar for all."""
        bar = progress(steps, self.options.show_progress, self.options.task)
        values = []
        for name in bar:
            if describe := getattr(bar, "set_postfix_str", None):
                describe(name)
            values.append(self.value(name, steps[name]))
        return values

    def report(
        self,
        results: Mapping[str, object],
        tables: Callable[[Mapping[str, Any]], Sequence[str]],
        draw: Callable[[Mapping[str, Any], Path], object] | None = None,
    ) -> Path:
        """Writes results.json, the picture and table.md; returns the table's path."""
        results = {"settings": self._record, **results}
        if draw is not None:
            draw(results, self.path / PICTURE)
        head = {"task": self.options.task, **self._about}
        write_json(self.path / "results.json", {**head, **results})
        table = self.path / "table.md"
        write_atomically(table, lambda file: file.write("\n".join(tables(results))), text=True)
        return table


def write_json(path: Path, content: object) -> None:
    """Writes plain data; NaN and infinity become null, which every reader of JSON understands."""
    write_atomically(path, lambda file: file.write(_as_json(content)), text=True)


def _as_json(content: object) -> str:
    return json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"


def _finite(content: object) -> object:
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not abs(content) < float("inf"):
        return None
    return content
