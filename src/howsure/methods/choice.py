"""`method="auto"`: which method fits a setup, and why."""

from __future__ import annotations

from typing import Any

from howsure.methods.setup import Setup

# One backward pass per output: beyond this, sampling is cheaper.
MOST_OUTPUTS = 64


def choose(setup: Setup, x: Any) -> tuple[str, tuple[str, ...]]:
    """The method's name, and a note that says what was picked and why.

    Few outputs get a backward pass each: no sampling, and correlations are seen. For many outputs
    sampling is cheaper.
    """
    own_dropout = setup.placement.kind == "existing"
    if setup.noise is None and setup.rate is None and not own_dropout:
        raise ValueError(
            "There is nothing to be unsure about: give the sensor's `noise`, or find the dropout "
            "rate with `.fit(loader)`."
        )
    count = setup.output_count(x)
    chosen = len(setup.outputs) if setup.outputs is not None else count
    if chosen <= MOST_OUTPUTS:
        reason = f"{chosen} outputs have a backward pass each, without sampling"
        return "adjoint", (_note(setup, "adjoint", reason, own_dropout=own_dropout),)
    name = "mc_dropout" if setup.noise is None else "noise_sampling"
    reason = f"{count} outputs are too many for a backward pass each"
    return name, (_note(setup, name, reason, own_dropout=own_dropout),)


def _note(setup: Setup, name: str, reason: str, *, own_dropout: bool) -> str:
    note = f'method "{name}": {reason}.'
    if setup.rate is None and not own_dropout:
        note += (
            " No dropout rate is set, so the model's own uncertainty is not included; find the "
            "rate with `.fit(loader)`."
        )
    return note
