"""Where dropout goes on a trained network, found by one dry run."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from howsure.masks.layers import (
    DROPOUTS,
    Weights,
    base_name,
    commutes_with_channels,
    follows_a_layer,
    is_recurrent,
    spatial_dims,
)
from howsure.values.call_site import CallSites, Operations
from howsure.values.trees import as_call, in_python

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
    """

    name: str
    kind: str
    chain: tuple[str, ...]
    units: tuple[int, ...]
    rate: float | None = None


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


@dataclass
class _Layer:
    """A layer met in the dry run, with the operations that follow it directly."""

    name: str
    chain: list[str]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    pools: list[str] = field(default_factory=list)
    feeds_a_layer: bool = False


@dataclass
class _Met:
    layers: list[_Layer] = field(default_factory=list)
    dropouts: list[tuple[str, str, tuple[int, ...], float]] = field(default_factory=list)


class Explorer(Operations):
    """Watches a plain pass: layers, what follows them, and which feed other layers."""

    def __init__(self, model: Callable[..., Any]) -> None:
        super().__init__()
        self.weights = Weights(model)
        self.places = CallSites(model)
        self.met = _Met()
        # By identity: which layers a tensor comes from, and whose chain it ends. The tensors are
        # kept alive, so that an identity is not used again.
        self.ancestors: dict[int, set[int]] = {}
        self.tips: dict[int, int] = {}
        self.kept: list[Tensor] = []

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation and notes what it was."""
        inputs = list(_tensors([args, kwargs]))
        sources = set().union(*(self.ancestors.get(id(t), set()) for t in inputs))
        result = func(*args, **kwargs)
        outputs = list(_tensors(result))
        if not outputs:
            return result
        layer = self.weights.layer_of(func, args, kwargs)
        if layer is not None and inputs:
            sources = self._enter_layer(layer, func, inputs, outputs, sources)
        else:
            self._follow(func, args, kwargs, inputs, outputs[0])
        for output in outputs:
            self.ancestors[id(output)] = self.ancestors.get(id(output), set()) | sources
            self.kept.append(output)
        return result

    def _enter_layer(
        self, name: str, func: Any, inputs: list[Tensor], outputs: list[Tensor], sources: set[int]
    ) -> set[int]:
        for index in sources:
            self.met.layers[index].feeds_a_layer = True
        data = next((t for t in inputs if id(t) not in self.weights.names), inputs[0])
        name = name or self.places.module_path() or base_name(func)
        new = _Layer(name, [base_name(func)], tuple(data.shape), tuple(outputs[0].shape))
        self.met.layers.append(new)
        index = len(self.met.layers) - 1
        self.tips[id(outputs[0])] = index
        return {index}

    def _follow(
        self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], output: Tensor
    ) -> None:
        name = base_name(func)
        if name in DROPOUTS and inputs:
            rate = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))
            where = self.places.module_path() or name
            self.met.dropouts.append((where, name, tuple(inputs[0].shape), rate))
        if not inputs or id(inputs[0]) not in self.tips:
            return
        layer = self.met.layers[index := self.tips.pop(id(inputs[0]))]
        if commutes_with_channels(func) and spatial_dims(layer.chain[0]):
            layer.pools.append(name)
        elif follows_a_layer(func) and output.shape == layer.output_shape and not layer.pools:
            layer.chain.append(name)
        else:
            return
        self.tips[id(output)] = index


def _tensors(tree: Any) -> Any:
    """All floating-point tensors in nested arguments, in order."""
    if isinstance(tree, Tensor):
        if tree.dtype.is_floating_point:
            yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


class NothingToDropError(ValueError):
    """The model has no place for a mask where it was asked for."""


def find_sites(model: Callable[..., Any], x: Any, placement: Placement) -> tuple[Site, ...]:
    """The dropout sites of a model for inputs like `x`.

    Never after an output layer: one from which no other layer is reached.
    """
    explorer = Explorer(model)
    args, kwargs = as_call(x)
    # A model that draws random numbers leaves those of its caller as they were.
    with torch.no_grad(), torch.random.fork_rng(devices=[]), explorer:
        in_python(model)(*args, **kwargs)
    found = _chosen(explorer.met, placement)
    kept = [s for s in found if not placement.only or _matches(s.name, placement.only)]
    if not kept:
        scripted = isinstance(model, nn.Module) and any(
            isinstance(module, torch.jit.ScriptModule) for module in model.modules()
        )
        reason = _HIDDEN if scripted else _nothing_to_drop(explorer.met, placement)
        raise NothingToDropError(reason)
    return tuple(kept)


def _chosen(met: _Met, placement: Placement) -> list[Site]:
    existing = [_existing_site(*each) for each in met.dropouts if each[3] > 0]
    kind = placement.kind
    if kind == "auto":
        kind = "existing" if existing and not placement.only else "after"
    if kind == "existing":
        return _numbered(existing)
    sites: dict[str, Site] = {}
    for layer in met.layers:
        if kind == "before" or layer.feeds_a_layer:
            # A layer that is called again, as in a loop over time, is the same site.
            sites.setdefault(layer.name, _layer_site(layer, kind, placement))
    return list(sites.values())


def _layer_site(layer: _Layer, kind: str, placement: Placement) -> Site:
    operation = layer.chain[0]
    shape = layer.output_shape if kind == "after" else layer.input_shape
    dims = spatial_dims(operation)
    chain = tuple(layer.chain) if kind == "after" else (operation,)
    if dims == 0:
        fresh = is_recurrent(operation) and placement.over_time == "fresh"
        units = shape[1:] if placement.units == "element" or fresh else shape[-1:]
    elif placement.units == "element":
        units = shape[-dims - 1 :]
    else:
        units = (shape[-dims - 1], *(1,) * dims)
        chain = chain + tuple(layer.pools) if kind == "after" else chain
    return Site(layer.name, kind, chain, units)


def _existing_site(name: str, operation: str, shape: tuple[int, ...], rate: float) -> Site:
    channels = DROPOUTS[operation]
    units = (shape[1], *(1,) * (len(shape) - 2)) if channels else shape[1:]
    return Site(name, "existing", (operation,), units, rate)


def _numbered(sites: list[Site]) -> list[Site]:
    """Existing dropouts with the same name are different calls: `drop`, `drop#2`, ..."""
    seen: dict[str, int] = {}
    numbered = []
    for site in sites:
        seen[site.name] = seen.get(site.name, 0) + 1
        name = site.name if seen[site.name] == 1 else f"{site.name}#{seen[site.name]}"
        numbered.append(Site(name, site.kind, site.chain, site.units, site.rate))
    return numbered


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


_HIDDEN = (
    "TorchScript hides the layers of the model, so that dropout finds none; use the Python module "
    "that was scripted or traced."
)


def _nothing_to_drop(met: _Met, placement: Placement) -> str:
    if placement.only:
        names = sorted({layer.name for layer in met.layers if layer.feeds_a_layer})
        return f"No layer matches {list(placement.only)}; the layers that can be dropped: {names}."
    if placement.kind == "existing":
        return 'The model has no dropout of its own; use the placement "after".'
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
