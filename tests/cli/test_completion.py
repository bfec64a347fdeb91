"""Completion scripts know every command and option, and bash agrees."""

import shutil
import subprocess

import pytest

from howsure.cli.completing import SCRIPTS, commands_of
from howsure.cli.parser import COMMANDS, build_parser


def completed(*words):
    """What bash offers for the last word."""
    listed = " ".join(f"'{word}'" for word in words)
    lines = [
        SCRIPTS["bash"](build_parser()),
        f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}",
        '_howsure; printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_offers_commands_options_and_choices():
    assert completed("howsure", "re") == ["report", "reproduce"]
    assert set(completed("howsure", "predict", "--noise")) == {
        "--noise",
        "--noise-covariance",
        "--noise-std",
        "--noise-var",
    }
    assert completed("howsure", "predict", "--engine", "") == ["local", "ray"]
    assert completed("howsure", "predict", "--out", "") == []  # left to file names
    assert "steering" in completed("howsure", "reproduce", "s")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_know_every_option(shell, howsure):
    script = howsure("completion", shell).out
    commands = commands_of(build_parser())
    assert {command.name for command in commands} == set(COMMANDS)
    for command in commands:
        for option in command.options:
            name = option.names[-1]
            assert (f"-l {name[2:]}" if shell == "fish" else name) in script


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_valid_where_the_shell_is_here(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = SCRIPTS[shell](build_parser())
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
