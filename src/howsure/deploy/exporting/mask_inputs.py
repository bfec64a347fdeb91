"""Dropout masks as inputs of an exported program: new ones in every call, drawn by the caller.

A mask has a number for every unit, and a unit is kept where its number is at least the site's
rate. So uniform numbers between 0 and 1 give dropout at the tuned rate, and a mask of 0 and 1 does
what it says. The program itself divides by 1 - rate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from howsure.errors import ExportError
from howsure.methods import METHODS, Method
from howsure.methods.passes import SAMPLES
from howsure.multipliers import draw_uniforms
from howsure.setup import Setup
from howsure.trees import batch_size


@dataclass(frozen=True, eq=False)
class MaskInput:
    """An input of a program that says which units of a site are kept.

    Attributes:
        name: Its name in the program.
        site: The layer, as `Uncertain.describe` lists it.
        place: Which of the setup's sites it is.
        rate: The rate below which a number means that the unit is dropped.
        batch_axis: The axis with a row for each input; `None` where all inputs share a mask.
        drawn: What the setup's seed gives, of shape (samples, [batch,] *units).
    """

    name: str
    site: str
    place: int
    rate: float
    batch_axis: int | None
    drawn: Tensor

    def described(self) -> dict[str, object]:
        """Everything that somebody who draws masks needs to know, as plain data."""
        return {
            "name": self.name,
            "site": self.site,
            "rate": self.rate,
            "shape": list(self.drawn.shape),
            "batch_axis": self.batch_axis,
            "dtype": str(self.drawn.dtype).removeprefix("torch."),
        }


def mask_inputs(setup: Setup, method: Method, x: object) -> tuple[MaskInput, ...]:
    """One input for every site that drops anything."""
    if not method.draws_masks:
        known = [each.name for each in METHODS.values() if each.draws_masks]
        raise ExportError(
            f'The method "{method}" has no masks that a program could take as inputs; those with '
            f"masks are {known}."
        )
    sites = setup.sites(x)
    rates = setup.rates(sites)
    batch = None if setup.shared_masks else batch_size(x)
    drawn = draw_uniforms(sites, setup.samples or SAMPLES, setup.seed, batch=batch)
    found = tuple(
        MaskInput(_name(site.name, i), site.name, i, rates[i], None if batch is None else 1, own)
        for i, (site, own) in enumerate(zip(sites, drawn, strict=True))
        if rates[i] > 0
    )
    if not found:
        raise ExportError("All dropout rates are 0, so there are no masks to take as inputs.")
    return found


def _name(site: str, place: int) -> str:
    """A word that is unique: two sites can differ in dots and underscores alone."""
    return f"mask{place}_" + re.sub(r"\W", "_", site)


def with_masks(
    setup: Setup, x: object, inputs: Sequence[MaskInput], given: Sequence[Tensor]
) -> Setup:
    """The setup with these masks in place of drawn ones."""
    # What stands for a site without dropout is not looked at.
    uniforms = [given[0]] * len(setup.sites(x))
    for own, tensor in zip(inputs, given, strict=True):
        uniforms[own.place] = tensor
    return setup.with_(uniforms=tuple(uniforms))
