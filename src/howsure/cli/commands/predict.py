"""Predictions with their variances for every row of a data set, in bounded memory.

Killed at any point and run again, it goes on where it was. The file has the columns mean,
data_var, model_var and std, and for classification more.
"""

from __future__ import annotations

import argparse

from howsure.cli.options import (
    add_batch,
    add_data,
    add_method,
    add_model,
    add_noise,
    add_out,
    level,
)
from howsure.cli.result import Result

HELP = "predictions with their variances, into a file"
EXAMPLES = """
  howsure predict model:build data.npz --weights weights.pt --settings settings.json \\
      --out predictions.npz
  howsure predict net.pt2 photos/ --trust --image-size 32,32 --gray-levels 2 --out p.csv
  howsure predict model:build rows.parquet --inputs speed,torque --noise-std 0.1,0.3 \\
      --rate 0.05 --out p.parquet --ray
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure predict` to its parser."""
    add_model(parser)
    add_data(parser)
    suffixes = [".npz", ".csv", ".parquet"]
    add_out(parser, suffixes, "a file `.npz`, `.csv` or `.parquet`", default="predictions.npz")
    parser.add_argument(
        "--interval", type=level, metavar="LEVEL", help="also `low` and `high` of this level"
    )
    add_batch(parser)
    parser.add_argument("--fresh", action="store_true", help="drop what an unfinished run left")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on the Ray cluster at this address; without one, on one on this machine",
    )
    add_noise(parser)
    add_method(parser)
    parser.set_defaults(resumes=True)


def run(arguments: argparse.Namespace) -> Result:
    """The summary of what was written."""
    from howsure.cli.building import case_of, check_unsure, shows_progress
    from howsure.data.scoring import predict_to_file

    case = case_of(arguments)
    check_unsure(case.sure)
    done = predict_to_file(
        case.sure,
        case.data.source,
        arguments.out,
        batch=case.batch,
        level=arguments.interval,
        fresh=arguments.fresh,
        engine="local" if arguments.ray is None else "ray",
        address=arguments.ray or None,
        show_progress=shows_progress(arguments),
    )
    data = {
        "out": done.path,
        "rows": done.rows,
        "columns": done.columns,
        "resumed_rows": done.resumed_rows,
        "seconds": done.seconds,
        "notes": done.notes,
    }
    return Result(str(done), data, in_file=True)
