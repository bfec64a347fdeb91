"""Wrong arguments are refused before torch is imported."""

import json
import subprocess
import sys

import pytest

REFUSED = {
    "method": (["predict", "a:b", "x.npy", "--method", "gradiants"], "no method 'gradiants'"),
    "noise": (["predict", "a:b", "x.npy", "--noise-std", "-1"], "cannot be negative"),
    "one of several noises": (["predict", "a:b", "x.npy", "--noise-var", "cam=1,nan"], "cannot be"),
    "no number": (["predict", "a:b", "x.npy", "--gray-levels", "two"], "must be a number"),
    "rate": (["predict", "a:b", "x.npy", "--rate", "0.1,1.5"], "at least 0 and below 1"),
    "residual": (["predict", "a:b", "x.npy", "--residual-var", "-2"], "0 or more, not -2"),
    "data": (["predict", "a:b", "missing.npz"], "no file or folder `missing.npz`"),
    "weights": (
        ["fit", "a:b", "x.npy", "--weights", "w.pt"],
        "no file `w.pt` (`--weights`)",
    ),
    "settings": (["predict", "a:b", "x.npy", "--settings", "s.json"], "(`--settings`)"),
    "inputs": (["fit", "a:b", "x.npy", "--train-inputs", "t.npy"], "(`--train-inputs`)"),
    "task": (["predict", "a:b", "x.npy", "--task", "clasification"], "invalid choice"),
    "prediction": (["predict", "a:b", "x.npy", "--prediction", "median"], "invalid choice"),
    "samples": (["predict", "a:b", "x.npy", "--samples", "x"], "whole number of at least 1, not x"),
    "tolerance": (["predict", "a:b", "x.npy", "--tolerance", "a"], "must be a positive number"),
    "rates": (["fit", "a:b", "x.npy", "--rates", "a,b"], "must be numbers with commas"),
    "size": (["fit", "a:b", "x.npy", "--image-size", "3,4,5"], "must be HEIGHT,WIDTH in pixels"),
    "no trust": (["check", "x.pt2", "x.npy"], "it can run code"),
    "no program": (["check", "y.pt2", "x.npy", "--trust"], "no file `y.pt2`"),
    "settings' name": (["fit", "a:b", "x.npy", "--out", "s.txt"], "must end in `.json`"),
}
PROGRAM = """
import contextlib, io, json, sys
from howsure.cli import main
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(arguments)
    print(json.dumps([code, said.getvalue(), sorted({"torch", "numpy"} & set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each refused command gave, in one process, and the folder that they ran in."""
    folder = tmp_path_factory.mktemp("early")
    for name in ("x.npy", "x.pt2"):
        (folder / name).write_bytes(b"")
    asked = json.dumps([arguments for arguments, _ in REFUSED.values()])
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=asked, cwd=folder, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(REFUSED, found, strict=True)), folder


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_torch_is_imported(ran, case):
    code, said, imported = ran[0][case]
    assert code == 2 and imported == []
    assert REFUSED[case][1] in said and len(said.strip().splitlines()) == 1


def test_what_is_refused_leaves_nothing_behind(ran):
    assert sorted(path.name for path in ran[1].iterdir()) == ["x.npy", "x.pt2"]


def test_every_method_can_be_asked_for():
    from howsure.cli.program import parse
    from howsure.methods import METHODS

    for name in ("auto", *METHODS):
        assert parse(["predict", "a:b", "x.npy", "--method", name]).method == name
