"""Prints a script that completes commands and options in your shell."""

from __future__ import annotations

import argparse

from howsure.cli.result import Result

HELP = "completion for bash, zsh or fish"
EXAMPLES = """
  eval "$(howsure completion bash)"                               # in ~/.bashrc
  howsure completion zsh > ~/.zfunc/_howsure                      # a folder of $fpath
  howsure completion fish > ~/.config/fish/completions/howsure.fish
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure completion` to its parser."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def run(arguments: argparse.Namespace) -> Result:
    """The completion script for the shell."""
    try:
        import shtab  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "Completion needs `shtab`, which is not installed: `pip install 'howsure[cli]'`."
        ) from None
    from howsure.cli.parser import build_parser, commands_of

    parser = build_parser()
    for command in commands_of(parser).values():
        for action in command._actions:
            if action.choices is None and action.nargs != 0:  # may be a file
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    script = shtab.complete(parser, arguments.shell)
    return Result(script, {"shell": arguments.shell, "script": script})
