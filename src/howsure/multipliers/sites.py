"""Where multipliers sit in a trained network, at which rates, and the dropout masks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.operations import (
    ALPHA_DROPOUTS,
)

PLACEMENTS = ("auto", "after", "before", "existing")


@dataclass(frozen=True)
class BatchDim:
    """Where the batch is in a tensor.

    Attributes:
        dim: The dimension of the batch; `None` if all samples share the tensor.
        is_outer: If the dimension also counts something else, such as the frames of each sample:
            whether those of one sample lie side by side.
    """

    dim: int | None = 0
    is_outer: bool = True

    def sample_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape without the batch dimension."""
        return tuple(size for dim, size in enumerate(shape) if dim != self.dim)


@dataclass(frozen=True)
class Site:
    """A place in the model where activations are multiplied.

    Attributes:
        name: The layer, e.g. `layer1.0.conv1`.
        kind: "after" or "before" the layer, or an "existing" dropout of the model.
        chain: Operations from the layer on; the result of the last one is multiplied.
        units: Shape of the multipliers: one for each unit or channel.
        rate: The rate of an existing dropout; `None` where howsure placed it.
        batch: Where the batch is in what is multiplied.
    """

    name: str
    kind: str
    chain: tuple[str, ...]
    units: tuple[int, ...]
    rate: float | None = None
    batch: BatchDim = BatchDim()

    @property
    def is_affine(self) -> bool:
        """Whether units are moved to a constant and scaled, as alpha dropout does."""
        return self.chain[0] in ALPHA_DROPOUTS


@dataclass(frozen=True)
class Placement:
    """Where a user wants dropout.

    Attributes:
        kind: "auto" (existing dropout if there is any, else after), "after", "before",
            "existing".
        only: Name patterns of the layers to drop, e.g. `layer4.*`; empty means all.
        units: "auto" (channels of convolutions, units of linear layers), "channel", "element".
        over_time: Whether a recurrent layer keeps its mask over time ("fixed") or not ("fresh").

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
        >>> first = hs.Placement(only=("0",))  # dropout after the first layer
        >>> sure = hs.Uncertain(model, method="mc_dropout", rate=0.1, placement=first)
        >>> bool((sure(torch.ones(2, 3)).model_var > 0).all())
        True
    """

    kind: str = "auto"
    only: tuple[str, ...] = ()
    units: str = "auto"
    over_time: str = "fixed"

    def __post_init__(self) -> None:
        """Refuses unknown words."""
        for name, allowed in (
            ("kind", PLACEMENTS),
            ("units", ("auto", "channel", "element")),
            ("over_time", ("fixed", "fresh")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"The placement's `{name}` must be one of {allowed}, not "
                    f"{getattr(self, name)!r}."
                )


def as_placement(placement: str | Sequence[str] | Placement) -> Placement:
    """A placement from its short form: a kind, or a list of name patterns."""
    if isinstance(placement, Placement):
        return placement
    if isinstance(placement, str):
        return Placement(placement)
    if not len(placement):
        raise ValueError("`placement` is an empty list; give patterns of layer names, or a kind.")
    return Placement("after", only=tuple(placement))


class NothingToDropError(ValueError):
    """The model has no site for the requested placement."""


def at_rates(sites: Sequence[Site], rates: Sequence[float]) -> tuple[Site, ...]:
    """The sites; those of alpha dropout with the rate in use, which their scale depends on."""
    return tuple(
        replace(site, rate=rate) if site.is_affine and site.rate != rate else site
        for site, rate in zip(sites, rates, strict=True)
    )


def describe(sites: Sequence[Site], rates: Sequence[float] | None = None) -> str:
    """A table of the sites: layer, place, units, rate."""
    lines = [("layer", "place", "units", "rate")]
    for index, site in enumerate(sites):
        place = " > ".join(site.chain) if site.kind == "after" else f"{site.kind} {site.chain[0]}"
        rate = site.rate if rates is None else rates[index]
        shape = " x ".join(str(n) for n in site.units)
        lines.append((site.name, place, shape, "-" if rate is None else f"{rate:.4g}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def check_rates(rate: float | Sequence[float], sites: Sequence[Site]) -> tuple[float, ...]:
    """One rate for each site, from a single number or one for each; at least 0 and below 1."""
    rates = tuple(map(float, rate if isinstance(rate, Sequence) else [rate] * len(sites)))
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
    uniforms = []
    for index, site in enumerate(sites):
        # Every site has a stream; a large odd stride keeps those of nearby seeds apart.
        stream = (seed * 1_000_003 + index * 7_919 + 1) % 2**63
        generator = torch.Generator().manual_seed(stream)
        shape = site.units if batch is None else (batch, *site.units)
        draws = [
            torch.rand(shape, generator=generator, dtype=torch.float32) for _ in range(samples)
        ]
        uniforms.append(torch.stack(draws))
    return uniforms


def masks(uniforms: Sequence[Tensor], rates: Sequence[float]) -> list[Tensor | None]:
    """Inverted dropout: 1 / (1 - rate) where a unit is kept, else 0; `None` at rate 0."""
    return [
        None if rate == 0 else (uniform >= rate).to(uniform.dtype) / (1 - rate)
        for uniform, rate in zip(uniforms, rates, strict=True)
    ]
