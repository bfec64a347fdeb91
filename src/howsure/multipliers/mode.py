"""Applies dropout masks while a model runs, on numbers and on Gaussians alike.

A torch function mode: the model is not touched, other threads are not affected, and whatever
happens inside the `with` block, leaving it switches dropout off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.multipliers.exploring import IN_FRONT
from howsure.multipliers.layers import DROPOUTS, Weights, base_name, is_recurrent
from howsure.multipliers.sites import Site
from howsure.operations import CallSites, Operations


class DropoutMode(Operations):
    """Multiplies the result at each site by its mask: mean by m, variance by m**2."""

    def __init__(
        self,
        model: Callable[..., object],
        sites: Sequence[Site],
        masks: Sequence[Tensor | None],
        before_mask: Callable[[], None] | None = None,
    ) -> None:
        """Starts with nothing dropped.

        Args:
            model: The model that will run.
            sites: Where masks go.
            masks: One for each site, (*units) or (rows, *units); `None` drops nothing.
            before_mask: Called before each mask is applied.
        """
        super().__init__()
        self.before_mask = before_mask
        self.weights = Weights(model)
        self.places = CallSites(model)
        active = [(s, m) for s, m in zip(sites, masks, strict=True) if m is not None]
        self.existing = {s.name: (s, m) for s, m in active if s.kind == "existing"}
        self.placed = {s.name: (s, m) for s, m in active if s.kind != "existing"}
        self.used: set[str] = set()
        self.met: dict[str, int] = {}
        # Tensors on the way through a chain, by identity: site, mask and how far.
        self.pending: dict[int, tuple[Tensor, Site, Tensor, int]] = {}

    def operation(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Runs the operation, and drops units where a site is reached."""
        name = base_name(func)
        if name in DROPOUTS:
            return self._existing_dropout(name, func, args, kwargs)
        layer = self.weights.layer_of(func, args, kwargs) if self.placed else None
        if layer is not None:
            return self._layer(layer or self.places.module_path() or name, func, args, kwargs)
        result = func(*args, **kwargs)
        first = args[0] if args else kwargs.get("input")
        return self._advanced(name, first, result) if self.pending else result

    def _layer(
        self,
        layer: str,
        func: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> object:
        site, mask = self.placed.get(layer, (None, None))
        if site is None or mask is None:
            return func(*args, **kwargs)
        if site.kind == "before":
            self.used.add(site.name)
            if args:
                return func(self._dropped(args[0], site, mask), *args[1:], **kwargs)
            return func(**{**kwargs, "input": self._dropped(kwargs["input"], site, mask)})
        result = func(*args, **kwargs)
        return self._on_the_way(result, site, mask, 1)

    def _on_the_way(self, result: Any, site: Site, mask: Tensor, reached: int) -> object:
        """The result with its mask if the chain is complete, else noted as pending."""
        if reached == len(site.chain):
            self.used.add(site.name)
            if isinstance(result, tuple):
                dropped = self._recurrent(result, site, mask)
                return type(result)(*dropped) if hasattr(result, "_fields") else dropped
            return self._dropped(result, site, mask)
        tip = result[0] if isinstance(result, tuple) else result
        self.pending[id(tip)] = (tip, site, mask, reached)
        return result

    def _advanced(self, name: str, first: object, result: object) -> object:
        entry = self.pending.get(id(first))
        if entry is None or not isinstance(result, Tensor):
            return result
        _, site, mask, reached = entry
        if name != site.chain[reached]:
            return result
        del self.pending[id(first)]
        return self._on_the_way(result, site, mask, reached + 1)

    def _existing_dropout(
        self,
        name: str,
        func: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> object:
        where = self.places.module_path() or name
        self.met[where] = self.met.get(where, 0) + 1
        key = where if self.met[where] == 1 else f"{where}#{self.met[where]}"
        site, mask = self.existing.get(key, (None, None))
        data = args[0] if args else kwargs["input"]
        if site is None or mask is None:
            return func(*args, **kwargs) if not self.existing else data
        self.used.add(key)
        return self._dropped(data, site, mask)

    def _recurrent(self, result: tuple[Any, ...], site: Site, mask: Tensor) -> tuple[Any, ...]:
        """The output sequence with its mask, and the last layer's final state with the same."""
        sequence, state, *rest = result
        dropped = self._dropped(sequence, site, mask)
        if not is_recurrent(site.chain[0]) or len(site.units) != 1 or sequence.dim() != 3:
            return dropped, state, *rest
        directions = site.units[0] // state.shape[-1]
        last = state[-directions:].transpose(0, 1).flatten(1)  # (batch, directions * units)
        last = self._dropped(last, replace(site, rows=IN_FRONT), mask)
        last = last.unflatten(1, (directions, -1)).transpose(0, 1)
        whole = last if directions == len(state) else torch.cat([state[:-directions], last])
        return dropped, whole, *rest

    def _dropped(self, data: Tensor, site: Site, mask: Tensor) -> Tensor:
        """The data times the mask."""
        if self.before_mask is not None:
            self.before_mask()
        spread = spread_like(data.shape, site, mask) if isinstance(mask, Tensor) else mask
        return data * spread.to(dtype=data.dtype, device=data.device)

    def check_all_used(self) -> None:
        """An error if a site was not reached: the model took another path than in the dry run."""
        unused = [name for name in (*self.placed, *self.existing) if name not in self.used]
        if unused:
            raise RuntimeError(
                f"The dropout site `{unused[0]}` was not reached: the model took another path "
                "than in its dry run. Leave the layer out with a placement pattern, or wrap the "
                "model again if it was changed since."
            )


def spread_like(shape: Sequence[int], site: Site, mask: Tensor) -> Tensor:
    """A mask, (*units) or (rows, *units), in a form that multiplies data of a shape."""
    units, axis = site.units, site.rows.axis
    further = len(shape) - 1 - len(units)
    if axis is None or further < 0:
        return _without_rows(mask, site)
    rows = mask if mask.dim() > len(units) else mask.unsqueeze(0)
    spread = rows.reshape(rows.shape[0], *(1,) * further, *units).movedim(0, axis)
    count, length = rows.shape[0], shape[axis]
    if count in (1, length):
        return spread
    if length % count:
        raise ValueError(
            f"`{site.name}` returns shape {tuple(shape)}, which has no axis for the masks of "
            f"{count} inputs; leave the layer out with a placement pattern."
        )
    each = length // count
    if site.rows.are_outer:
        return spread.repeat_interleave(each, axis)
    return spread.repeat(*(each if a == axis else 1 for a in range(spread.dim())))


def _without_rows(mask: Tensor, site: Site) -> Tensor:
    """A mask for data that the rows of a batch share."""
    if mask.dim() == len(site.units):
        return mask
    if mask.shape[0] == 1:
        return mask[0]
    raise ValueError(
        f"All inputs of a batch share the output of `{site.name}`, so they cannot have masks of "
        "their own; leave the layer out with a placement pattern, or give inputs one by one."
    )


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
        rows = [torch.rand(shape, generator=generator, dtype=torch.float32) for _ in range(samples)]
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
