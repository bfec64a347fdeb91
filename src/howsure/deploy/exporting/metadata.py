"""What a file says about itself: noise, rates, units, method, as JSON."""

from __future__ import annotations

import json
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import howsure
from howsure.deploy.exporting.flat import Flat
from howsure.errors import ExportError, missing_packages
from howsure.noise import encode, to_config

KEY = "howsure"


def metadata(flat: Flat, batch: int | None, units: str | None) -> dict[str, Any]:
    """Everything that tells how the variances were made, as plain data."""
    setup = flat.uncertain.setup
    x = flat.spec.filled(flat.tensors[: len(flat.spec.places)])
    sites = setup.sites(x) if setup.rate is not None else ()
    rates = setup.rates(sites) if sites else ()
    return {
        "howsure": howsure.__version__,
        "torch": torch.__version__,
        "method": flat.method.name,
        "noise": _noise(setup.noise),
        "noise_units": "variance, in the square of the input's units",
        "rates": {site.name: rate for site, rate in zip(sites, rates, strict=True)},
        "residual_var": encode(setup.residual_var),
        "samples": setup.samples,
        "seed": setup.seed,
        "prediction": setup.prediction,
        "task": setup.task,
        "tolerance": setup.tolerance,
        "calibrators": [_plain(c.state()) for c in flat.uncertain.calibrators],
        "units": units,
        "batch": batch,
        "inputs": _described(flat),
        "masks": [mask.described() for mask in flat.masks],
        "outputs": flat.output_names,
    }


def _described(flat: Flat) -> list[dict[str, object]]:
    count = len(flat.spec.places)
    pairs = zip(flat.input_names[:count], flat.tensors[:count], strict=True)
    return [
        {"name": name, "shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
        for name, t in pairs
    ]


def _plain(state: dict[str, object]) -> dict[str, object]:
    return {key: encode(value) for key, value in state.items()}


def _noise(noise: object) -> object:
    """The noise as plain data; a function, which is none, by its name."""
    try:
        return to_config(noise)
    except TypeError:
        return repr(noise)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What `howsure.export` wrote into a file about how it was made."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file `{path}`.")
    found = _from_onnx(path) if path.suffix == ".onnx" else _from_pt2(path)
    if not found:
        raise ExportError(f"`{path}` was not written by `howsure.export`.")
    return json.loads(found)


def _from_onnx(path: Path) -> str:
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise missing_packages(error) from None
    model = onnx.load(str(path), load_external_data=False)
    return next((item.value for item in model.metadata_props if item.key == KEY), "")


def _from_pt2(path: Path) -> str:
    """A `.pt2` file is an archive; what torch calls extra files are entries of it."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(f"/{KEY}.json")]
        return archive.read(names[0]).decode() if names else ""
