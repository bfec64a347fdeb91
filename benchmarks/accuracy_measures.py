"""Measures of a standard deviation against Monte Carlo, and of the cost in operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

# E|x| / sqrt(E x^2) of a normal number.
_MEAN_ABSOLUTE = math.sqrt(2 / math.pi)
# A top probability that hardly moves has a std that nobody asks for.
_LEAST_STD = 0.001


@dataclass(frozen=True, eq=False)
class Truth:
    """Mean and std of all pairs of input and output that count, flat.

    Attributes:
        mean: Of Monte Carlo.
        std: Of Monte Carlo.
        error: The relative standard error of that std.
        halves: The std by two halves of the samples, (2, pairs).
        chosen: The pairs that count, of (inputs, outputs); `None` is all.
    """

    mean: Tensor
    std: Tensor
    error: Tensor
    halves: Tensor
    chosen: Tensor | None = None

    @classmethod
    def of(
        cls,
        draws: Tensor,
        plain: Tensor,
        probability: bool = False,
        linear: Mapping[str, Tensor] | None = None,
    ) -> Truth:
        """From draws (samples, inputs, outputs), or those of the probability of the top class.

        With the linear part of the draws and its variance (`real_networks.linear_part`), what
        chance does to it is taken off.
        """
        chosen = None
        if probability:
            draws, linear = draws.softmax(2), None
            top = torch.nn.functional.one_hot(plain.argmax(1), plain.shape[1]).bool()
            chosen = top & (draws.std(0) > _LEAST_STD)
        halves = [_moments(draws, linear, slice(start, None, 2))[1] for start in (0, 1)]
        tensors = [*_moments(draws, linear, slice(None)), torch.stack(halves, -1)]
        mean, std, error, both = (
            each.flatten(0, 1) if chosen is None else each[chosen] for each in tensors
        )
        return cls(mean, std, error, both.T, chosen)

    @property
    def own_error(self) -> float:
        """The relative standard error of its std, root mean square."""
        return float(self.error.square().mean().sqrt())

    @property
    def rank_limit(self) -> float:
        """The rank correlation that the exact std would have with it (Spearman & Brown 1910)."""
        between = rank_correlation(*self.halves)
        return math.sqrt(max(0.0, 2 * between / (1 + between)))

    def pick(self, values: Tensor) -> Tensor:
        """The pairs that count."""
        return values.flatten() if self.chosen is None else values[self.chosen]

    def mean_error(self, mean: Tensor) -> float:
        """Mean absolute error of the mean, in true std."""
        mean = mean if self.chosen is None else mean.softmax(1)
        return self._mean_error(self.pick(mean))

    def _mean_error(self, mean: Tensor) -> float:
        return float(((mean - self.mean) / self.std).abs().mean())


def _moments(
    draws: Tensor, linear: Mapping[str, Tensor] | None, some: slice
) -> tuple[Tensor, Tensor, Tensor]:  # (inputs, outputs) each
    """Mean, std and its relative standard error, of some of the draws."""
    drawn = draws[some].double()
    count, mean = len(drawn), drawn.mean(0)
    squares = (drawn - mean).square() * count / (count - 1)
    if linear is not None:
        part, var = linear["draws"][some].double(), linear["var"].double()
        slope = (part * (drawn - mean)).mean(0) / part.square().mean(0)
        mean = mean - slope * part.mean(0)
        squares = squares - slope.square() * (part.square() - var)
    spread, variance = torch.std_mean(squares, 0)
    error = spread / (2 * variance * math.sqrt(count))
    return mean.float(), variance.sqrt().float(), error.float()


def measures(truth: Truth, mean: Tensor, std: Tensor, error: Tensor | None) -> dict[str, float]:
    """Ratio, log error, rank correlation, error of the mean; stated and actual relative error."""
    found = truth.pick(std.detach())
    ratio = found / truth.std
    log_error = float(ratio.log().abs().mean())
    actual = float((ratio - 1).square().mean().sqrt())
    result = {
        "ratio": float(ratio.median()),
        "log_error": _without(log_error, _MEAN_ABSOLUTE * truth.own_error),
        "rank": rank_correlation(found, truth.std),
        "mean_error": truth._mean_error(truth.pick(mean.detach())),
        "actual_error": _without(actual, truth.own_error),
    }
    if error is not None:
        stated = truth.pick(error.detach()) / truth.std
        result["stated_error"] = float(stated.square().mean().sqrt())
    return result


def _without(error: float, own: float) -> float:
    """An error less that of the truth, which is independent of it."""
    return math.sqrt(max(0.0, error**2 - own**2))


def rank_correlation(one: Tensor, two: Tensor) -> float:
    """Spearman's."""
    ranks = torch.stack([each.argsort().argsort().double() for each in (one, two)])
    return float(torch.corrcoef(ranks)[0, 1])


def average(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of several seeds: the mean, and the root mean square of what is one already."""
    found = {}
    for key in runs[0]:
        values = torch.tensor([run[key] for run in runs])
        is_square = key in ("actual_error", "stated_error")
        found[key] = float(values.square().mean().sqrt() if is_square else values.mean())
    return found


def _layer_operations(x: Size, weight: Size, state_weight: Size, *_: Any, **__: Any) -> int:
    """Of a whole recurrent layer, which torch does not count."""
    return 2 * x[:2].numel() * (weight.numel() + state_weight.numel())


_RECURRENT = {
    torch.ops.aten.mkldnn_rnn_layer: _layer_operations,
    # The backward pass makes the gradients of states and of weights.
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda *shapes, **options: (
        2 * _layer_operations(*shapes, **options)
    ),
}


def operations_of(function: Callable[[], Any]) -> int:
    """Multiplications and additions of convolutions and matrix products in one call."""
    with FlopCounterMode(display=False, custom_mapping=_RECURRENT) as counter:
        function()
    return counter.get_total_flops()


def cost(method: Callable[[], Any], model: nn.Module, x: Any) -> float:
    """Operations of a method, relative to one plain forward pass."""
    with torch.no_grad():
        plain = operations_of(lambda: model(x))
    return operations_of(method) / plain
