"""What speed costs in accuracy: exported programs and half-precision variances against eager."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import howsure as hs
from howsure.setup import Setup
from speed.networks import NETWORKS
from speed.passes import KINDS, relative

# A name of `KINDS`, exported as a `.pt2` file; ONNX is checked by the tests.
_EXPORTED = ("ADF", "T = 20, dropout everywhere")
CASES = ("exported", "bfloat16 variance")


def measure(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """The largest relative differences to eager in float32, DroNet, batch 2."""
    if name == "exported":
        return {"difference": {kind: _exported(kind) for kind in _EXPORTED[: 1 if quick else 2]}}
    if "variance_dtype" not in {each.name for each in dataclasses.fields(Setup)}:
        return {"left_out": "there is no `variance_dtype`"}
    return {"difference": {kind: _in_half(kind) for kind in _EXPORTED}}


def _exported(kind: str) -> float:
    network = NETWORKS["DroNet"]
    sure = KINDS[kind].uncertain(network, network.made())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hs.export(sure, network.input(2), Path(folder) / "net.pt2").difference


def _in_half(kind: str) -> float:
    network = NETWORKS["DroNet"]
    model, x = network.made(), network.input(2)
    full = KINDS[kind].uncertain(network, model)
    half = KINDS[kind].uncertain(network, model)
    half.setup = half.setup.replace(variance_dtype=torch.bfloat16)
    return relative(half(x), full(x))
