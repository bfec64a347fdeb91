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
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from howsure.files import sealed, unsealed, write_atomically
from howsure.progress import progress

_PACKAGES = (
    *("howsure", "torch", "numpy", "scikit-learn", "pillow", "h5py", "laplace-torch"),
    "foundation-policy",
)


class Environment(TypedDict):
    """Where a result was made."""

    date: str
    python: str
    packages: dict[str, str]
    hardware: dict[str, str | int | None]


def environment(packages: Sequence[str] = ()) -> Environment:
    """Versions, hardware and date as plain data; of further `packages`, too."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "packages": {name: found for name in (*_PACKAGES, *packages) if (found := _version(name))},
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": "cpu",
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name: Linux has it in a file, elsewhere `platform` knows it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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


class RunFolder:
    """Where one run writes its parts and results."""

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
            torch.save(
                {key: each.detach().cpu() for key, each in model.state_dict().items()}, buffer
            )
            return buffer.getvalue()

        content = io.BytesIO(self._part(f"{name}.pt", compute))
        weights: dict[str, Tensor] = torch.load(content, weights_only=True)
        model.load_state_dict(weights)
        model.eval()

    def _part(self, name: str, compute: Callable[[], bytes]) -> bytes:
        file = self.parts / name
        content = unsealed(file)
        if content is None:
            content = compute()
            write_atomically(file, lambda opened: opened.write(sealed(content)))
        return content

    def write(self, name: str, content: object) -> Path:
        """Writes a result: text as it is, anything else as JSON."""
        path = self.path / name
        if isinstance(content, str):
            write_atomically(path, lambda file: file.write(content), text=True)
        else:
            write_json(path, content)
        return path


def write_json(path: Path, content: object) -> None:
    """Writes plain data; NaN and infinity become null, which every reader of JSON understands."""
    write_atomically(path, lambda file: file.write(_as_json(content)), text=True)


def _as_json(content: object) -> str:
    return json.dumps(_finite(content), indent=1, allow_nan=False, sort_keys=False) + "\n"


def _finite(content: object) -> object:
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not abs(content) < float("inf"):
        return None
    return content


# The picture of a run that its results alone give, so that it can be drawn again.
PICTURE = "compared.png"


@dataclass(frozen=True)
class Step:
    """A part of a run: it is computed once and then read from its file."""

    name: str
    compute: Callable[[], object]


def finished(steps: Sequence[Step], folder: RunFolder, options: Options) -> list[Any]:
    """The values of all steps, with one bar for the whole run."""
    bar = progress(steps, options.show_progress, options.task)
    values = []
    for step in bar:
        describe = getattr(bar, "set_postfix_str", None)
        if describe is not None:
            describe(step.name)
        values.append(folder.value(step.name, step.compute))
    return values


def open_folder(options: Options, settings: Mapping[str, object]) -> RunFolder:
    """The run's folder with its config.json, ready for parts."""
    version = environment()["packages"].get("howsure")
    config = {"task": options.task, "quick": options.quick, "real": options.data is not None}
    # Every line is a part of its own: which of them are wanted changes none.
    kept = {key: value for key, value in settings.items() if key != "methods"}
    config |= {"howsure": version, "settings": kept}
    folder = RunFolder(options.folder, config, fresh=options.fresh)
    folder.write("config.json", {**config, "settings": dict(settings), **_about(options)})
    return folder


def write_results(
    options: Options, folder: RunFolder, results: Mapping[str, object], tables: Sequence[str]
) -> Path:
    """Writes results.json and table.md; returns the table's path."""
    head = {"task": options.task, **_about(options)}
    folder.write("results.json", {**head, **results})
    return folder.write("table.md", "\n".join(tables))


def _about(options: Options) -> dict[str, object]:
    return {
        "name": options.name,
        "command": options.command,
        "seeds": list(options.seed_list),
        "environment": environment(),
    }
