"""A report on how sure the model is on held-out data: one HTML file that opens from disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from howsure.cli.options import (
    add_batch,
    add_clean,
    add_data,
    add_method,
    add_model,
    add_noise,
    add_out,
    numbers,
)
from howsure.cli.result import Result

HELP = "a report as one HTML file"
EXAMPLES = """
  howsure report model:build held_out.npz --weights weights.pt --settings settings.json \\
      --out report.html
  howsure report model:build held_out.csv --target angle --settings settings.json \\
      --noise-levels 0.5,1,2 --title "Steering" --audit audit.json
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure report` to its parser."""
    add_model(parser)
    add_data(parser)
    add_out(parser, [], "the file", default="report.html")
    parser.add_argument("--title", default="How sure is this network?", help="the heading")
    parser.add_argument(
        "--noise-levels",
        type=numbers,
        default=(0.5, 1.0, 2.0),
        metavar="F,F,...",
        help="multiples of the sensor's std, for the slider",
    )
    add_clean(parser)
    parser.add_argument("--names", default="", metavar="A,B,...", help="of outputs or classes")
    parser.add_argument("--audit", metavar="FILE", help="what `howsure audit --out` wrote")
    add_batch(parser)
    add_noise(parser)
    add_method(parser)


def run(arguments: argparse.Namespace) -> Result:
    """Writes the report and returns where it is."""
    from howsure import report
    from howsure.cli.building import case_of, check_unsure, shows_progress

    options = report.Options(
        title=arguments.title,
        noise_levels=arguments.noise_levels,
        inputs="clean" if arguments.clean else "noisy",
        names=arguments.names.split(",") if arguments.names else (),
    )
    audit = _audit(arguments.audit)
    case = case_of(arguments)
    check_unsure(case.sure)
    page = report.build(
        case.sure,
        case.pairs(),
        options=options,
        audit=audit,
        show_progress=shows_progress(arguments),
    )
    path = report.write(arguments.out, page)
    headline = " ".join(page.view.headline)
    data = {"out": path, "headline": page.view.headline, "facts": dict(page.facts)}
    return Result(f"{headline}\n\nReport: {path}, to open in a browser", data, in_file=True)


def _audit(name: str | None) -> dict[str, object] | None:
    if name is None:
        return None
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not {"rows", "layers", "verdict"} <= set(content):
        raise ValueError(f"`{name}` is not a file that `howsure audit --out` wrote.")
    return content
