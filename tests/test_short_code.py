"""Code that is read in one go: functions, files, and the way of a call."""

import ast
import re
import statistics
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import howsure as hs
from house import PACKAGE, PAGE


def lines_of_functions():
    """How many lines each function of the package has, by file and name."""
    return {
        (str(path.relative_to(PACKAGE)), node.name, node.lineno): node.end_lineno - node.lineno + 1
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_are_short():
    lines = lines_of_functions()
    ordered = sorted(lines.values())
    assert statistics.median(ordered) <= 8
    assert ordered[int(0.9 * len(ordered))] <= 25
    assert {name: count for name, count in lines.items() if count > 50} == {}


def lines_of_files():
    return {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }


def test_every_file_is_short():
    assert {file: count for file, count in lines_of_files().items() if count > 300} == {}


def test_few_files_are_tiny():
    """An idea is not split over files that are only read together."""
    tiny = [
        file
        for file, count in lines_of_files().items()
        if count < 40 and not file.endswith("__init__.py")
    ]
    assert len(tiny) < 15, tiny


# How many files one call enters after the first: fewer than 12 for the default, and fewer than 20
# for the paper's method.
MOST_FILES = {"gradients": 11, "sampled_adf": 19}


def files_entered(call):
    """The files of the package in which a function runs during a call, in their order."""
    seen = {}

    def note(frame, event, arg):
        if event == "call":
            seen.setdefault(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [str(Path(f).relative_to(PACKAGE)) for f in seen if f.startswith(f"{PACKAGE}/")]


def way_of(method):
    """The files of one call, where nothing is left to be found out about the model."""
    options = {} if method == "gradients" else {"method": method, "rate": 0.1}
    # So many noisy numbers that `auto` takes gradients.
    model = nn.Sequential(nn.Linear(500, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
    x = torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    sure = hs.Uncertain(model, hs.noise.std(0.1), **options)
    assert sure(x).method == method
    return files_entered(lambda: sure(x))


@pytest.mark.parametrize("method", MOST_FILES)
def test_the_way_of_a_call_is_short(method):
    found = way_of(method)
    assert "uncertain/wrapper.py" in found and f"methods/{method}.py" in found
    assert len(found) <= MOST_FILES[method], found


@pytest.mark.parametrize("method", MOST_FILES)
def test_the_page_lists_the_way_of_a_call(method):
    told = re.search(rf"^`{method}`: (.*?)\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert told, f"The page does not list the files of {method}."
    assert re.findall(r"`([^`]*\.py)`", told[1]) == way_of(method)
