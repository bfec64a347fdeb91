"""Masks: drawn once per Monte-Carlo sample, the same for every rate up to the threshold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from howsure.masks.sites import Site


def check_rates(rate: float | Sequence[float], sites: Sequence[Site]) -> tuple[float, ...]:
    """One rate per site, from one number or one per site; each at least 0 and below 1."""
    rates = (
        tuple(float(r) for r in rate) if isinstance(rate, Sequence) else (float(rate),) * len(sites)
    )
    if len(rates) != len(sites):
        raise ValueError(
            f"There are {len(sites)} dropout sites but {len(rates)} rates; `describe()` lists the "
            "sites."
        )
    wrong = [r for r in rates if not 0 <= r < 1]
    if wrong:
        raise ValueError(f"A dropout rate must be at least 0 and below 1, not {wrong[0]}.")
    return rates


def draw_uniforms(
    sites: Sequence[Site], samples: int, seed: int, *, batch: int | None = None
) -> list[Tensor]:
    """For every site uniform numbers of shape (samples, [batch,] *units), from one seed.

    A unit is kept where its number is at least the rate, so that masks of different rates are
    nested: common random numbers for the rate search. Each sample is drawn by itself: the first
    T samples are the same however many follow.
    """
    drawn = []
    for index, site in enumerate(sites):
        generator = torch.Generator().manual_seed(_site_seed(seed, index))
        shape = site.units if batch is None else (batch, *site.units)
        rows = [torch.rand(shape, generator=generator) for _ in range(samples)]
        drawn.append(torch.stack(rows))
    return drawn


def _site_seed(seed: int, index: int) -> int:
    """Different streams for different sites; a large odd stride keeps nearby seeds apart."""
    return (seed * 1_000_003 + index * 7_919 + 1) % (2**63)


def masks(uniforms: Sequence[Tensor], rates: Sequence[float]) -> list[Tensor | None]:
    """Inverted dropout: 1 / (1 - rate) where a unit is kept, else 0; `None` at rate 0."""
    return [
        None if rate == 0 else (uniform >= rate).to(uniform.dtype) / (1 - rate)
        for uniform, rate in zip(uniforms, rates, strict=True)
    ]
