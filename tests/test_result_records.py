"""Every committed result says how it was made: command, seed, versions and date."""

import datetime
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results"
# Written from the other files, by the run that wrote them.
DERIVED = {"must_hold.json"}
FILES = sorted(file for file in FOLDER.rglob("*.json") if file.name not in DERIVED)


def records(content):
    """Of a file, or of its parts, which were made one by one."""
    if "command" in content:
        return [content]
    return list((content.get("made") or content).values())


def dates(record):
    """The one of its environment, or those of its cases."""
    own = record.get("date") or record.get("environment", {}).get("date")
    return [own] if own else [case["date"] for case in record["cases"].values()]


def torch_of(record):
    packages = record.get("versions") or record["environment"]["packages"]
    return packages["torch"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_says_how_it_was_made(file):
    found = records(json.loads(file.read_text()))
    assert found
    for record in found:
        python, script, *_ = record["command"].split()
        assert python == "python" and (ROOT / script).is_file()
        assert "/" not in record["command"].removeprefix(f"{python} {script}")
        assert isinstance(record["seed"], int) or all(isinstance(s, int) for s in record["seed"])
        assert all(datetime.date.fromisoformat(date) for date in dates(record))
        assert torch_of(record)


def test_every_case_of_a_file_has_its_record():
    content = json.loads((FOLDER / "accuracy.json").read_text())
    assert content["made"].keys() == content["cases"].keys()


def test_the_command_names_no_place_of_a_machine(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from record import command

    given = ["shift.py", "uci", "--data", "/somewhere/data", "--peer-python", "/a/python"]
    script = str(ROOT / "benchmarks" / given[0])
    expected = "python benchmarks/shift.py uci --data PATH --peer-python PYTHON"
    assert command([script, *given[1:]]) == expected
    deeper = str(ROOT / "benchmarks" / "coverage" / "run.py")
    assert command([deeper, "--quick"]) == "python benchmarks/coverage/run.py --quick"
