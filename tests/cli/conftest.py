"""A small project in a folder of its own: model, weights, data; and the command line on it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from howsure.cli import main

MODEL = """
import torch
from torch import nn


def build(hidden=8, inputs=3):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def broken():
    raise ZeroDivisionError("by zero")


def prints():
    print("a model that talks")
    return build()


class TwoSensors(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Linear(2, 4), nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, left, right):
        return self.head(torch.relu(self.a(left) + self.b(right)))


class Pixels(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.head = nn.Conv2d(channels, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


class Odd(nn.Module):
    def forward(self, x):
        return torch.special.i1e(x)


number = 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with `project_model.py`, weights and data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "project_model", raising=False)
    (tmp_path / "project_model.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    import project_model

    net = project_model.build()
    x = generator.normal(size=(20, 3))
    with torch.no_grad():
        y = net(torch.from_numpy(x).float()).double().numpy() + 0.1 * generator.normal(size=(20, 1))
    np.savez("data.npz", x=x, y=y)
    np.savez_compressed("packed.npz", x=x, y=y)
    np.save("x.npy", x)
    np.save("y.npy", y)
    rows = "\n".join(",".join(f"{v:.17g}" for v in (*a, *b)) for a, b in zip(x, y, strict=True))
    (tmp_path / "data.csv").write_text(f"a,b,c,y\n{rows}\n")
    torch.save(net.state_dict(), "weights.pt")
    yield tmp_path
    sys.modules.pop("project_model", None)


class Ran:
    """What a command printed, and its exit code."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def data(self):
        return json.loads(self.out)


@pytest.fixture
def howsure(capsys):
    """Runs a command in this process."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


@pytest.fixture
def refused(howsure):
    """Runs a command that must be refused: exit code 2, one sentence, no new file."""

    def run(*arguments, words):
        before = sorted(Path.cwd().rglob("*"))
        ran = howsure(*arguments)
        assert ran.code == 2, ran.out + ran.err
        assert words in ran.err and "Traceback" not in ran.err
        assert len(ran.err.strip().splitlines()) == 1, ran.err
        after = [path for path in Path.cwd().rglob("*") if "__pycache__" not in str(path)]
        assert sorted(after) == [path for path in before if "__pycache__" not in str(path)]
        return ran

    return run
