"""The truth about a random call, found without any moment rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from howsure.moments.rule import Target
from howsure.testing.calls import Call

# Draws at once. They stay in the cache: 20,000 convolutions in one call take 1.7 times as long.
_CHUNK = 500


class Truth(NamedTuple):
    """Moments of one output, with the standard errors of the estimates."""

    mean: Tensor
    var: Tensor
    mean_error: Tensor
    var_error: Tensor


def monte_carlo(call: Call, target: Target, draws: int, seed: int = 0) -> list[Truth]:
    """Moments by sampling the random arguments, with `vmap` over the draws."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for mean, var in zip(call.means, call.variances, strict=True):
        # In single precision, which is drawn four times as fast.
        noise = torch.randn(draws, *mean.shape, generator=generator, dtype=torch.float32)
        inputs.append(mean + var.sqrt() * noise.to(mean.dtype))

    def one_draw(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(call.plain(target, list(values)))

    return [_estimate(output) for output in _each(one_draw, *inputs, at_most=2000)]


def _each(
    function: Callable[..., tuple[Tensor, ...]], *batches: Tensor, at_most: int | None = None
) -> tuple[Tensor, ...]:
    """`function` of every item: by `vmap`; in a loop, of fewer, where vmap refuses."""
    try:
        return torch.vmap(function, chunk_size=_CHUNK)(*batches)
    except RuntimeError:
        pass  # no batching rule; what is wrong with the operation itself goes wrong below as well
    items = zip(*(batch[:at_most] for batch in batches), strict=True)
    rows = [function(*item) for item in items]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _estimate(draws: Tensor) -> Truth:
    """Sample moments; the variance's standard error comes from the fourth moment."""
    count = draws.shape[0]
    mean = draws.mean(0)
    deviation = (draws - mean).square()
    var = deviation.mean(0)
    kurtosis_part = (deviation.square().mean(0) - var.square()).clamp(min=0)
    return Truth(mean, var, (var / count).sqrt(), (kurtosis_part / count).sqrt())


def quadrature(call: Call, target: Target, nodes: int = 40001) -> list[Truth]:
    """Moments of an elementwise operation of one random argument, on a dense grid.

    Sampling is blind to rare events: max(x, 0) for a mean of -5 standard deviations.
    """
    (mean,), (var,) = call.means, call.variances
    z = torch.linspace(-9.0, 9.0, nodes, dtype=mean.dtype)
    weight = torch.exp(-0.5 * z.square())
    weight = weight / weight.sum()

    def at(node: Tensor) -> Tensor:
        return call.plain(target, [mean + var.sqrt() * node])[0]

    values = torch.vmap(at, chunk_size=4096)(z)
    weight = weight.reshape(-1, *[1] * mean.dim())
    expected = (weight * values).sum(0)
    spread = (weight * (values - expected).square()).sum(0)
    return [Truth(expected, spread, torch.zeros_like(expected), torch.zeros_like(spread))]


def first_order_variance(
    function: Callable[..., tuple[Tensor, ...]], means: list[Tensor], variances: list[Tensor]
) -> list[Tensor]:
    """sum_j (d output / d mean_j)**2 var_j of every output, by central differences.

    Differences, not autograd: `detach` and its like have a slope that autograd hides.
    """
    outputs = function(*means)
    totals = [torch.zeros_like(output) for output in outputs]
    for which, var in enumerate(variances):
        for total, slopes in zip(totals, _slopes(function, means, which), strict=True):
            weight = var.reshape(-1, *[1] * total.dim())
            total += (slopes.square() * weight).sum(0)
    return totals


def _slopes(
    function: Callable[..., tuple[Tensor, ...]], means: list[Tensor], which: int, step: float = 1e-6
) -> list[Tensor]:
    """Slopes of every output with respect to each element of one argument, in front."""
    size, shape = means[which].numel(), means[which].shape
    nudges = step * torch.eye(size, dtype=means[which].dtype).reshape(size, *shape)

    def at(nudge: Tensor) -> tuple[Tensor, ...]:
        moved = [m + (nudge if i == which else 0 * nudge.sum()) for i, m in enumerate(means)]
        return function(*moved)

    # All arguments are batched: an assignment into one that is not would fail under vmap.
    above, below = _each(at, nudges), _each(at, -nudges)
    return [(up - down) / (2 * step) for up, down in zip(above, below, strict=True)]
