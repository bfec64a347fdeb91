"""The numerics below the moment rules: blocks, squared weights, normal tails, quadrature."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from howsure.moments.value import Moments
from howsure.private_torch import functorch
from howsure.trees import has_values, is_tracing

# Blocks: large tensors are computed piece by piece, such that temporaries stay in the cache.

# 120 kB of float32: a handful of temporaries fit into the cache, and calling an operation costs
# less than running it. Beyond 128 kB the C library may fetch every temporary from the system.
# Functions with larger temporaries ask for smaller blocks.
_BLOCK = 30720

Elementwise = Callable[..., tuple[Tensor, ...]]


def in_blocks(function: Elementwise, *inputs: Tensor, size: int = _BLOCK) -> tuple[Tensor, ...]:
    """`function(*inputs)` for an elementwise function of tensors of one shape.

    In a trace, and where derivatives may be asked for, the function is called as it is. Inside
    `vmap` the blocks are cut from the whole batch, not from what one sample sees. On ResNet-18 with
    a batch of 8 blocks bring 11 %, and without them quadrature would hold 60 values per element.
    """
    if torch.is_grad_enabled() or is_tracing():
        return function(*inputs)
    level = functorch.peek_interpreter_stack()
    if level is None or all(map(has_values, inputs)):
        return _blockwise(function, inputs, size)
    if level.key() != functorch.TransformType.Vmap:
        return function(*inputs)
    return _WholeBatch.apply(function, size, *inputs)  # pyright: ignore[reportReturnType]


def _blockwise(function: Elementwise, inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    count = inputs[0].numel()
    if not isinstance(count, int) or count <= size:
        return function(*inputs)
    # Axes from the slowest to the fastest, as they lie in memory: channels may be last.
    axes = range(inputs[0].dim())
    order = sorted(axes, key=lambda axis: max(x.stride(axis) for x in inputs), reverse=True)
    ordered = [tensor.permute(order) for tensor in inputs]
    shape = ordered[0].shape
    # Rows in front, to be cut without a copy: single elements, or as many of the last axes as fit
    # into a block together.
    whole = 0
    if not all(tensor.is_contiguous() for tensor in ordered):
        whole = max(n for n in axes if math.prod(shape[len(shape) - n :]) <= size)
    rows = [tensor.reshape(-1, *shape[len(shape) - whole :]) for tensor in ordered]
    step = max(1, size * len(rows[0]) // count)
    outputs: tuple[Tensor, ...] = ()
    for start in range(0, len(rows[0]), step):
        blocks = function(*(tensor[start : start + step] for tensor in rows))
        outputs = outputs or tuple(block.new_empty(rows[0].shape) for block in blocks)
        for output, block in zip(outputs, blocks, strict=True):
            output[start : start + step] = block
    back = sorted(axes, key=order.__getitem__)
    return tuple(output.reshape(shape).permute(back) for output in outputs)


class _WholeBatch(torch.autograd.Function):
    """`in_blocks` outside of `vmap`: the function of the stacked tensors."""

    @staticmethod
    def forward(function: Elementwise, size: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _blockwise(function, inputs, size)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: object) -> None:
        """Nothing to remember: this is used only where no derivatives are taken."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[int | None, ...],
        function: Elementwise,
        size: int,
        *inputs: Tensor,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = [
            tensor.movedim(dim, 0)
            if dim is not None
            else tensor.expand(info.batch_size, *tensor.shape)
            for tensor, dim in zip(inputs, in_dims[2:], strict=True)
        ]
        outputs = in_blocks(function, *stacked, size=size)
        return outputs, (0,) * len(outputs)


# Squared weights: the variance behind a linear layer. Squares are computed in every call, since to
# make sure that a weight is still the same takes as long.
_precision: ContextVar[torch.dtype | None] = ContextVar("variance_precision", default=None)


