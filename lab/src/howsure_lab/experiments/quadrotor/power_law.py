"""How large errors are, as a power of one number that announces them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """var_k = exp(offset_k) * u**power_k, with one sign u of trouble for all outputs.

    Attributes:
        offset: (outputs,)
        power: (outputs,), 0 or more.
    """

    offset: Tensor
    power: Tensor

    def __call__(self, u: Tensor) -> Tensor:  # (n,) -> (n, outputs)
        """The variance of every output."""
        return torch.exp(self.offset + self.power * u.log()[:, None])

    @staticmethod
    def fit(u: Tensor, squared: Tensor) -> PowerLaw:  # (n,), (n, outputs)
        """The law under which Gaussian errors with these squares are most likely.

        The NLL 1/2 (log var + squared / var) is convex in offset and power, so Newton's method with
        halved steps finds its minimum. A negative power is set to 0: more trouble never means
        smaller errors.
        """
        if not bool((u > 0).all()):
            raise ValueError("`u` must be positive everywhere; it has a logarithm.")
        logs = u.double().log()
        fitted = [_newton(logs, column) for column in squared.double().T]
        return PowerLaw(*torch.stack(fitted, 1).to(squared.dtype))


def _newton(logs: Tensor, squared: Tensor) -> Tensor:  # (2,)
    design = torch.stack([torch.ones_like(logs), logs], 1)
    # An error of 0 is no reason for a variance of 0: the smallest positive mean protects the log.
    found = torch.stack([squared.mean().clamp_min(1e-30).log(), torch.zeros_like(logs[0])])
    for _ in range(60):
        ratio = squared * torch.exp(-(design @ found))
        gradient = design.T @ (1 - ratio)
        curvature = (design.T * ratio) @ design
        full = torch.linalg.lstsq(curvature, gradient[:, None]).solution[:, 0]
        found = _descended(design, squared, found, full)
        if float(full.abs().max()) < 1e-9:
            break
    if found[1] < 0:
        return torch.stack([squared.mean().clamp_min(1e-30).log(), torch.zeros_like(logs[0])])
    return found


def _descended(design: Tensor, squared: Tensor, found: Tensor, full: Tensor) -> Tensor:
    """The Newton step, halved until the NLL does not rise."""

    def nll(point: Tensor) -> Tensor:
        value = design @ point
        return (value + squared * torch.exp(-value)).sum()

    start = nll(found)
    for halvings in range(40):
        point = found - full * 0.5**halvings
        if bool(nll(point) <= start):
            return point
    return found
