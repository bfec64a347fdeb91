"""The line var = gain * light + read_var through the pixels of repeated frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# A pixel whose variance is off by more standard deviations is not off by chance (6e-5).
_OUTLIER = 4.0
_GROUPS = 100  # for the first guess: things that fill 1 % of the image count
_ITERATIONS = 50


@dataclass(frozen=True, eq=False)
class Pixels:
    """What repeated frames say about the pixels, in float64.

    Attributes:
        light: Mean above the black level, not negative.
        var: Unbiased estimate of the variance.
        frames: How many frames the mean is over.
        spread: Relative variance of `var` for Gaussian noise.
    """

    light: Tensor  # (n,)
    var: Tensor  # (n,)
    frames: int
    spread: float

    @property
    def design(self) -> Tensor:  # (n, 2)
        """What the parameters (gain, read_var) are multiplied with."""
        return torch.stack([self.light, torch.ones_like(self.light)], 1)


class Line(NamedTuple):
    """Fitted parameters (gain, read_var), their standard errors, and the share of outliers."""

    params: Tensor  # (2,)
    errors: Tensor  # (2,)
    rejected: Tensor  # ()


def fit_line(pixels: Pixels) -> Line:
    """The line by least squares with weights 1 / fitted**2, outliers left out.

    Var[var] is proportional to the square of the variance, hence the weights; they and the outliers
    follow from the line, so that both are iterated. The errors are the sandwich estimate (White
    1980), which does not assume Gaussian noise.
    """
    params = _start(pixels)
    for _ in range(_ITERATIONS):
        before = params
        possible = params.clamp(min=0)  # a step may overshoot; weights need a variance
        params = _solve(pixels, _weights(pixels, possible), possible)
        if torch.allclose(params, before, rtol=1e-6, atol=0):
            break
    weights = _weights(pixels, params.clamp(min=0))
    rejected = (weights == 0).double().mean()
    return Line(params, _errors(pixels, weights, params), rejected)


def fit_one(pixels: Pixels, line: Line, index: int) -> Tensor:
    """The parameters if only that at `index` is not 0."""
    weights, column = _weights(pixels, line.params.clamp(min=0)), pixels.design[:, index]
    params = torch.zeros_like(line.params)
    params[index] = (weights * column * pixels.var).sum() / (weights * column.square()).sum()
    return params


def _start(pixels: Pixels) -> Tensor:  # (2,)
    """A line through the medians of groups of like intensity, robust to outliers."""
    count = len(pixels.light)
    groups = pixels.light.argsort().tensor_split(min(_GROUPS, max(2, count // 10)))
    x = torch.stack([pixels.light[group].mean() for group in groups])
    y = torch.stack([pixels.var[group].median() for group in groups])
    y = y / (1 - pixels.spread / 9) ** 3  # chi square: median over mean (Wilson & Hilferty 1931)
    scale = (y + y.mean()).unsqueeze(1)
    design = torch.stack([x, torch.ones_like(x)], 1)
    return torch.linalg.lstsq(design / scale, y.unsqueeze(1) / scale).solution.squeeze(1)


def _fitted(pixels: Pixels, params: Tensor) -> Tensor:  # (n,)
    """Variances on the line; a thousandth of their mean bounds the weight of dark pixels."""
    fitted = pixels.design @ params
    return fitted.clamp(min=1e-3 * float(fitted.mean()))


def _weights(pixels: Pixels, params: Tensor) -> Tensor:  # (n,)
    """1 / fitted**2, and 0 for outliers."""
    fitted, cube_var = _fitted(pixels, params), pixels.spread / 9
    # The cube root of a chi square is almost normal (Wilson & Hilferty 1931), also for 1 degree.
    score = ((pixels.var / fitted) ** (1 / 3) - (1 - cube_var)) / cube_var**0.5
    return (score.abs() < _OUTLIER) / fitted.square()


def _solve(pixels: Pixels, weights: Tensor, params: Tensor) -> Tensor:  # (2,)
    """The weighted normal equations, free of the bias from errors in the means.

    `light` has the error e, Var[e] = var / T, which flattens the line; it also enters the weights,
    and goes along with `var` by the third cumulant gain**2 * light of the photons. To first order
    in 1 / T the normal equations are off by the two sums of `bias`, where share = read_var / var.
    They vanish for pure photon noise.
    """
    gain, read_var = params
    share = read_var / _fitted(pixels, params)
    bias = torch.stack([read_var * (1 - 2 * share), 2 * gain * share]) * gain / pixels.frames
    weighted = pixels.design * weights.unsqueeze(1)
    return torch.linalg.solve(
        weighted.T @ pixels.design, weighted.T @ pixels.var - (bias * weights).sum(1)
    )


def _errors(pixels: Pixels, weights: Tensor, params: Tensor) -> Tensor:  # (2,)
    weighted = pixels.design * weights.unsqueeze(1)
    scores = weighted * (pixels.var - pixels.design @ params).unsqueeze(1)
    inverse = torch.linalg.inv(weighted.T @ pixels.design)
    return (inverse @ (scores.T @ scores) @ inverse).diagonal().sqrt()
