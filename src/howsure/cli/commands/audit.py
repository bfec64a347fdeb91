"""Checks every method against Monte Carlo, on your own network and inputs."""

from __future__ import annotations

import argparse

from howsure.cli.options import (
    add_data,
    add_method,
    add_model,
    add_noise,
    add_out,
    add_rows,
    count,
    positive,
)
from howsure.cli.result import Result, as_json

HELP = "every method against Monte Carlo, on your network"
EXAMPLES = """
  howsure audit model:build data.npz --weights weights.pt --noise-std 0.05 --rate 0.1
  howsure audit net.pt2 images.npz --trust --gray-levels 2 --methods adf,gradients --time-limit 20
  howsure audit model:build data.csv --target y --settings settings.json --passes 500 \\
      --out audit.json
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure audit` to its parser."""
    add_model(parser)
    add_data(parser)
    add_out(parser, [".json"], "all numbers, a `.json` file for `report --audit`")
    parser.add_argument(
        "--time-limit", type=positive, default=60.0, metavar="S", help="seconds (%(default)s)"
    )
    parser.add_argument(
        "--passes", type=count, metavar="N", help="exactly so many passes, however long they take"
    )
    add_rows(parser, 64)
    parser.add_argument("--methods", metavar="A,B,...", help="which methods (all that apply)")
    add_noise(parser)
    add_method(parser, choose=False)


def run(arguments: argparse.Namespace) -> Result:
    """The tables and the verdict."""
    from howsure.auditing import audit
    from howsure.cli.building import case_of, shows_progress
    from howsure.files import write_atomically

    case = case_of(arguments)
    setup = case.sure.setup
    rows = case.batch if case.fixed else arguments.rows
    names = None if arguments.methods is None else arguments.methods.split(",")
    result = audit(
        case.sure.model,
        case.rows(rows),
        setup.noise,
        setup.rate,
        methods=names,
        time_limit=arguments.time_limit,
        samples=arguments.passes,
        inputs=rows,
        placement=setup.placement,
        seed=setup.seed,
        show_progress=shows_progress(arguments),
        task=setup.task,
        output=setup.output,
        batch_dim=setup.batch_dim,
        residual_var=setup.residual_var,
    )
    data, text = result.to_dict(), str(result)
    if arguments.out is not None:
        content = as_json(data) + "\n"
        write_atomically(arguments.out, lambda file: file.write(content), text=True)
        text += f"\n\nNumbers: {arguments.out}"
    return Result(text, data, in_file=arguments.out is not None)
