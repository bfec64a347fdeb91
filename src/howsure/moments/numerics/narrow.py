"""Whether Gaussians are narrow beside the curves of the functions they go through.

Quadrature then needs a fifth of its nodes. Where tensors have values that is seen; a trace has to
assume it, and to tell afterwards whether it was so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    get_unwrapped,
    is_functorch_wrapped_tensor,
)

from howsure.values.trees import has_values

# Standard deviations up to this are narrow; `quadrature` beside this file has the measured errors.
NARROW = 0.2

_widths: ContextVar[list[Tensor] | None] = ContextVar("widths", default=None)


@contextmanager
def widths_noted() -> Iterator[list[Tensor]]:
    """Inside, traces take all Gaussians for narrow; their largest stds are added to the list."""
    noted: list[Tensor] = []
    token = _widths.set(noted)
    try:
        yield noted
    finally:
        _widths.reset(token)


def are_narrow(std: Tensor) -> bool:
    """Whether all of these standard deviations are small, or may be taken for it."""
    noted, std = _widths.get(), _without_levels(std)
    is_seen = has_values(std)
    if not is_seen and noted is None:
        return False
    if std.numel() == 0:
        return True
    if noted is None:
        return bool((std <= NARROW).all())
    largest = std.max()
    noted.append(largest)
    return bool(largest <= NARROW) if is_seen else True


def _without_levels(tensor: Tensor) -> Tensor:
    """The values that `vmap` and derivatives work on, of all samples."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor
