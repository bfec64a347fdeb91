"""What a run leaves behind: config.json, results.json, table.md and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howsure.progress import progress
from howsure_lab.experiments.environment import environment
from howsure_lab.experiments.folder import RunFolder
from howsure_lab.experiments.options import Options

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
