"""Prints a script that completes commands and options in your shell."""

from __future__ import annotations

import argparse

from howsure.cli.result import Result

HELP = "completion for bash, zsh or fish"
EXAMPLES = """
  eval "$(howsure completion bash)"                               # in ~/.bashrc
  eval "$(howsure completion zsh)"                                # in ~/.zshrc, after compinit
  howsure completion fish > ~/.config/fish/completions/howsure.fish
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure completion` to its parser."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def run(arguments: argparse.Namespace) -> Result:
    """The completion script for the shell."""
    from howsure.cli.completing import SCRIPTS
    from howsure.cli.parser import build_parser

    script = SCRIPTS[arguments.shell](build_parser())
    return Result(script, {"shell": arguments.shell, "script": script})
