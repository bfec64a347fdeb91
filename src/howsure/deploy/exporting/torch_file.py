"""Writes a program as torch's own `.pt2` file, or as a package compiled for this processor."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from howsure.deploy.exporting.metadata import KEY

Run = Callable[[Sequence[Tensor]], list[Tensor]]


def write_program(
    path: Path, exported: torch.export.ExportedProgram, about: dict[str, object]
) -> None:
    """The program and its description in one file."""
    extra = {f"{KEY}.json": json.dumps(about)}
    torch.export.save(exported, path, extra_files=extra)


def write_compiled(
    path: Path, exported: torch.export.ExportedProgram, about: dict[str, object]
) -> None:
    """An AOTInductor package: machine code for this kind of processor, for Python and C++."""
    from torch._inductor import aoti_compile_and_package

    aoti_compile_and_package(exported, package_path=str(path))
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/extra/{KEY}.json", json.dumps(about))


def program_runner(path: Path) -> Run:
    """Runs the file as a user would."""
    module = torch.export.load(path).module()
    return lambda tensors: list(module(*tensors).values())


def compiled_runner(path: Path) -> Run:
    """Runs the package as a user would."""
    from torch._inductor import aoti_load_package

    package = aoti_load_package(str(path))
    return lambda tensors: list(package(*tensors).values())
