"""`howsure init` writes a project whose every command runs, and overwrites nothing."""

import re
import runpy
import shlex
import sys

import pytest

from howsure.cli.starter import FILES


def test_a_folder_that_is_not_empty_is_refused(project, refused):
    refused("init", ".", words="exists and is not empty")
    refused("init", "data.npz", words="exists and is not empty")


def test_a_failure_leaves_nothing_behind(project, refused, monkeypatch):
    def fail(folder, name):
        folder.mkdir(exist_ok=True)
        raise OSError(28, "No space left on device", str(folder / name))

    monkeypatch.setattr("howsure.cli.starter._written", fail)
    refused("init", "first", words="No space left on device")


@pytest.mark.slow
def test_every_command_of_the_project_runs(tmp_path, howsure, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert howsure("init", "first").code == 0
    folder = tmp_path / "first"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    try:
        runpy.run_path("make_data.py", run_name="__main__")
        readme = (folder / "README.md").read_text()
        shell = re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        commands = [line for block in shell for line in block.splitlines()]
        assert commands.pop(0) == "python make_data.py"
        for command in commands:
            words = shlex.split(command)
            ran = howsure(*words[1:], "--json")
            assert words[0] == "howsure" and ran.code == 0, ran.err
            assert ran.data["warnings"] == []
        (python,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        exec(compile(python, "README.md", "exec"), {})
    finally:
        sys.modules.pop("model", None)
    assert {"report.html", "sure.pt2", "predictions.csv"} <= {p.name for p in folder.iterdir()}
