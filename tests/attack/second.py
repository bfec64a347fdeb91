"""The oracle of the second attack: Monte Carlo by hand, and what may stand in place of a number."""

from __future__ import annotations

import copy
import math
import traceback

import pytest
import torch
from torch import nn

import howsure as hs

# Words of notes that explain why a std is 0, NaN or unknown.
EXPLAINED = ("None of", "NaN or infinite", "smaller than", "resolution of the inputs")


def slow_but(values, fast):
    """Values of a parameter, all but one of which are run with the slow tests."""
    return [v if v == fast else pytest.param(v, marks=pytest.mark.slow) for v in values]


class Applied(nn.Module):
    """A small network with a function at its front, in its middle or at its end."""

    def __init__(self, function, width=40, place="end", outputs=8, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(width, outputs), nn.Linear(outputs, 2)
        self.function, self.place = function, place

    def forward(self, x):
        if self.place == "front":
            x = self.function(x)
        z = self.first(x.reshape(len(x), -1))
        if self.place == "middle":
            return self.last(self.function(z).reshape(len(z), -1))
        return self.function(z) if self.place == "end" else self.last(torch.tanh(z))


def inputs(rows=4, width=40, seed=1, scale=1.0):
    """Standard normal rows."""
    return scale * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def monte_carlo(function, x, var, draws=3000, seed=7):
    """Std of every output under independent noise of every row, with its standard error."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(draws, *x.shape, generator=generator).to(x.dtype) * math.sqrt(var)
    y = function((x + noise).flatten(0, 1))
    y = y.reshape(draws, len(x), -1).double()
    deviations = (y - y.mean(0)).square()
    variance = deviations.mean(0)
    std = variance.sqrt()
    error = deviations.std(0) / math.sqrt(draws) / (2 * std.clamp(min=1e-300))
    return std, error


def fault(prediction, truth, error, room=0.1, share=0.0):
    """What is wrong with the stds, in words; `None` if they are right or a note says why not.

    `share` is that of the stds that may be off.
    """
    std = prediction.std.double().reshape(truth.shape)
    stated = prediction.std_error
    stated = torch.zeros_like(std) if stated is None else stated.double().reshape(truth.shape)
    stated = stated.nan_to_num(0.0)  # What is not stated gives no room.
    rounding = 1e-7 * (truth.max() + prediction.mean.double().abs().max())
    allowed = room * truth + 4 * (stated.square() + error.square()).sqrt() + rounding
    bad = ~((std - truth).abs() <= allowed)
    explained = any(word in note for word in EXPLAINED for note in prediction.notes)
    bad &= ~(explained & ((std == 0) | std.isnan()))
    if not bad.any() or float(bad.double().mean()) <= share:
        return None
    ratio = (std / truth)[bad]
    return (
        f"{int(bad.sum())} of {bad.numel()} stds are wrong, {float(ratio.min()):.2f} to "
        f"{float(ratio.max()):.2f} of the truth, stated error "
        f"{float((stated / std)[bad].max()):.3f}; notes {prediction.notes}"
    )


def is_ours(error):
    """Whether an error was raised by a line of howsure as one sentence for its user."""
    frames = traceback.extract_tb(error.__traceback__)
    is_type = isinstance(error, (ValueError, TypeError, hs.NoRuleError))
    return is_type and "/howsure/" in frames[-1].filename.replace("\\", "/")


def attempt(run):
    """The result of a function, or the error of ours in its place; any other error is raised."""
    try:
        return run()
    except Exception as error:
        if is_ours(error) and len(str(error)) > 20 and "\n" not in str(error).strip():
            return error
        raise


def snapshot(model):
    """A copy of all that a model has, to compare with."""
    return copy.deepcopy(vars(model))


def same(one, two):
    """Whether two values are equal, whatever they are made of."""
    if isinstance(one, torch.Tensor) or isinstance(two, torch.Tensor):
        return (
            type(one) is type(two)
            and one.shape == two.shape
            and one.dtype == two.dtype
            and torch.equal(one.detach().nan_to_num(7.0), two.detach().nan_to_num(7.0))
        )
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if type(one) is not type(two):
        return False
    if hasattr(one, "shape"):
        return one.shape == two.shape and bool((one == two).all())
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, torch.Generator):
        return torch.equal(one.get_state(), two.get_state())
    if hasattr(one, "__dict__") and not callable(one):
        return same(vars(one), vars(two))
    if isinstance(one, nn.Module):
        return same(vars(one), vars(two))
    return one == two if not callable(one) else True
