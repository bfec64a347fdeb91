"""Scripts that complete commands and options in a shell, made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        names: `-q`, `--quiet`.
        words: Its help, on one line.
        choices: What it takes, if that is a fixed list.
        takes_value: Whether something follows it.
    """

    names: tuple[str, ...]
    words: str
    choices: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True)
class Command:
    """A command with its options, and the words that may stand alone."""

    name: str
    words: str
    options: tuple[Option, ...]
    choices: tuple[str, ...]


def commands_of(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    """The commands of a parser with subparsers."""
    (group,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in group._choices_actions}
    return tuple(_command(name, helps[name], sub) for name, sub in group.choices.items())


def _command(name: str, words: str, parser: argparse.ArgumentParser) -> Command:
    actions = parser._actions
    options = tuple(_option(action) for action in actions if action.option_strings)
    alone = (choice for a in actions if not a.option_strings for choice in a.choices or ())
    return Command(name, words, options, tuple(map(str, alone)))


def _option(action: argparse.Action) -> Option:
    words = " ".join((action.help or "").replace("%(default)s", str(action.default)).split())
    choices = tuple(map(str, action.choices or ()))
    return Option(tuple(action.option_strings), words, choices, action.nargs != 0)


def bash(parser: argparse.ArgumentParser) -> str:
    """The script for bash: options and choices by command, files where a value may stand."""
    commands = commands_of(parser)
    lines = [
        "_howsure() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    words="{" ".join(c.name for c in commands)} --help --version"',
        "  else",
        '    case "${COMP_WORDS[1]} $last" in',
        *(line for command in commands for line in _bash_choices(command)),
        "    esac",
        '    if [ -z "$words" ]; then case "${COMP_WORDS[1]}" in',
        *(f'      {c.name}) words="{_bash_words(c)}" ;;' for c in commands),
        "    esac; fi",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _howsure howsure",
    ]
    return "\n".join(lines)


def _bash_choices(command: Command) -> list[str]:
    """A case for each option with a value: its choices, or a space, which means a file."""
    found = []
    for option in command.options:
        if option.takes_value:
            patterns = "|".join(f'"{command.name} {name}"' for name in option.names)
            found.append(f'      {patterns}) words="{" ".join(option.choices) or " "}" ;;')
    return found


def _bash_words(command: Command) -> str:
    names = (name for option in command.options for name in option.names)
    return " ".join((*command.choices, *names))


def zsh(parser: argparse.ArgumentParser) -> str:
    """The script for zsh, which runs the one for bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(parser)}"


def fish(parser: argparse.ArgumentParser) -> str:
    """The script for fish: every command and option with its description."""
    lines = []
    for command in commands_of(parser):
        lines.append(
            "complete -c howsure -n __fish_use_subcommand -f "
            f"-a {command.name} -d {_quoted(command.words)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"complete -c howsure {seen} -a {word}" for word in command.choices]
        lines += [f"complete -c howsure {seen} {_fish(option)}" for option in command.options]
    return "\n".join(lines)


def _fish(option: Option) -> str:
    names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
    value = " -r" if option.takes_value else ""
    choices = f" -f -a {_quoted(' '.join(option.choices))}" if option.choices else ""
    return f"{' '.join(names)}{value}{choices} -d {_quoted(option.words)}"


def _quoted(text: str) -> str:
    """Text between single quotes, in which fish knows only two escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[argparse.ArgumentParser], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
