"""Variance and standard deviation of elements along dimensions: quadratic forms of Gaussians."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from howsure.moments.rule import APPROXIMATE, EXACT, Draw, Sample, rule_of
from howsure.moments.rules.linear import mean as mean_rule
from howsure.moments.rules.vector_norm import divisible, root_of_squares
from howsure.moments.value import Moments


def _dimensions(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(3, 6), 1)
    yield Sample(draw.moments(2, 3, 5), (1, 2), correction=0, keepdim=True)
    yield Sample(draw.moments(3, 4), unbiased=False)
    yield Sample(draw.moments(2, 7), -1, False, True)


def _arguments(
    dim: int | Sequence[int] | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[tuple[int, ...] | None, float, bool]:
    """Dimensions, correction and `keepdim` of torch's three signatures of `var`."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ()) or None
    return axes, correction, keepdim


def _quadratic_form(
    input: Moments, axes: tuple[int, ...] | None, correction: float, keepdim: bool
) -> Moments:
    """Moments of sum (x - mean(x))**2 / (n - correction), in the variance's dtype.

    With c = m - mean(m): E = sum c**2 + (1 - 1/n) sum v, Var = 4 sum c**2 v plus
    2 tr((M V)**2) = 2 [(1 - 2/n) sum v**2 + (sum v)**2 / n**2] for the centring matrix M.
    """
    m, v = input.mean.to(input.var.dtype), input.var
    axes = tuple(range(m.dim())) if axes is None else axes

    def total(x: Tensor) -> Tensor:
        return x.sum(axes, keepdim=keepdim)

    centre = m.mean(axes, keepdim=True)
    count = m.numel() // max(centre.numel(), 1)
    power = (m - centre).square()
    scale = 1 / max(count - correction, 0) if count > correction else float("nan")
    level = (total(power) + (1 - 1 / count) * total(v)) * scale
    first_order = 4 * total(power * v) * scale**2
    # sum v**2 >= (sum v)**2 / n, so this is not negative for n >= 1; n = 1 needs the clamp.
    trace = (1 - 2 / count) * total(v.square()) + total(v).square() / count**2
    return Moments(level, first_order + 2 * trace.clamp(min=0) * scale**2)


@rule_of("var", inplace=False, samples=_dimensions)
def var(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """E = [sum c**2 + (1 - 1/n) sum v] / k, Var = [4 sum c**2 v + 2 tr((M V)**2)] / k**2.

    c = m - mean(m), k = n - correction, M the centring matrix.

    Assumes: independent elements; exact.

    Source: variance of a quadratic form of Gaussians, 2 tr(MVMV) + 4 m'MVMm.
    """
    form = _quadratic_form(input, *_arguments(*args, **kwargs))
    return Moments(form.mean.to(input.mean.dtype), form.var)


@rule_of("std", inplace=False, fidelity=APPROXIMATE, samples=_dimensions, error=0.05)
def std(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Moments of the root of `var`, whose distribution is matched by a gamma distribution.

    Assumes: independent elements. Exact for equal means and variances.

    Source: Nakagami 1960; `var`.
    """
    axes, correction, keepdim = _arguments(*args, **kwargs)
    whole = _quadratic_form(input, axes, correction, True).mean
    unit = divisible(whole)
    # In units of the whole: squares of small numbers do not underflow.
    m = input.mean.to(unit.dtype)
    axes = tuple(range(m.dim())) if axes is None else axes
    scaled = Moments((m - m.mean(axes, keepdim=True)) / unit.sqrt(), input.var / unit)
    spread = _quadratic_form(scaled, axes, correction, keepdim).var
    level = whole if keepdim else whole.squeeze(axes)
    return root_of_squares(level, spread, input.mean.dtype)


def _with_mean(name: str, spread: Callable[..., Moments], **options: Any) -> None:
    @rule_of(name, inplace=False, samples=_dimensions, **options)
    def both(input: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, Moments]:
        """The sample variance (or its root) and the mean of the same elements.

        Assumes: independent elements.

        Source: `var`, `std`, `mean`.
        """
        axes, _, keepdim = _arguments(*args, **kwargs)
        return spread(input, *args, **kwargs), mean_rule(input, axes, keepdim)


_with_mean("var_mean", var, fidelity=EXACT)
_with_mean("std_mean", std, fidelity=APPROXIMATE, error=0.05)
