"""A trained network steers by camera, and says how sure it is: a table, a picture, a report."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from howsure.cli.options import count
from howsure.cli.result import Result

HELP = "a trained network, with uncertainty"
EXAMPLES = """
  howsure demo
  howsure demo --scenes 30 --out out/demo
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder of the results (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of roads and noise (%(default)s)")
    parser.add_argument(
        "--scenes", type=count, default=100, help="roads under each condition (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> Result:
    """The table, and where picture and report are."""
    from howsure.demo.__main__ import NEEDED

    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"The demonstration needs {', '.join(missing)}: `pip install 'howsure[demo]'`."
        )
    import torch

    from howsure import report
    from howsure.demo.conditions import Roads
    from howsure.demo.picture import save_picture
    from howsure.demo.reading import explanation
    from howsure.demo.run import introduction, parse
    from howsure.demo.study import study
    from howsure.demo.table import LEGEND, table

    out, seed, scenes = arguments.out, arguments.seed, arguments.scenes
    parse(["--out", str(out), f"--seed={seed}", "--scenes", str(scenes)])  # checks them
    # On images this small, threads that compete cost more than they give.
    torch.set_num_threads(1)
    roads = Roads(scenes, seed)
    if not arguments.quiet:
        print(introduction(roads), file=sys.stderr, flush=True)
    found = study(roads)
    picture = save_picture(found, out / "demo.png")
    page = report.write(out / "report.html", found.report())
    text = f"{table(found)}\n\n{LEGEND}\n\n{explanation(found)}"
    where = f"Picture: {picture}\nReport:  {page}, to open in a browser"
    return Result(f"{text}\n\n{where}", {"picture": picture, "report": page, **_numbers(found)})


def _numbers(found: Any) -> dict[str, Any]:
    names = ("name", "rmse", "mean_std", "nll", "coverage", "sensor_share")
    rows = [{name: getattr(outcome, name) for name in names} for outcome in found.outcomes]
    return {"rate": found.rate, "conditions": rows}
