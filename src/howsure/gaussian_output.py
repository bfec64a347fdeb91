"""Networks that predict a mean and a variance themselves: which part of the output is which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from howsure.trees import TensorTree, has_values, select_output, tensors_of

# A key, an index, an attribute or a function of the output, as in `Uncertain(output=...)`.
Part = str | int | Callable[[Any], Any]

# Keys that leave no doubt about what they hold.
_MEANS = ("mean", "mu", "loc")
_SPREADS = {
    "var": ("var", "variance", "sigma2"),
    "log_var": ("log_var", "logvar", "log_variance"),
    "std": ("std", "stddev", "sigma", "scale"),
}


@dataclass(frozen=True)
class Gaussian:
    """The output of a network that predicts its own mean and variance.

    Examples:
        >>> class MeanAndVariance(nn.Module):
        ...     def forward(self, x):
        ...         return x.sum(1, keepdim=True), torch.full((len(x), 1), -2.0)
        ...
        >>> output = hs.Gaussian(log_var=1)
        >>> p = hs.Uncertain(MeanAndVariance().eval(), output=output)(torch.ones(1, 3))
        >>> p.data_var  # exp(-2); of a dict: hs.Gaussian("mu", std="sigma")
        tensor([[0.1353]])

    The network's variance is data variance; that of the sensor's noise, and what `fit` finds, is
    added to it. Give one of `var`, `log_var` and `std`. A `torch.distributions.Normal`, and a dict
    of two with the usual names, need no `Gaussian`.

    Attributes:
        mean: Where the mean is: a key, an index, an attribute or a function of the output.
        var: Where the variance is.
        log_var: Where the logarithm of the variance is.
        std: Where the standard deviation is.
        within: The part of the output that has all of these; `None` for the whole.
    """

    mean: Part = 0
    var: Part | None = None
    log_var: Part | None = None
    std: Part | None = None
    within: Part | None = None

    def __post_init__(self) -> None:
        """One clear sentence if not exactly one spread is named."""
        if sum(part is not None for part in (self.var, self.log_var, self.std)) != 1:
            raise ValueError("Give one of `var`, `log_var` and `std`: `Gaussian(log_var=1)`.")

    def __call__(self, output: Any) -> Any:
        """The mean."""
        return select_output(select_output(output, self.within), self.mean)

    def variance(self, output: Any) -> Any:
        """The variance that the network predicts, in the structure of the mean."""
        if self.log_var is not None:
            part, function = self.log_var, torch.exp
        elif self.std is not None:
            part, function = self.std, torch.square
        else:
            part, function = self.var, _check_sign
        tree = TensorTree(select_output(select_output(output, self.within), part))
        variance = tree.unflatten([function(tensor) for tensor in tree.tensors])
        shapes = [[tuple(t.shape) for t in tensors_of(part)] for part in (variance, self(output))]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"The network's variance has shape {shapes[0]} and its mean {shapes[1]}; name "
                "parts of the same shape in `output=hs.Gaussian(...)`."
            )
        return variance


def _check_sign(variance: Tensor) -> Tensor:
    if has_values(variance) and bool((variance < 0).any()):
        raise ValueError(
            "The network predicts a negative variance; if it is a logarithm, say "
            "`output=hs.Gaussian(log_var=...)`."
        )
    return variance


def recognize(output: Any, within: Part | None) -> Gaussian | None:
    """How to read an output that can only be a mean and a variance; `None` for any other."""
    inner = output.base_dist if isinstance(output, Independent) else output
    if isinstance(inner, Normal):
        return Gaussian("mean", var="variance", within=within)
    if isinstance(output, Distribution):
        raise TypeError(
            f"The model returns a {type(output).__name__}; select its parts, as in "
            '`output=hs.Gaussian("mean", var="variance")`.'
        )
    if not isinstance(output, Mapping) or len(output) != 2:
        return None
    mean = next((key for key in _MEANS if key in output), None)
    for kind, names in _SPREADS.items():
        spread = next((key for key in names if key in output), None)
        if mean is not None and spread is not None:
            return Gaussian(mean, **{kind: spread}, within=within)
    return None
