"""The demonstration from options to table, picture and report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from howsure import report
from howsure.demo.conditions import CLEAR, Roads
from howsure.demo.picture import save_picture
from howsure.demo.reading import explanation
from howsure.demo.study import study
from howsure.demo.table import LEGEND, table

_LEAST, _MOST = 20, 10_000


def run(arguments: Sequence[str] | None = None) -> int:
    """Prints table and explanation, writes picture and report, and returns the exit code."""
    options = parse(arguments)
    roads = Roads(options.scenes, options.seed)
    print(introduction(roads), flush=True)
    found = study(roads)
    print(f"\n{table(found)}\n\n{LEGEND}\n\n{explanation(found)}", flush=True)
    picture = save_picture(found, options.out / "demo.png")
    page = report.write(options.out / "report.html", found.report())
    print(f"\nPicture: {picture}\nReport:  {page}, to open in a browser")
    return 0


def introduction(roads: Roads) -> str:
    """What is about to be shown."""
    gray_levels = round(255 * CLEAR.noise_std)
    return (
        "A small trained DroNet looks at rendered roads through a camera whose noise has a std of\n"
        f"{gray_levels} gray levels, and steers. howsure finds its dropout rate on "
        f"{2 * roads.count} held-out clear roads, then says\n"
        f"how sure the network is on {roads.count} other roads under five conditions. Nothing is "
        "trained."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; wrong ones end the program with a sentence and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="howsure demo", description="A trained network steers, and says how sure it is."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder of the results (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of roads and noise (%(default)s)")
    parser.add_argument(
        "--scenes", type=int, default=100, help="roads under each condition (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if not _LEAST <= options.scenes <= _MOST:
        parser.error(f"--scenes must be from {_LEAST} to {_MOST}, and is {options.scenes}")
    if not 0 <= options.seed < 10**9:
        parser.error(f"--seed must be from 0 to 999999999, and is {options.seed}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make the folder {options.out}: {error.strerror}")
    if not os.access(options.out, os.W_OK):
        parser.error(f"cannot write into the folder {options.out}")
    return options
