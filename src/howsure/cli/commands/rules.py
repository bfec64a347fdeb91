"""The table of rules: every operation that noise can pass, and how true its rule is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypedDict

from howsure.cli.result import Result

if TYPE_CHECKING:
    from howsure.moments.rule import Rule

HELP = "the operations that noise can pass"
EXAMPLES = """
  howsure rules
  howsure rules conv
  howsure rules --fidelity approximate
  howsure rules --json
"""


class Described(TypedDict):
    """A rule as plain data."""

    name: str
    family: str
    fidelity: str
    error: float
    summary: str
    operations: list[str]


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure rules` to its parser."""
    parser.add_argument(
        "pattern", nargs="?", default="", help="part of a rule's or operation's name"
    )
    parser.add_argument(
        "--fidelity",
        choices=("exact", "approximate", "linearised", "structural", "refused"),
        help="only rules of this kind",
    )


def run(arguments: argparse.Namespace) -> Result:
    """The rules that fit, one line each."""
    from howsure.moments import rules as _rules  # noqa: F401  (fills the table)
    from howsure.moments.rule import registered

    rules = [_described(rule) for rule in registered()]
    chosen = [rule for rule in sorted(rules, key=lambda r: r["name"]) if _fits(rule, arguments)]
    if not chosen:
        raise ValueError(f"No rule fits; `howsure rules` lists all {len(rules)}.")
    width = max(len(rule["name"]) for rule in chosen)
    lines = [f"{r['name']:<{width}}  {_fidelity(r):<18}  {r['summary']}" for r in chosen]
    total = f"{len(chosen)} of {len(rules)} rules"
    return Result("\n".join([*lines, "", total]), {"rules": chosen})


def _described(rule: Rule) -> Described:
    from howsure.moments.rule import operation_name

    return {
        "name": rule.name,
        "family": rule.kind.value,
        "fidelity": rule.fidelity.value,
        "error": rule.error,
        "summary": rule.summary,
        "operations": list(dict.fromkeys(operation_name(target) for target in rule.targets)),
    }


def _fits(rule: Described, arguments: argparse.Namespace) -> bool:
    names = [rule["name"], *rule["operations"]]
    kind = arguments.fidelity in (None, rule["fidelity"])
    return kind and any(arguments.pattern.lower() in name.lower() for name in names)


def _fidelity(rule: Described) -> str:
    bound = f" ({rule['error']:.0%})" if rule["fidelity"] == "approximate" else ""
    return f"{rule['fidelity']}{bound}"