@contextlib.contextmanager
def layers_of_variances_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, `through_squares` computes in this dtype; `None` for that of the variance."""
    token = _precision.set(dtype)
    try:
        yield
    finally:
        _precision.reset(token)


def through_squares(op: Callable[[Tensor, Tensor], Tensor], var: Tensor, weight: Tensor) -> Tensor:
    """op(var, weight**2): a variance behind a linear layer, in the variance's dtype.

    Layers are where the time goes, so they alone run in the lower precision that was asked for.
    """
    dtype = _precision.get() or var.dtype
    return op(var.to(dtype), squared(weight, dtype)).to(var.dtype)


def squared(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight**2` in the variance's dtype."""
    # A half-precision weight, squared in its own precision, would be rounded twice.
    return weight.to(torch.promote_types(dtype, torch.float32)).square().to(dtype)


# The standard normal distribution. Notation: `a = mean / std`, t = |a|,
# `m(a) = a Phi(a) + phi(a) = E[max(N(a, 1), 0)]`, and R(a) its variance.
#
# The tail beyond a distance t >= 0 comes from Mills' ratio, a continued fraction:
# Phi(-t) / phi(t) = 1 / (t + 1 / (t + h)) with h = 2 / (t + 3 / (t + ...)) (Laplace 1805). One
# function h gives everything, without cancellation: with w = t + h,
# n = m(-t) = phi / (1 + t w), Phi(-t) = n w, R(-t) = n (h - n) and R(t) = 1 + n (h - n - 2 w).

_SQRT_2PI = math.sqrt(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)

# Beyond, a tail that is added to something is taken as constant: R(-8) = 2e-17 counts for nothing.
# Squares of smaller ones, and products with a small variance, would leave the normal numbers of
# float32, where some processors are thirty times slower.
_NEGLIGIBLE, _NEGLIGIBLE_IN_FLOAT64 = 8.0, 10.0
# Where one tail is subtracted from another, the further one has to vanish: phi(13) is below the
# smallest normal float32.
_VANISHING = 13.0
# Nothing depends on a ratio beyond: further than any of these.
FURTHEST = 14.0

# h = N(t) / D(t), fitted to 50-digit values on 0 <= t <= 12.5: relative error 6e-7 in float32.
_NUMERATOR = (0.0130778016, 0.124058139, 0.538475817, 1.25331356)
_DENOMINATOR = (0.00654350497, 0.0618258642, 0.292676577, 0.772080711, 1.0)


def pdf(z: Tensor) -> Tensor:
    """The density phi(z)."""
    return torch.exp(-0.5 * z.square()) / _SQRT_2PI


def cdf(z: Tensor) -> Tensor:
    """The distribution function Phi(z), accurate in both tails."""
    return 0.5 * torch.special.erfc(-z * _SQRT_HALF)


def roots(var: Tensor) -> tuple[Tensor, Tensor]:
    """The standard deviation, exactly 0 where the variance is, and one that can divide.

    Where gradients are needed the variance is kept above the smallest normal number before the
    root, whose slope at 0 is infinite, and what was added is taken out by a factor.
    """
    smallest = torch.finfo(var.dtype).tiny
    if not torch.is_grad_enabled():
        std = var.sqrt()
        return std, std.clamp(min=smallest**0.5)
    positive = var.clamp(min=smallest)
    divisor = positive.sqrt()
    return divisor * (var / positive), divisor


def ratio(mean: Tensor, std: Tensor) -> Tensor:
    """mean / std; where gradients are needed, without the overflow that makes them 0 * inf.

    Beyond `FURTHEST` nothing depends on it any more.
    """
    if torch.is_grad_enabled():
        mean = torch.maximum(torch.minimum(mean, FURTHEST * std), -FURTHEST * std)
    return mean / std


class Tail(NamedTuple):
    """The tail beyond t = |a|, in the letters of this file."""

    mean: Tensor
    """n, the mean of max(N(-t, 1), 0)."""
    rest: Tensor
    """h - n: times n it is R(-t)."""
    reach: Tensor
    """w = t + h: times n it is Phi(-t)."""
    step: Tensor
    """1 where a > 0, 0 elsewhere; at 0 both ways give the same."""


