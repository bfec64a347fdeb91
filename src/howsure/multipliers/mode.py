"""Multiplies activations while a model runs, on numbers and on Gaussians alike.

A torch function mode: the model is not touched, other threads are not affected, and whatever
happens inside the `with` block, leaving it ends the multiplication.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from howsure.multipliers.inner import INNER, inner_rate, run_with_dropout
from howsure.multipliers.sites import BatchDim, Site
from howsure.operations import (
    ALPHA_DROPOUTS,
    DROPOUTS,
    RECURRENT,
    LayerNames,
    Operations,
    base_name,
    numbered,
)

# What alpha dropout puts in the place of a dropped unit: the lower limit of SELU.
_SATURATION = -1.7580993408473766


@dataclass(frozen=True, eq=False)
class _Factor:
    """A multiplier, (*units) or (batch, *units), and the site where it goes."""

    site: Site
    multiplier: Tensor


class Multiply(Operations):
    """Multiplies the activations at each site by m: a mean by m, a variance by m**2.

    Attributes:
        used: The names of the sites that were reached.
    """

    def __init__(
        self,
        model: Callable[..., object],
        sites: Sequence[Site],
        multipliers: Sequence[Tensor | None],
        before: Callable[[], None] | None = None,
    ) -> None:
        """Prepares a pass.

        Args:
            model: The model that will run.
            sites: Where activations are multiplied.
            multipliers: One for each site, (*units) or (batch, *units); `None` leaves a site out.
            before: Called before each multiplication.
        """
        super().__init__()
        self.used: set[str] = set()
        self._before = before
        self._names = LayerNames(model)
        self._dropout_calls: Counter[str] = Counter()
        factors = [_Factor(s, m) for s, m in zip(sites, multipliers, strict=True) if m is not None]
        self._at_dropouts = {f.site.name: f for f in factors if f.site.kind == "existing"}
        self._at_layers = {f.site.name: f for f in factors if f.site.kind != "existing"}
        self._inner = {f.site.chain[0] for f in self._at_dropouts.values()} & INNER.keys()
        # Results inside a chain, by identity: the result, its factor, the operations to come.
        self._pending: dict[int, tuple[object, _Factor, Sequence[str]]] = {}

    def operation(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Runs the operation, and multiplies where a site is reached."""
        name = base_name(func)
        data = args[0] if args else kwargs.get("input")
        if name in DROPOUTS:
            if not self._at_dropouts:
                return func(*args, **kwargs)
            call = numbered(self._names.module_path() or name, self._dropout_calls)
            factor = self._at_dropouts.get(call)
            return data if factor is None else self._apply(data, factor)
        if name in self._inner:
            # One without a rate has no site; that of a bare attention shows in train mode only.
            if inner_rate(name, args, kwargs) or name == "scaled_dot_product_attention":
                site = f"{self._names.module_path() or name}:{INNER[name]}"
                return run_with_dropout(name, func, args, kwargs, partial(self._drop, site))
            return func(*args, **kwargs)

        layer = self._names.layer_of(func, args, kwargs) if self._at_layers else None
        factor = None if layer is None else self._at_layers.get(layer)
        if factor is not None and factor.site.kind == "before":
            data = self._apply(data, factor)
            return func(data, *args[1:], **kwargs) if args else func(**{**kwargs, "input": data})

        result = func(*args, **kwargs)
        if factor is not None:
            remaining = factor.site.chain[1:]
        else:
            pending = self._pending.get(id(data))
            if pending is None or pending[2][0] != name or not isinstance(result, Tensor):
                return result
            del self._pending[id(data)]
            _, factor, (_, *remaining) = pending
        if not remaining:
            return self._apply(result, factor)
        end = result[0] if isinstance(result, tuple) else result
        self._pending[id(end)] = end, factor, remaining
        return result

    def _drop(self, site: str, data: Tensor) -> Tensor:
        """What the next dropout inside an operation makes of the data."""
        factor = self._at_dropouts.get(numbered(site, self._dropout_calls))
        return data if factor is None else self._apply(data, factor)

    def _apply(self, result: Any, factor: _Factor) -> Any:
        """The result of an operation, multiplied; of several results only the first.

        A recurrent layer returns its last output as a final state too, with the same multiplier.
        """
        self.used.add(factor.site.name)
        if not isinstance(result, tuple):
            return self._multiply(result, factor)
        first, *others = result
        products = [self._multiply(first, factor), *others]
        site = factor.site
        if site.chain[0] in RECURRENT and len(site.units) == 1 and first.dim() == 3:
            products[1] = self._multiply_last_state(others[0], factor)
        return type(result)(*products) if hasattr(result, "_fields") else tuple(products)

    def _multiply_last_state(self, state: Tensor, factor: _Factor) -> Tensor:
        """The final states, (layers * directions, batch, units), with the last layer's times m."""
        directions = factor.site.units[0] // state.shape[-1]
        last = state[-directions:].transpose(0, 1).flatten(1)  # (batch, directions * units)
        batch_first = replace(factor.site, batch=BatchDim())
        last = self._multiply(last, replace(factor, site=batch_first))
        last = last.unflatten(1, (directions, -1)).transpose(0, 1)
        return last if directions == len(state) else torch.cat([state[:-directions], last])

    def _multiply(self, data: Tensor, factor: _Factor) -> Tensor:
        """The data times the multiplier.

        Alpha dropout moves a unit toward a constant s instead, and scales all of them such that
        numbers of mean 0 and variance 1 stay so: (m x + (1 - m) s) sqrt((1 - p) / (1 + p s**2)).
        """
        if self._before is not None:
            self._before()
        multiplier = _broadcast(factor.multiplier, data.shape, factor.site)
        multiplier = multiplier.to(dtype=data.dtype, device=data.device)
        rate = factor.site.rate
        if factor.site.chain[0] not in ALPHA_DROPOUTS or rate is None:
            return data * multiplier
        scale = math.sqrt((1 - rate) / (1 + rate * _SATURATION**2))
        return data * (scale * multiplier) + scale * _SATURATION * (1 - multiplier)

    def check_all_used(self) -> None:
        """An error if a site was not reached: the model took another path than in the dry run."""
        unused = [n for n in (*self._at_layers, *self._at_dropouts) if n not in self.used]
        if unused:
            raise RuntimeError(
                f"The dropout site `{unused[0]}` was not reached: the model took another path "
                "than in its dry run. Leave the layer out with a placement pattern, or wrap the "
                "model again if it was changed since."
            )


