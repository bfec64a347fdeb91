"""Every public function and class has an example in its docstring, which gives what it says."""

import doctest
import importlib
import inspect
from types import ModuleType

import pytest
import torch
from torch import nn

import howsure as hs

ROOMS = ("metrics", "calibrate", "noise", "robotics", "plots", "report", "fit", "testing")
WIDTH = 80  # columns of a page


def public_names():
    """What `import howsure as hs` offers, and what its public modules do."""
    names = [("howsure", name) for name in hs.__all__]
    for room in ROOMS:
        module = importlib.import_module(f"howsure.{room}")
        names += [(module.__name__, name) for name in sorted(vars(module)) if name[0] != "_"]
    found = {}
    for module, name in names:
        value = getattr(importlib.import_module(module), name)
        is_ours = getattr(value, "__module__", "").startswith("howsure")
        if callable(value) and is_ours and not isinstance(value, ModuleType):
            found.setdefault(f"{module}.{name}", value)
    extras = {
        "howsure.report": hs.report,
        "howsure.Uncertain.fit": hs.Uncertain.fit,
        "howsure.Gate.on_novelty": hs.Gate.on_novelty,
        "howsure.distributed.evaluate": hs.distributed.evaluate,
        "howsure.prediction.Budget": hs.prediction.Budget,
        "howsure.setup.Setup": hs.setup.Setup,
        "howsure.auditing.Audit": hs.auditing.Audit,
    }
    return {**found, **extras}


NAMES = public_names()


def examples_of(name):
    """The examples of one docstring, as `doctest` reads them."""
    found = doctest.DocTestParser().get_examples(inspect.getdoc(NAMES[name]) or "", name)
    assert found, f"The docstring of `{name}` has no example."
    return found


def test_the_public_names_are_found():
    assert len(NAMES) > 130
    assert {"howsure.Uncertain", "howsure.metrics.rmse", "howsure.plots.bands"} <= set(NAMES)


def extra_of(name):
    """The package that an example needs beside torch and numpy, if any."""
    source = "".join(example.source for example in examples_of(name))
    for package in ("gtsam", "rosbags"):
        if package in source:
            return package
    if name.startswith(("howsure.plots.", "howsure.report")):
        return "matplotlib"
    return "torchmetrics" if name == "howsure.metrics.Metric" else None


@pytest.mark.parametrize("name", NAMES)
def test_the_example_gives_what_it_says(name, tmp_path, monkeypatch):
    if (extra := extra_of(name)) is not None:
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    names = {"torch": torch, "nn": nn, "hs": hs}
    example = doctest.DocTest(examples_of(name), names, name, None, None, None)
    torch.manual_seed(0)
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)


def test_the_examples_fit_a_page():
    lines = [
        line
        for name in NAMES
        for example in examples_of(name)
        for line in (*example.source.splitlines(), *example.want.splitlines())
    ]
    assert [line for line in lines if len(line) > WIDTH - 4] == []