def unit_tail(
    a: Tensor,  # overwritten where no graph needs it
    furthest: float | None = None,
) -> Tail:
    """The tail beyond |a|, constant beyond `furthest`: where it counts for nothing in a sum."""
    if furthest is None:
        furthest = _NEGLIGIBLE if a.dtype == torch.float32 else _NEGLIGIBLE_IN_FLOAT64
    if not (torch.is_grad_enabled() or is_tracing()) and a.dtype == torch.float32:
        return _tail_in_place(a, furthest)
    t = a.abs().clamp(max=furthest)
    h = _h_by_fraction(t) if t.dtype == torch.float32 else _h_exactly(t)
    w = t + h
    n = torch.exp(-0.5 * t * t) / (_SQRT_2PI * (1 + t * w))
    return Tail(n, h - n, w, (a.detach() > 0).to(n.dtype))


def in_deviations(difference: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """A difference in units of its standard deviation, and that, from its variance.

    Two paddings of -inf are equally large; their difference is not a number.
    """
    difference = difference.to(spread.dtype)
    if not (torch.is_grad_enabled() or is_tracing()):
        std = spread.sqrt()
        return torch.nan_to_num_(difference / std, nan=0.0), std
    std, divisor = roots(spread)
    # Compilers make slow code of `isnan` and `nan_to_num`.
    difference = torch.where(difference == difference, difference, 0.0)
    return ratio(difference, divisor), std


def plus_product(value: Tensor, left: Tensor, right: Tensor, factor: int = 1) -> Tensor:
    """value + factor left right; a value of one's own is overwritten where no graph needs it."""
    if torch.is_grad_enabled() or is_tracing():  # `vmap` has no rule for `addcmul_` (torch 2.13).
        product = left * right
        return value + product if factor == 1 else value + factor * product
    return value.addcmul_(left, right, value=factor)


def _h_by_fraction(t: Tensor) -> Tensor:
    """h as a quotient of polynomials: torch's `erfcx` runs one number at a time."""
    top, bottom = t * _NUMERATOR[0] + _NUMERATOR[1], t * _DENOMINATOR[0] + _DENOMINATOR[1]
    for coefficient in _NUMERATOR[2:]:
        top = top * t + coefficient
    for coefficient in _DENOMINATOR[2:]:
        bottom = bottom * t + coefficient
    return top / bottom


def _h_exactly(t: Tensor) -> Tensor:
    """h by the scaled complementary error function: r = Phi(-t) / phi(t), e = 1 - t r."""
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(t * _SQRT_HALF)
    e = (1 - t * mills).clamp(min=0)
    return (mills - t * e).clamp(min=0) / e


# The same numbers as tensors: from a Python number torch makes one in each call, which takes
# longer than the sum itself.
_TOP = tuple(torch.tensor(c, dtype=torch.float32) for c in _NUMERATOR)
_BOTTOM = tuple(torch.tensor(c, dtype=torch.float32) for c in _DENOMINATOR)
_ONE = torch.tensor(1.0, dtype=torch.float32)
# phi(t) = 2**(_LEVEL + _FALL t**2): torch's `exp2` takes a quarter of the time of its `exp`.
_LEVEL, _FALL = torch.tensor(-math.log2(_SQRT_2PI), dtype=torch.float32), -0.5 / math.log(2)


def _tail_in_place(a: Tensor, furthest: float) -> Tail:
    """The tail with fewer temporaries: 19 % of ADF on DroNet, 9 % on ResNet-18."""
    step = torch.sign(a).clamp_(min=0)
    t = a.abs_().clamp_(max=furthest)
    h = _polynomial(t, _TOP).div_(_polynomial(t, _BOTTOM))
    w = t + h
    n = torch.addcmul(_LEVEL, t, t, value=_FALL).exp2_().div_(torch.addcmul(_ONE, t, w))
    return Tail(n, h.sub_(n), w, step)


def _polynomial(t: Tensor, coefficients: tuple[Tensor, ...]) -> Tensor:
    value = torch.addcmul(coefficients[1], t, coefficients[0])
    for coefficient in coefficients[2:]:
        value = torch.addcmul(coefficient, value, t)
    return value


class Rectified(NamedTuple):
    """Moments of max(N(a, 1), 0), of max(N(-a, 1), 0), and what they share."""

    mean: Tensor
    """m(a)."""
    mirrored_mean: Tensor
    """m(-a)."""
    var: Tensor
    """R(a) = Phi(a) - m(a) m(-a)."""
    probability: Tensor
    """Phi(a)."""


def rectify(a: Tensor) -> Rectified:
    """Moments of max(N(a, 1), 0) and of its mirror image; far tails vanish."""
    n, rest, reach, _ = unit_tail(a.clone(), _VANISHING)
    lower, upper = n * rest, 1 + n * (rest - 2 * reach)
    positive, beyond = a >= 0, n * reach
    return Rectified(
        mean=n + a.clamp(min=0),
        mirrored_mean=n + (-a).clamp(min=0),
        var=torch.where(positive, upper, lower),
        probability=torch.where(positive, 1 - beyond, beyond),
    )


# Quadrature: moments of any scalar function of a Gaussian.

# Gauss-Legendre quadrature, 20 nodes on each piece. Pieces meet at z0 = -a, where x = mean + std z
# crosses 0 and activations curve most: a kink at 0 costs no accuracy. In the variable t with
# z = z0 + d sinh(t), nodes crowd around z0 as soon as the Gaussian is wider than that curve
# (d = 6 / std). The longer side ends its crowd after 3 deviations, or the bulk of a Gaussian far
# from z0 would be left without nodes.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_REACH = 8.5
_CROWD = 3.0
_CURVE_WIDTH = 6.0
# Beside wider Gaussians a curve is a kink.
_WIDEST = 1000.0

# Gauss-Hermite quadrature, for Gaussians that are narrow beside the curves of the function.
# Measured on sigmoid, tanh, silu, mish, gelu up to a std of 0.2: error of the standard deviation
# below 3e-6, which is float32's own. Which nodes a block takes must not show in its results.
_FEW_NODES, _FEW_WEIGHTS = np.polynomial.hermite_e.hermegauss(8)
NARROW = 0.2


# Gauss-Legendre nodes for each piece between kinks, over 8 standard deviations in all.
_PIECE_NODES, _PIECE_WEIGHTS = np.polynomial.legendre.leggauss(24)
_PIECES_REACH = 8.0

Deviation = Callable[[Tensor, Tensor], Tensor]


def expectation(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    var: Tensor,
    *,
    analytic: bool = False,
    deviation: Deviation | None = None,
    kinks: Sequence[float] = (),
) -> Moments:
    """Mean and variance of `function(x)`, elementwise, for x ~ N(mean, var).

    Centered quadrature: mean = sum w f, var = sum w (f - mean)**2, which cannot be negative.
    Standard deviations below `1e-3 max(1, |mean|)` are widened to that before evaluation, and
    the result is scaled back, since f(mean + std z) would drown in rounding. Zero variance
    therefore gives f(mean) and 0 exactly. Measured error of the standard deviation: below 1e-4
    for activations of unit scale at any variance, also with a kink at 0.

    An analytic function, nowhere curved more sharply than `tanh`, takes few nodes in float32
    where all standard deviations of a block are small, as with most sensors.

    A kink must not be smeared by widening: a function that has one comes with
    `deviation(mean, step)`, f(mean + step) - f(mean) without loss of digits, and is not widened.
    Kinks elsewhere than at 0 are named in `kinks`: then every piece between them has its nodes.
    """

    def quadrature(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        if deviation is None:
            resolution = 1e-3 if var.dtype == torch.float32 else 1e-5
            # The upper limit lets a mean of -inf through, as masked attention scores have.
            least = resolution * mean.detach().abs().clamp(1.0, 1e15)
            widened = torch.maximum(var, least.square())
        else:
            widened = var.clamp(min=torch.finfo(var.dtype).tiny)
        std = widened.sqrt()
        # Where a std is widened, the mean is far from where it curves: only the true one counts.
        if analytic and std.dtype == torch.float32 and are_narrow(var.detach().sqrt()):
            z, weight = _columns(std, _FEW_NODES, _FEW_WEIGHTS / _FEW_WEIGHTS.sum())
        elif kinks:
            z, weight = _nodes_between(kinks, mean.detach(), std.detach())
        else:
            z, weight = _nodes_around_zero(mean.detach(), std.detach())
        # Measured from f(mean): deviations are small where the function is flat or the noise is.
        center, step, scale = function(mean), std * z, var / widened
        value = deviation(mean, step) if deviation else function(mean + step) - center
        shift = (weight * value).sum(0)
        spread = (weight * (value - shift).square()).sum(0)
        return center + shift * scale, spread * scale

    return Moments(*in_blocks(quadrature, mean, var, size=4096))


def _columns(like: Tensor, *arrays: np.ndarray) -> list[Tensor]:
    """The same numbers for all elements, in front of their axes."""
    shape = (-1, *[1] * like.dim())
    return [torch.as_tensor(a, dtype=like.dtype, device=like.device).reshape(shape) for a in arrays]


def _nodes_around_zero(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Quadrature nodes z and weights for N(0, 1), one set per element, in front."""
    zero = (-mean / std).clamp(-_REACH, _REACH)
    width = _CURVE_WIDTH / std.clamp(max=_WIDEST)
    node, share = _columns(mean, (_NODES + 1) / 2, _WEIGHTS)
    longer = torch.where(zero > 0, -1.0, 1.0).to(mean)  # the direction of the longer side
    short, crowd = torch.asinh((_REACH - zero.abs()) / width), torch.asinh(_CROWD / width)
    t = torch.cat([-short * node, crowd * node])
    stretched = torch.sinh(t)
    slope = width * torch.cat([short * share, crowd * share]) * torch.sqrt(1 + stretched.square())
    rest = _REACH + zero.abs() - _CROWD
    z = zero + longer * torch.cat([width * stretched, _CROWD + rest * node])
    weight = torch.cat([slope, rest * share]) * torch.exp(-0.5 * z.square())
    return z, weight / weight.sum(0)


def _nodes_between(kinks: Sequence[float], mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Quadrature nodes in pieces that end at the kinks: exact to 1e-6 for quadratic pieces."""
    inner = [((kink - mean) / std).clamp(-_PIECES_REACH, _PIECES_REACH) for kink in kinks]
    ends = [torch.full_like(mean, end) for end in (-_PIECES_REACH, _PIECES_REACH)]
    node, share = _columns(mean, _PIECE_NODES, _PIECE_WEIGHTS)
    pieces = list(itertools.pairwise([ends[0], *inner, ends[1]]))
    z = torch.cat([(low + high) / 2 + (high - low) / 2 * node for low, high in pieces])
    weight = torch.cat([(high - low) * share for low, high in pieces])
    weight = weight * torch.exp(-0.5 * z.square())
    return z, weight / weight.sum(0)


# Where tensors have values, it is seen whether Gaussians are narrow; a trace has to assume it, and
# to tell afterwards whether it was so.
_widths: ContextVar[list[Tensor] | None] = ContextVar("widths", default=None)


@contextlib.contextmanager
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
    # The values that `vmap` and derivatives work on, of all samples.
    while functorch.is_functorch_wrapped_tensor(std):
        std = functorch.get_unwrapped(std)
    noted, is_seen = _widths.get(), has_values(std)
    if not is_seen and noted is None:
        return False
    if std.numel() == 0:
        return True
    if noted is None:
        return bool((std <= NARROW).all())
    largest = std.max()
    noted.append(largest)
    return bool(largest <= NARROW) if is_seen else True
