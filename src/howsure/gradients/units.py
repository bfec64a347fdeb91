"""Gradients of the outputs with respect to one multiplier per unit, at the input itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsure.gradients.calls import ALL, Calls
from howsure.gradients.layout import layout_of
from howsure.gradients.sources import Sources, check_outputs, leaf
from howsure.setup import Setup


def mask_gradients(setup: Setup, x: Any) -> Tensor:  # (rows, outputs, masks)
    """One plain pass with a multiplier of 1 at every unit, a backward pass for each output."""
    verdict = setup.watching(x).once(layout_of, x)
    sources = Sources.of(setup, x, verdict.layout, watch=True)
    return gradients_of_units(verdict.calls(setup, x, sources), sources)


def gradients_of_units(calls: Calls, sources: Sources) -> Tensor:  # (rows, outputs, masks)
    """The same for a model that is about to be called."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [leaf(z, calls.count, calls).requires_grad_() for z in sources.still(1)]
        outputs = calls.at(1, {}, [1 + each for each in leaves], ALL)
        check_outputs(outputs.shape[2])
        if not outputs.requires_grad:  # No unit reaches them.
            masks = sum(each[0, 0].numel() for each in leaves)
            return outputs.new_zeros(*outputs.shape[1:], masks)
        columns = [
            torch.autograd.grad(
                outputs[0, :, k].sum(), leaves, retain_graph=True, materialize_grads=True
            )
            for k in range(outputs.shape[2])
        ]
    return torch.stack([torch.cat([each[0].flatten(1) for each in c], 1) for c in columns], 1)
