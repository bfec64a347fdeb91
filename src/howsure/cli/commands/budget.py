"""Where the variance comes from: each sensor, each dropped layer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure.cli.options import add_batch, add_data, add_method, add_model, add_noise, add_rows
from howsure.cli.result import Result

if TYPE_CHECKING:
    from howsure.prediction import Budget
    from howsure.uncertain import Uncertain

HELP = "where the variance comes from"
EXAMPLES = """
  howsure budget model:build data.npz --weights weights.pt --settings settings.json
  howsure budget model:build data.npz --inputs image=camera --inputs motion=imu \\
      --noise-std image=0.01 --noise-std motion=0.1 --rows 16
  howsure budget net.pt2 images.npz --trust --noise-std 0.02 --heatmap pixels.npz
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure budget` to its parser."""
    add_model(parser)
    add_data(parser)
    add_rows(parser, 256)
    parser.add_argument(
        "--heatmap",
        type=Path,
        metavar="FILE.npz",
        help="write the variance by element of every input, of the first batch",
    )
    add_batch(parser, 64)
    add_noise(parser)
    add_method(parser, choose=False)


def run(arguments: argparse.Namespace) -> Result:
    """The table of sources, averaged over rows and outputs."""
    import torch

    from howsure.cli.building import case_of, check_unsure
    from howsure.methods import gradients
    from howsure.prediction import Budget

    case = case_of(arguments)
    check_unsure(case.sure)
    case.sure.method = gradients.METHOD
    rows = min(arguments.rows, len(case.data.source))
    if case.fixed:
        rows = max(rows - rows % case.batch, case.batch)
    budgets = []
    with torch.no_grad():
        for start in range(0, rows, case.batch):
            x = case.data.source.rows(start, min(start + case.batch, rows))
            budgets.append(_budget(case.sure, x))
    if arguments.heatmap is not None:
        _write_heatmap(arguments.heatmap, budgets[0])
    found = budgets[0] if len(budgets) == 1 else Budget.joined(budgets)
    names = ("source", "kind", "variance", "share")
    sources = [dict(zip(names, row, strict=True)) for row in found.table()]
    data = {"rows": rows, "total_var": float(found.total.mean()), "sources": sources}
    return Result(f"{found}\n\nAverage over {rows} rows and all outputs.", data)


def _budget(sure: Uncertain, x: object) -> Budget:
    """The budget of a batch; an error with the reason where gradients cannot be used."""
    from howsure.methods import METHODS

    found = sure(**x) if isinstance(x, dict) else sure(x)
    if not METHODS[found.method].has_budget:
        raise ValueError(f"There is no budget: {found.notes[0]}")
    return found.budget()


def _write_heatmap(path: Path, budget: Budget) -> None:
    import numpy as np

    from howsure.files import write_atomically

    if path.suffix != ".npz":
        raise ValueError(f"`--heatmap {path}` must end in `.npz`.")
    budget.heatmap()  # an error in one sentence if there is none
    # `Any`, since an input may have the name of an option of numpy.
    elements: dict[str, Any] = {
        name: each.detach().cpu().numpy() for name, each in budget.elements.items()
    }
    write_atomically(path, lambda file: np.savez(file, **elements))
