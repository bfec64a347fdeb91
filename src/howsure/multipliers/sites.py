"""Where dropout goes on a trained network, found by one dry run."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from howsure.multipliers.exploring import IN_FRONT, Dropout, Layer, Met, Rows, rows_in, watched
from howsure.multipliers.layers import DROPOUTS, is_recurrent, spatial_dims

PLACEMENTS = ("auto", "after", "before", "existing")


@dataclass(frozen=True)
class Site:
    """A place where units are dropped.

    Attributes:
        name: The layer, e.g. `layer1.0.conv1`.
        kind: "after" or "before" the layer, or an "existing" dropout of the model.
        chain: Operations from the layer on; the mask applies to the result of the last one.
        units: Shape of the mask: one entry for each unit that is kept or dropped.
        rate: The rate of an existing dropout; `None` where howsure placed it.
        rows: Where the rows of a batch are in what is masked.
    """

    name: str
    kind: str
    chain: tuple[str, ...]
    units: tuple[int, ...]
    rate: float | None = None
    rows: Rows = IN_FRONT


@dataclass(frozen=True)
class Placement:
    """What a user asks for.

    Attributes:
        kind: "auto" (existing dropout if there is any, else after), "after", "before",
            "existing".
        only: Name patterns of the layers to drop, e.g. `layer4.*`; empty means all.
        units: "auto" (channels of convolutions, units of linear layers), "channel", "element".
        over_time: Whether a recurrent layer keeps its mask over time ("fixed") or not ("fresh").
    """

    kind: str = "auto"
    only: tuple[str, ...] = ()
    units: str = "auto"
    over_time: str = "fixed"

    def __post_init__(self) -> None:
        """One clear sentence for each wrong word."""
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
    return Placement("after", only=tuple(placement))


class NothingToDropError(ValueError):
    """The model has no place for a mask where it was asked for."""


def find_sites(
    model: Callable[..., object], x: object, placement: Placement, *, batch_dim: int | None = 0
) -> tuple[Site, ...]:
    """The dropout sites of a model for inputs like `x`.

    Never after an output layer: one from which no other layer is reached.
    """
    met = watched(model, x)
    rows = rows_in(model, x, met, batch_dim)
    found = _chosen(met, rows, placement)
    kept = [s for s in found if not placement.only or _matches(s.name, placement.only)]
    if not kept:
        scripted = isinstance(model, nn.Module) and any(
            isinstance(module, torch.jit.ScriptModule) for module in model.modules()
        )
        reason = _HIDDEN if scripted else _nothing_to_drop(met, placement)
        raise NothingToDropError(reason)
    return tuple(kept)


def _chosen(met: Met, rows: Sequence[Rows], placement: Placement) -> list[Site]:
    of_layers, of_dropouts = rows[: 2 * len(met.layers)], rows[2 * len(met.layers) :]
    dropouts = zip(met.dropouts, of_dropouts, strict=True)
    existing = [_existing_site(each, own) for each, own in dropouts if each.rate > 0]
    kind = placement.kind
    if kind == "auto":
        kind = "existing" if existing and not placement.only else "after"
    if kind == "existing":
        return _numbered(existing)
    sites: dict[str, Site] = {}
    of_layers = of_layers[::2] if kind == "before" else of_layers[1::2]
    for layer, own in zip(met.layers, of_layers, strict=True):
        if kind == "before" or layer.feeds_a_layer:
            # A layer that is called again, as in a loop over time, is the same site.
            sites.setdefault(layer.name, _layer_site(layer, own, kind, placement))
    return list(sites.values())


def _layer_site(layer: Layer, rows: Rows, kind: str, placement: Placement) -> Site:
    operation = layer.chain[0]
    shape = layer.leaving.shape if kind == "after" else layer.entering.shape
    dims = spatial_dims(operation)
    chain = tuple(layer.chain) if kind == "after" else (operation,)
    if dims == 0:
        fresh = is_recurrent(operation) and placement.over_time == "fresh"
        each = placement.units == "element" or fresh
        units = rows.others(shape) if each else tuple(shape[-1:])
    elif placement.units == "element":
        units = tuple(shape[-dims - 1 :])
    else:
        units = (shape[-dims - 1], *(1,) * dims)
        chain = chain + tuple(layer.pools) if kind == "after" else chain
    return Site(layer.name, kind, chain, units, rows=rows)


def _existing_site(dropout: Dropout, rows: Rows) -> Site:
    sizes = rows.others(dropout.entering.shape)
    if DROPOUTS[dropout.operation]:
        sizes = (sizes[0], *(1,) * (len(sizes) - 1))
    return Site(dropout.name, "existing", (dropout.operation,), sizes, dropout.rate, rows)


def _numbered(sites: list[Site]) -> list[Site]:
    """Existing dropouts with the same name are different calls: `drop`, `drop#2`, ..."""
    seen: dict[str, int] = {}
    numbered = []
    for site in sites:
        seen[site.name] = seen.get(site.name, 0) + 1
        name = site.name if seen[site.name] == 1 else f"{site.name}#{seen[site.name]}"
        numbered.append(replace(site, name=name))
    return numbered


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


_HIDDEN = (
    "TorchScript hides the layers of the model, so that dropout finds none; use the Python module "
    "that was scripted or traced."
)


def _nothing_to_drop(met: Met, placement: Placement) -> str:
    if placement.only:
        names = sorted({layer.name for layer in met.layers if layer.feeds_a_layer})
        return f"No layer matches {list(placement.only)}; the layers that can be dropped: {names}."
    if placement.kind == "existing":
        return 'The model has no dropout of its own; use the placement "after".'
    if not met.layers:
        return (
            "The model has no layer with weights, so there is nothing to drop; "
            "`fit(loader, model=None)` finds a constant variance beside the sensor's."
        )
    return (
        "The model has no layer whose output another layer uses, so there is nothing to drop; "
        'use the placement "before" to drop the inputs of its layers.'
    )


def describe(sites: Sequence[Site], rates: Sequence[float] | None = None) -> str:
    """A table of where dropout goes: layer, place, units, rate."""
    lines = [("layer", "place", "units", "rate")]
    for index, site in enumerate(sites):
        place = " > ".join(site.chain) if site.kind == "after" else f"{site.kind} {site.chain[0]}"
        rate = site.rate if rates is None else rates[index]
        shape = " x ".join(str(n) for n in site.units)
        lines.append((site.name, place, shape, "-" if rate is None else f"{rate:.4g}"))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
