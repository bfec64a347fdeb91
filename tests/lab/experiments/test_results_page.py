"""The page of results says what the committed files say."""

import importlib.util
import json
from pathlib import Path

import pytest

from howsure_lab.experiments.contenders import CONTENDERS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "results").glob("*.json"))


def script():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs/make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_what_the_results_give():
    assert (ROOT / "docs" / "results.md").read_text() == script().page(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_can_be_repeated(file):
    results = json.loads(file.read_text())
    assert results["name"] == file.stem
    assert results["command"].startswith(f"howsure reproduce {results['task']}")
    assert results["seeds"] and results["settings"]
    assert {"date", "packages", "hardware", "python"} <= set(results["environment"])


def test_trained_runs_have_three_seeds_unless_they_are_quick():
    for file in FILES:
        results = json.loads(file.read_text())
        assert "quick" in results["name"] or len(results["seeds"]) >= 3


def test_retrained_methods_have_a_line_for_every_seed():
    retrained = {name for name, contender in CONTENDERS.items() if contender.retrained}
    checked = 0
    for file in FILES:
        results = json.loads(file.read_text())
        seeds = {}
        for line in [*results.get("lines", []), *results.get("real", [])]:
            seeds.setdefault(line.get("method"), set()).add(line.get("seed", line.get("split")))
        for method in seeds.keys() & retrained:
            assert seeds[method] >= set(results["seeds"]), (file.name, method)
            checked += 1
    assert checked
