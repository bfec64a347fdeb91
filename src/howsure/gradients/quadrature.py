"""How the inner products of gradients at four points make a variance.

With F(z) the network as a function of standard normal noise z, and Z, Z' of correlation rho,

    Var F = integral over rho in [0, 1] of h(rho),    h(rho) = E <grad F(Z), grad F(Z')>,

and h(rho) = sum_k k c_k rho^(k-1), where c_k >= 0 is the variance of Hermite order k, Var F = sum_k
c_k (Houdre & Perez-Abreu 1995). With every point z comes its mirror image -z. They split F into an
odd part, of orders 1, 3, ..., and an even one, of orders 2, 4, ..., whose integrals are taken one
by one: h is known at RHO from pairs of points, and at 1 from each point with itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The correlation of the two points of a block, and the weights of h(1) in both parts. A linear F is
# exact for any ODD, a quadratic one for any EVEN. These three are a least-squares fit to rectifiers
# relu(z + t): right to 0.01 for t >= -2 and to 0.04 at t = -2.5, where one input in 160 passes.
RHO = 0.55
ODD = 0.05
EVEN = 0.1
# A block: a, -a, b, -b.
POINTS = 4


def variance_form() -> Tensor:  # (4, 4)
    """Q such that sum_pq Q_pq <g_p, g_q> estimates Var F from the gradients of one block."""
    return _form((1 - ODD, ODD), ((1 - 2 * EVEN) / (2 * RHO), EVEN))


def linear_form() -> Tensor:  # (4, 4)
    """Q such that sum_pq Q_pq <g_p, g_q> estimates c_1, by the line in rho^2 through RHO and 1."""
    slope = 1 / (1 - RHO**2)
    return _form((slope, 1 - slope), (0.0, 0.0))


def half_forms() -> Tensor:  # (2, 4, 4)
    """Forms that say how steep F is at a and at b alone: h(1) of the odd part and half the even's.

    Each is in proportion to Var F, for a linear and for a quadratic F, so that their difference
    tells the error of a single block.
    """
    whole = _form((0.0, 1.0), (0.0, 0.5))
    first = torch.zeros_like(whole)
    first[:2, :2] = whole[:2, :2]
    return torch.stack([first, whole - first])


def _form(odd: tuple[float, float], even: tuple[float, float]) -> Tensor:
    """The weights (at RHO, at 1) of both parts as a quadratic form in the gradients."""
    half = 0.5
    # Gradients of the odd part at a and b, then of the even part.
    parts = torch.tensor(
        [[half, half, 0, 0], [0, 0, half, half], [half, -half, 0, 0], [0, 0, half, -half]],
        dtype=torch.float64,
    )
    weights = torch.zeros(POINTS, POINTS, dtype=torch.float64)
    for start, (at_rho, at_one) in ((0, odd), (2, even)):
        both = slice(start, start + 2)
        weights[both, both] = torch.tensor([[at_one, at_rho], [at_rho, at_one]]) / 2
    return parts.T @ weights @ parts
