"""Which entries a metric looks at: masks, weights and finite values, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def select(
    shape: torch.Size, mask: Tensor | None, weight: Tensor | None, **tensors: Tensor
) -> list[Tensor]:
    """The chosen entries of each tensor, and their weights last.

    Entries that the mask or a weight of 0 leaves out are not looked at and may be NaN.

    Args:
        shape: Shape of the predictions; a tensor may have further dimensions behind it.
        mask: True where an entry counts; size 1 where it repeats.
        weight: How much an entry counts; size 1 where it repeats.
        **tensors: Data by the name that errors call them.

    Returns:
        For each tensor `(n, ...)` and for the weights `(n,)`.
    """
    chosen = _chosen(shape, mask, weight)
    selected = [_entries(name, value, shape, chosen) for name, value in tensors.items()]
    if weight is None:
        weights = torch.ones(len(selected[0]), dtype=torch.float64, device=selected[0].device)
    else:
        weights = _entries("weight", weight.expand(shape), shape, chosen)
    return [*selected, weights]


def are_tensors(**values: object) -> None:
    """Refuses what is not a torch tensor."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"`{name}` is a {type(value).__name__}; pass a torch tensor, for example "
                f"`torch.as_tensor({name})`."
            )


def share(bad: Tensor) -> str:
    """How many entries are true, for an error message."""
    return f"{int(bad.sum())} of {bad.numel()}"


def _entries(name: str, value: Tensor, shape: torch.Size, chosen: Tensor | None) -> Tensor:
    flat = value.reshape(-1, *value.shape[len(shape) :]) if chosen is None else value[chosen]
    # Apple's GPU has no float64.
    entries = (flat.cpu() if flat.device.type == "mps" else flat).to(torch.float64)
    if entries.numel() == 0:
        raise ValueError(f"`{name}` has no entries to evaluate; check the data and the mask.")
    # A finite sum has finite terms, and is cheaper than a look at each.
    if not entries.sum().isfinite() and not entries.isfinite().all():
        bad = ~entries.isfinite()
        raise ValueError(
            f"`{name}` is NaN or infinite in {share(bad)} entries; leave them out with `mask=`."
        )
    return entries


def _chosen(shape: torch.Size, mask: Tensor | None, weight: Tensor | None) -> Tensor | None:
    """Where the mask is true and the weight is not 0; None means everywhere."""
    chosen = None
    if mask is not None:
        _repeats_to("mask", mask, shape)
        if mask.dtype != torch.bool:
            raise ValueError(f"`mask` is {mask.dtype}; pass a boolean tensor, for example `x > 0`.")
        chosen = mask.expand(shape)
    if weight is not None:
        _repeats_to("weight", weight, shape)
        if not (weight >= 0).all():
            raise ValueError("`weight` holds negative or NaN values; pass values from 0 up.")
        positive = (weight > 0).expand(shape)
        chosen = positive if chosen is None else chosen & positive
    return chosen


def _repeats_to(name: str, value: Tensor, shape: torch.Size) -> None:
    are_tensors(**{name: value})
    fits = value.dim() == len(shape) and all(
        size in (1, full) for size, full in zip(value.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` has shape {tuple(value.shape)} for predictions of shape {tuple(shape)}; "
            "give as many dimensions, of equal size or of size 1 where it repeats."
        )
