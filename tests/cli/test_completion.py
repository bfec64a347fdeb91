"""Completion scripts know every command and option, and the shells agree."""

import shutil
import subprocess
import sys

import pytest

from howsure.cli.program import NAMES, build_parser, subparsers

shtab = pytest.importorskip("shtab", reason="shtab is not installed")
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def completed(howsure):
    """What bash offers for the last word."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = howsure("completion", "bash").out

    def offered(*words):
        listed = " ".join(f"'{word}'" for word in words)
        lines = [
            script,
            f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}",
            '_shtab_howsure; printf "%s\\n" "${COMPREPLY[@]}"',
        ]
        done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_bash_offers_commands_options_choices_and_files(project, completed):
    assert completed("howsure", "re") == ["report", "reproduce"]
    options = {"--noise", "--noise-std", "--noise-var"}
    assert set(completed("howsure", "predict", "--noise")) == options
    assert completed("howsure", "fit", "--task", "c") == ["classification"]
    assert completed("howsure", "predict", "--weights", "wei") == ["weights.pt"]
    assert "steering" in completed("howsure", "reproduce", "s")


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_know_every_option(shell, howsure):
    script = howsure("completion", shell).out
    commands = subparsers(build_parser())
    assert set(commands) == set(NAMES)
    for command in commands.values():
        for action in command._actions:
            for name in action.option_strings[-1:]:
                assert (f"-l {name[2:]}" if shell == "fish" else name) in script


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_valid_where_the_shell_is_here(shell, howsure):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = howsure("completion", shell).out
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_shtab_the_remedy_is_told(refused, project, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    refused("completion", "bash", words="pip install 'howsure[cli]'")
