"""The command line hands over to its parts, and names what it does not know."""

import subprocess
import sys

from howsure.cli import COMMANDS, main


def test_help_lists_all_commands(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


def test_without_or_with_an_unknown_command_the_exit_code_is_2(capsys):
    assert main([]) == 2
    assert main(["fly"]) == 2
    assert "no command 'fly'" in capsys.readouterr().err


def test_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "howsure", "reproduce", "flying"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "invalid choice: 'flying'" in result.stderr
