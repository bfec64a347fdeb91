"""Wrong arguments are refused before torch is imported."""

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
import sys
from howsure.cli import main
code = main(sys.argv[1:])
print("torch" in sys.modules, "numpy" in sys.modules)
sys.exit(code)
"""


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_torch_is_imported(tmp_path, case):
    arguments, words = REFUSED[case]
    for name in ("x.npy", "x.pt2"):
        (tmp_path / name).write_bytes(b"")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 2 and ran.stdout.split() == ["False", "False"], ran
    assert words in ran.stderr and len(ran.stderr.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "x.pt2"]


def test_every_method_can_be_asked_for():
    from howsure.cli.program import parse
    from howsure.methods import METHODS

    for name in ("auto", *METHODS):
        assert parse(["predict", "a:b", "x.npy", "--method", name]).method == name
