"""Writes prediction and variances as a program that runs without howsure: ONNX or torch's .pt2.

The file is run and compared with the wrapper before it gets its name.
"""

from __future__ import annotations

import argparse

from howsure.cli.options import add_data, add_method, add_model, add_noise, add_out, add_shape
from howsure.cli.result import Result

HELP = "a program that runs without howsure"
EXAMPLES = """
  howsure export model:build --weights weights.pt --shape 6 --settings settings.json --out net.onnx
  howsure export model:build data.npz --noise-std 0.02 --method adf --units rad --out sure.pt2
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure export` to its parser."""
    add_model(parser)
    add_data(parser, needed=False)
    add_shape(parser)
    add_out(parser, [".onnx", ".pt2"], "a file `.onnx` or `.pt2`", required=True)
    parser.add_argument("--fixed-batch", action="store_true", help="only the example's batch size")
    parser.add_argument("--compiled", action="store_true", help="`.pt2`: machine code for C++")
    parser.add_argument(
        "--masks",
        choices=("fixed", "inputs"),
        default="fixed",
        help="dropout masks: drawn once, or given in every call (%(default)s)",
    )
    parser.add_argument("--units", help="of the output, noted in the file")
    add_noise(parser)
    add_method(parser)


def run(arguments: argparse.Namespace) -> Result:
    """Exports the model and returns what was written."""
    from howsure.cli.building import check_unsure, example_of, model_of, uncertain_of
    from howsure.deploy.export import export

    model = model_of(arguments)
    example = example_of(arguments, model)
    sure = uncertain_of(arguments, model)
    check_unsure(sure)
    done = export(
        sure,
        example,
        arguments.out,
        any_batch=False if arguments.fixed_batch else None,
        compiled=arguments.compiled,
        masks=arguments.masks,
        units=arguments.units,
    )
    batch = "any number of rows" if done.batch is None else f"{done.batch} rows"
    text = (
        f"{done.path}: {', '.join(done.inputs)} -> {', '.join(done.outputs)}, {batch} at a time; "
        f"run and compared, largest difference {done.difference:.1e}"
    )
    data = {
        "out": done.path,
        "inputs": done.inputs,
        "outputs": done.outputs,
        "batch": done.batch,
        "difference": done.difference,
    }
    return Result(text, data, in_file=True)
