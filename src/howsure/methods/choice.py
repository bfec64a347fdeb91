"""`method="auto"`: which method fits a setup, and why."""

from __future__ import annotations

from typing import Any

from howsure.methods.setup import Setup


def choose(setup: Setup, x: Any) -> tuple[str, tuple[str, ...]]:
    """The method's name, and a note that says what was picked and why."""
    if setup.noise is None and setup.rate is None and setup.placement.kind != "existing":
        raise ValueError(
            "There is nothing to be unsure about: give the sensor's `noise`, or find the dropout "
            "rate with `.fit(loader)`."
        )
    if setup.noise is None:
        return "mc_dropout", ('method "mc_dropout": the inputs have no noise.',)
    if setup.rate is None:
        return "adf", (
            'method "adf": no dropout rate is set, so the model\'s own uncertainty is not '
            "included; find the rate with `.fit(loader)`.",
        )
    return "sampled_adf", ('method "sampled_adf": sensor noise and dropout, as in the paper.',)
