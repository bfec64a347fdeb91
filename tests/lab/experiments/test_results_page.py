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


def known_and_run():
    def line(method, nll, **others):
        return {"method": method, "seed": 0, "scores": {"clear": {"nll": nll}}, **others}

    settings = {"size": 64, "methods": ["constant"]}
    known = {"task": "steering", "settings": settings}
    known["lines"] = [line("constant", 1.0), line("adjoint", 2.0)]
    lines = [line("ensemble", 4.0), line("constant", 1.0), line("gradients", 3.0)]
    run = {"command": "again", "environment": {}, "settings": settings, "lines": lines}
    return known, run


def test_lines_are_added_beside_the_committed_ones():
    known, run = known_and_run()
    merged = script().with_lines(known, run)
    # What replaced the adjoint is there, in the order of the contenders; the floor stays one line.
    found = [(line["method"], line.get("added")) for line in merged["lines"]]
    assert found == [("constant", None), ("gradients", 0), ("ensemble", 0)]
    assert merged["lines"][0] == known["lines"][0]
    assert merged["additions"] == [{"command": "again", "environment": {}}]


def test_networks_that_were_trained_again_bring_their_floor():
    known, run = known_and_run()
    run["lines"][1]["scores"]["clear"]["nll"] = 1.1
    merged = script().with_lines(known, run)
    nll = {line["method"]: line["scores"]["clear"]["nll"] for line in merged["lines"]}
    assert nll == {"constant": 1.0, "constant_again": 1.1, "gradients": 3.0, "ensemble": 4.0}
    # Further lines about these networks do not bring it once more.
    run["lines"][0]["method"] = "ensemble_gradients"
    more = script().with_lines(merged, run)
    added = [line["method"] for line in more["lines"] if line.get("added") == 1]
    assert added == ["ensemble_gradients"] and len(more["lines"]) == len(merged["lines"]) + 1


def test_lines_that_are_made_again_replace_the_committed_ones():
    known, run = known_and_run()
    merged = script().with_lines(known, run)
    run["lines"][2]["scores"]["clear"]["nll"] = 2.5
    kept = script().with_lines(merged, run)
    assert kept["lines"] == merged["lines"]
    anew = script().with_lines(merged, run, ["gradients"])
    found = [(line["method"], line.get("added")) for line in anew["lines"]]
    assert found == [("constant", None), ("gradients", 1), ("ensemble", 0)]
    assert anew["lines"][1]["scores"] == {"clear": {"nll": 2.5}}


def test_every_line_says_where_it_comes_from():
    added = 0
    for file in FILES:
        results = json.loads(file.read_text())
        for line in [*results.get("lines", []), *results.get("real", [])]:
            if "added" in line:
                about = results["additions"][line["added"]]
                assert line["method"] in (*about["command"].split(), "constant_again")
                assert {"date", "packages", "hardware"} <= set(about["environment"])
                added += 1
    assert added