def _broadcast(multiplier: Tensor, shape: Sequence[int], site: Site) -> Tensor:
    """A multiplier, (*units) or (batch, *units), in a shape that broadcasts with the data's."""
    units, dim = site.units, site.batch.dim
    has_batch = multiplier.dim() > len(units)
    samples = multiplier.shape[0] if has_batch else 1
    between = len(shape) - 1 - len(units)
    if dim is None or between < 0:
        if samples != 1:
            raise ValueError(
                f"All inputs of a batch share the output of `{site.name}`, so they cannot have "
                "masks of their own; leave the layer out with a placement pattern, or give inputs "
                "one by one."
            )
        return multiplier[0] if has_batch else multiplier
    length = shape[dim]
    aligned = multiplier.reshape(samples, *(1,) * between, *units).movedim(0, dim)
    if samples in (1, length):
        return aligned
    if length % samples:
        raise ValueError(
            f"`{site.name}` returns shape {tuple(shape)}, which has no axis for the masks of "
            f"{samples} inputs; leave the layer out with a placement pattern."
        )
    # The dimension also counts something else, such as frames, which share the multiplier.
    repeats = length // samples
    if site.batch.is_outer:
        return aligned.repeat_interleave(repeats, dim)
    return aligned.repeat([repeats if d == dim else 1 for d in range(aligned.dim())])
