"""Every committed result says how it was made: command, seed, date, versions and hardware."""

import datetime
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks" / "results"
FILES = sorted([*BENCHMARKS.rglob("*.json"), *(ROOT / "results").glob("*.json")])


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def records(content):
    """Of a file, or of its parts, which were made one by one."""
    if "command" in content:
        return [content]
    return list((content.get("made") or content).values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-2:]))
def test_a_result_says_how_it_was_made(file):
    found = records(json.loads(file.read_text()))
    assert found
    for record in found:
        program, script, *_ = record["command"].split()
        assert program == "howsure" or (program == "python" and (ROOT / script).is_file())
        assert "/" not in record["command"].removeprefix(f"{program} {script}")
        seeds = record["seeds"] if "seeds" in record else record["seed"]
        assert isinstance(seeds, int) or all(isinstance(seed, int) for seed in seeds)
        made = record["environment"]
        assert datetime.date.fromisoformat(made["date"]) and made["python"]
        assert made["packages"]["torch"] and made["packages"]["howsure"].count(".") == 2
        assert made["hardware"]["processor"] and made["hardware"]["threads"] >= 1


def test_every_case_of_a_file_has_its_record():
    content = json.loads((BENCHMARKS / "accuracy.json").read_text())
    assert content["made"].keys() == content["cases"].keys()


def test_a_new_record_has_all_that_is_asked_for():
    from bench import record

    made = record([0, 1], asked="python benchmarks/run.py")
    assert made["command"] == "python benchmarks/run.py" and made["seed"] == [0, 1]
    assert made["environment"].keys() == {"date", "python", "packages", "hardware"}
    assert made["environment"]["packages"].keys() >= {"howsure", "torch", "numpy"}


def test_the_command_names_no_place_of_a_machine():
    from bench import command

    given = ["shift.py", "uci", "--data", "/somewhere/data", "--peer-python", "/a/python"]
    script = str(ROOT / "benchmarks" / given[0])
    expected = "python benchmarks/shift.py uci --data PATH --peer-python PYTHON"
    assert command([script, *given[1:]]) == expected
    deeper = str(ROOT / "benchmarks" / "coverage" / "run.py")
    assert command([deeper, "--quick"]) == "python benchmarks/coverage/run.py --quick"
