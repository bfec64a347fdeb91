"""Padding: a constant border has no variance, a copied border has that of its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch.nn import functional as F

from howsure.moments.rule import STRUCTURAL, Kind, rule, spellings
from howsure.moments.samples import Draw, Sample
from howsure.moments.value import Moments


def _borders(draw: Draw) -> Iterable[Sample]:
    image = draw.moments(2, 3, 4, 5)
    yield Sample(image, (1, 2, 0, 1))
    yield Sample(image, (1, 1), "constant", 2.0)
    for mode in ("reflect", "replicate", "circular"):
        yield Sample(image, (1, 2, 2, 1), mode=mode)


@rule(
    *spellings("pad", first=F.pad),
    name="pad",
    fidelity=STRUCTURAL,
    samples=_borders,
    kind=Kind.STRUCTURAL,
    views=False,
)
def pad(
    input: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Moments:
    """A constant border has variance 0; reflected, replicated and circular ones copy it.

    Assumes: nothing; copies are fully correlated with their source.

    Source: definition.
    """
    return Moments(F.pad(input.mean, tuple(pad), mode, value), F.pad(input.var, tuple(pad), mode))
