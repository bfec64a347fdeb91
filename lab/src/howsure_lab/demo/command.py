"""A trained network steers by camera, and says how sure it is: a table, a picture, a report."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from howsure.cli.options import count
from howsure.cli.result import Result

if TYPE_CHECKING:
    from howsure_lab.demo.study import Roads

HELP = "a trained network, with uncertainty"
EXAMPLES = """
  howsure demo
  howsure demo --scenes 30 --out out/demo
"""
NEEDED = ("matplotlib", "tqdm")
_LEAST, _MOST = 20, 10_000


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the demonstration."""
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder of the results (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of roads and noise (%(default)s)")
    parser.add_argument(
        "--scenes", type=count, default=100, help="roads under each condition (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> Result:
    """The table, and where picture and report are."""
    check(arguments)
    import torch

    from howsure import report
    from howsure_lab.demo.picture import save_picture
    from howsure_lab.demo.study import Roads, study
    from howsure_lab.demo.text import LEGEND, explanation, table

    # On images this small, threads that compete cost more than they give.
    torch.set_num_threads(1)
    roads = Roads(arguments.scenes, arguments.seed)
    if not arguments.quiet:
        print(introduction(roads), file=sys.stderr, flush=True)
    found = study(roads)
    picture = save_picture(found, arguments.out / "demo.png")
    page = report.write(arguments.out / "report.html", found.report())
    text = f"{table(found)}\n\n{LEGEND}\n\n{explanation(found)}"
    where = f"Picture: {picture}\nReport:  {page}, to open in a browser"
    names = ("name", "rmse", "mean_std", "nll", "coverage", "sensor_share")
    rows = [{name: getattr(outcome, name) for name in names} for outcome in found.outcomes]
    data = {"picture": picture, "report": page, "fit": found.fit.to_dict(), "conditions": rows}
    return Result(f"{text}\n\n{where}", data)


def check(arguments: argparse.Namespace) -> None:
    """One clear sentence for packages, options and a folder that are not as needed."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"The demonstration needs {', '.join(missing)}: `pip install {' '.join(missing)}`."
        )
    if not _LEAST <= arguments.scenes <= _MOST:
        raise ValueError(f"`--scenes` must be from {_LEAST} to {_MOST}, not {arguments.scenes}.")
    if not 0 <= arguments.seed < 10**9:
        raise ValueError(f"`--seed` must be from 0 to 999999999, not {arguments.seed}.")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"Cannot make the folder `{arguments.out}`: {error.strerror}.") from None
    if not os.access(arguments.out, os.W_OK):
        raise ValueError(f"Cannot write into the folder `{arguments.out}`.")


def introduction(roads: Roads) -> str:
    """What is about to be shown."""
    from howsure_lab.demo.study import CLEAR

    gray_levels = round(255 * CLEAR.noise_std)
    return (
        "A small trained DroNet looks at rendered roads through a camera whose noise has a std of\n"
        f"{gray_levels} gray levels, and steers. howsure finds out on "
        f"{2 * roads.count} held-out clear roads what it does not know, then\n"
        f"says how sure the network is on {roads.count} other roads under five conditions. "
        "Nothing is trained."
    )
