"""Writes a program as ONNX, and runs the file in onnxruntime."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure.deploy.exporting.metadata import KEY
from howsure.deploy.exporting.torch_file import Run
from howsure.errors import ExportError, missing_packages


def check_installed() -> None:
    """An error that names the pip line, before any work is done."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        try:
            import_module(package)
        except ImportError as error:
            raise missing_packages(error) from None


def write_onnx(path: Path, exported: torch.export.ExportedProgram, about: dict[str, Any]) -> None:
    """The program as one ONNX file, with its description in `metadata_props`."""
    names = [item["name"] for item in (*about["inputs"], *about["masks"])]
    with _quiet():
        try:
            found = torch.onnx.export(
                exported,
                dynamo=True,
                verbose=False,
                input_names=names,
                output_names=about["outputs"],
            )
        except Exception as error:
            raise ExportError(
                f"ONNX has no form for a part of this program; a `.pt2` file has: {_reason(error)}"
            ) from error
    assert found is not None
    _keep_apart(found.model.graph, set(about["outputs"]))
    model = found.model_proto
    model.metadata_props.add(key=KEY, value=json.dumps(about))
    path.write_bytes(model.SerializeToString())


def _reason(error: Exception) -> str:
    """What the exporter has to say, without the colours of a terminal and its advice."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = text.rpartition("## Exception summary")[2].strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _keep_apart(graph: Any, outputs: set[str]) -> None:
    """Inner values with other names than the outputs: torch calls an average `mean` as well."""
    finals = {id(value) for value in graph.outputs}
    for value in (value for node in graph for value in node.outputs):
        if value.name in outputs and id(value) not in finals:
            value.name = f"{value.name}_inside"


def onnx_runner(path: Path) -> Run:
    """Runs the file in onnxruntime."""
    onnxruntime = import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's reports on packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
