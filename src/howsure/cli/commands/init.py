"""Writes an example project that runs: a small model, its data, and the commands to try."""

from __future__ import annotations

import argparse
from pathlib import Path

from howsure.cli.result import Result

HELP = "writes an example project that runs"
EXAMPLES = """
  howsure init first
  cd first && cat README.md
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure init` to its parser."""
    parser.add_argument("folder", type=Path, help="a new or empty folder")


def run(arguments: argparse.Namespace) -> Result:
    """What was written, and how to go on."""
    from howsure.cli.starter import write_project

    files = write_project(arguments.folder)
    listed = "\n".join(f"  {path}" for path in files)
    text = f"{listed}\n\nNext:\n  cd {arguments.folder}\n  python make_data.py\n  cat README.md"
    return Result(text, {"folder": arguments.folder, "files": files}, in_file=True)
