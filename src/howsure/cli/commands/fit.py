"""Finds out on held-out data what the network does not know, by likelihood.

A posterior over masks from unlabelled training inputs, for classes a temperature that grows with
the distance from them, or the dropout rate of the paper.

The data must be held out from training and carry the noise of deployment; if it is clean, say so
with `--clean`, and the noise is added.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from howsure.cli.options import (
    add_batch,
    add_clean,
    add_data,
    add_method,
    add_model,
    add_noise,
    add_out,
    at_least_0,
    rates,
)
from howsure.cli.result import Result

_BATCH = 64
HELP = "finds out on held-out data what the network does not know"
EXAMPLES = """
  howsure fit model:build held_out.npz --weights weights.pt --noise-std 0.05 \\
      --train-inputs frames.npy --out settings.pt
  howsure fit model:build held_out.npz --weights weights.pt --noise-std 0.05 --out settings.json
  howsure fit net.pt2 held_out.csv --trust --target angle --noise-std 0.05 --clean \\
      --out settings.json
  howsure fit model:build digits/ --target folders --task classification --stress images \\
      --train-inputs more_digits/ --out settings.pt
  howsure fit model:build digits/ --target folders --task classification --gray-levels 4 \\
      --method mc_dropout --out settings.json
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the fit."""
    add_model(parser)
    add_data(parser)
    add_out(parser, [".json", ".pt"], "the settings, a `.json` or `.pt` file")
    add_batch(parser)
    group = parser.add_argument_group("the model's own part")
    group.add_argument(
        "--model-part",
        choices=("auto", "posterior", "temperature", "dropout", "none"),
        default="auto",
        help="a posterior over masks, for classes a temperature that grows with the distance, the "
        "paper's dropout, or none of it (%(default)s)",
    )
    group.add_argument(
        "--train-inputs",
        metavar="DATA",
        help="inputs like those of training, read as DATA is; targets are not needed",
    )
    group.add_argument(
        "--stress",
        choices=("images", "tables"),
        help="corruptions that keep the target; for regression, images are corrupted anyway",
    )
    group.add_argument("--rates", type=rates, metavar="P,P,...", help="dropout: rates to try (21)")
    group.add_argument(
        "--search-samples",
        type=at_least_0,
        metavar="T",
        help="dropout: Monte Carlo samples per rate (50)",
    )
    add_clean(parser)
    add_noise(parser)
    add_method(parser)


def run(arguments: argparse.Namespace) -> Result:
    """Fits, writes the settings where asked, and returns what was found."""
    from howsure.cli.building import case_of
    from howsure.cli.settings import write_settings

    case = case_of(arguments)
    fit = case.sure.fit(case.pairs(), **_given(arguments))
    text = str(fit)
    if arguments.out is not None:
        write_settings(arguments.out, case.sure, fit)
        text += f"\nSettings: {arguments.out}"
    data = {"out": arguments.out, "method": case.sure.method, "fit": fit.to_dict()}
    return Result(text, data, in_file=arguments.out is not None)


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the fit that were given."""
    from howsure.cli.building import shows_progress

    given = {
        "train_inputs": _train_inputs(arguments),
        "stress": arguments.stress,
        "rates": arguments.rates,
        "samples": arguments.search_samples,
        "inputs": "clean" if arguments.clean else "noisy",
        "show_progress": shows_progress(arguments),
    }
    model = None if arguments.model_part == "none" else arguments.model_part
    return {"model": model, **{name: v for name, v in given.items() if v is not None}}


def _train_inputs(arguments: argparse.Namespace) -> Iterator[tuple[object]] | None:
    """Batches of unlabelled inputs, prepared as the held-out ones."""
    if arguments.train_inputs is None:
        return None
    from howsure.cli.building import data_of, model_of

    own = argparse.Namespace(**{**vars(arguments), "data": arguments.train_inputs, "target": None})
    source = data_of(own, model_of(arguments)).source
    return ((source.rows(k, min(k + _BATCH, len(source))),) for k in range(0, len(source), _BATCH))
