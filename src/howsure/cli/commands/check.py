"""What will happen to a model: a rule for each operation, how true it is, and what is missing.

The exit code is 1 if an operation has no rule.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from howsure.cli.options import add_data, add_model, add_noise, add_shape
from howsure.cli.result import DONE, FAILED, Result

HELP = "what will happen to a model, before anything runs"
EXAMPLES = """
  howsure check model:build --weights weights.safetensors --shape 3,32,32
  howsure check net.pt2 images.npz --trust
  howsure check model:build data.npz --inputs image=camera --inputs motion=imu \\
      --noise-std image=0.01
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `howsure check` to its parser."""
    add_model(parser)
    add_data(parser, needed=False)
    add_shape(parser)
    add_noise(parser)


def run(arguments: argparse.Namespace) -> Result:
    """The table of operations."""
    from howsure.auditing.check import check
    from howsure.cli.building import example_of, model_of
    from howsure.cli.noises import noise_of
    from howsure.noise import Noise, variance_of

    model = model_of(arguments)
    x = example_of(arguments, model)
    noise = noise_of(arguments)
    is_single = noise is None or isinstance(noise, Noise)
    found = check(model.module, x, noise_var=noise if is_single else variance_of(noise, x))
    data = {
        "ok": found.ok,
        "operations": [asdict(row) for row in found.rows],
        "advice": list(found.advice),
    }
    return Result(str(found).rstrip(), data, DONE if found.ok else FAILED)
