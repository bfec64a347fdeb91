"""T passes with dropout masks, all in vmapped chunks, from one seed.

Only the masks are batched: whatever comes before the first active mask is computed once for all
samples of a chunk, and skip connections broadcast by themselves. A `Prefix` keeps it for the next
chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.masks import DropoutMode, Site, draw_uniforms, masks
from howsure.methods.passes import own_random_numbers
from howsure.moments.prefix import Prefix
from howsure.setup import Setup
from howsure.values.running import keep_freed_memory
from howsure.values.trees import Parts, batch_size

# Samples unless `samples` says otherwise: the paper's T is between 10 and 50.
SAMPLES = 20
# Samples times inputs that run at once unless `chunk` says otherwise: at least so many, and more
# where all of them together have no more than so many elements.
_ROWS = 64
_ELEMENTS = 2**18


def has_active_sites(setup: Setup, x: Any) -> bool:
    """Whether any unit is dropped at all."""
    return any(rate > 0 for rate in setup.rates(setup.sites(x)))


def sampled(
    setup: Setup, x: Any, one_pass: Callable[[Prefix | None], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """The outputs of `one_pass` for every dropout sample, stacked in front.

    The pass is handed what earlier ones kept, if there are several; using it is up to the pass.
    """
    setup = setup if setup.samples else setup.with_(samples=SAMPLES)
    assert setup.samples is not None
    if setup.samples < 2:
        raise ValueError(
            "`samples` is 1, and one sample has no variance; use at least 2, or the method "
            '"adf" without dropout.'
        )
    keep_freed_memory()
    sites = setup.sites(x)
    drawn = masks_of(setup, sites, x)
    chunk = setup.chunk or usual_chunk(sites, x)
    prefix = Prefix() if chunk < setup.samples else None
    parts = []
    for start in range(0, setup.samples, chunk):
        some = [None if m is None else m[start : start + chunk] for m in drawn]
        parts.append(_one_chunk(setup, sites, some, one_pass, prefix, start))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def usual_chunk(sites: Sequence[Site], x: Any) -> int:
    """How many samples of a batch run at once: few calls for small models, no heaps for large."""
    batch = batch_size(x)
    inputs = sum(tensor.numel() for tensor in Parts(x).tensors) // max(batch, 1)
    largest = max(inputs, *(math.prod(site.units) for site in sites), 1)
    return max(1, max(_ROWS, _ELEMENTS // largest) // max(batch, 1))


def masks_of(setup: Setup, sites: tuple[Site, ...], x: Any) -> list[Tensor | None]:
    """The masks of every site for all samples, in front; `None` at rate 0."""
    if setup.uniforms is not None:
        return masks(setup.uniforms, setup.rates(sites))
    shares = setup.shared_masks or setup.batch_dim is None
    batch = None if shares else batch_size(x, setup.batch_dim or 0)
    uniforms = draw_uniforms(sites, setup.samples or SAMPLES, setup.seed, batch=batch)
    return masks(uniforms, setup.rates(sites))


def _one_chunk(
    setup: Setup,
    sites: tuple[Site, ...],
    chunk: list[Tensor | None],
    one_pass: Callable[[Prefix | None], tuple[Tensor, ...]],
    prefix: Prefix | None,
    first: int,
) -> tuple[Tensor, ...]:
    active = [m for m in chunk if m is not None]
    before_mask = prefix.close if prefix else None

    def one_sample(*values: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(values)
        filled = [None if m is None else next(remaining) for m in chunk]
        if prefix:
            prefix.start()
        with DropoutMode(setup.model, sites, filled, before_mask) as mode:
            outputs = one_pass(prefix)
        mode.check_all_used()
        return outputs

    try:
        return torch.vmap(one_sample)(*active)
    except RuntimeError as error:
        if isinstance(error, NoRuleError):
            raise
    # Branches, numbers taken out and autograd functions do not work inside `vmap`: one by one.
    with own_random_numbers(setup.seed + first):
        before = torch.get_rng_state()
        found = [one_sample(*each) for each in zip(*active, strict=True)]
        if not torch.equal(before, torch.get_rng_state()):
            setup.keep("draws", True)  # What asked for the samples decides what that means.
    return tuple(torch.stack(column) for column in zip(*found, strict=True))
