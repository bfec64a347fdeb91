"""Normalization, lengths and sample variances: what divides by, or returns, a size of the data.

Layer, group, instance and RMS norms divide by s, where s**2 is an expected square: it contains the
variance of the noise, without which the result would be up to twice too wide. The Jacobian is that
of the division, with s at its expected size: d y_i / d x_j = (delta_ij - share (c + y_i y_j)) / s,
where c = 1 if the mean is subtracted and 0 if not, and share is one over the number of elements
that s**2 averages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite, respell
from howsure.moments.rule import APPROXIMATE, Kind, Sample, constant, normal, positive, rule, sample
from howsure.moments.rules.closed_forms import absolute
from howsure.moments.value import Moments, mean_of

_aten = torch.ops.aten
Axes = tuple[int, ...]


# Norm layers.
def _divide(
    centered: Tensor, var: Tensor, scale: Tensor, axes: Axes, share: float, shifted: bool
) -> Moments:
    """Moments of `centered / scale`, both functions of the same Gaussians along `axes`.

    Var_i = sum_j (delta_ij - share (c + y_i y_j))**2 v_j / scale**2, multiplied out.
    """
    y = centered / scale
    diagonal = share * y.square()
    coupled = diagonal * share * (y.square() * var).sum(axes, keepdim=True)
    if shifted:
        diagonal = diagonal + share
        sums = var.sum(axes, keepdim=True) + 2 * y * (y * var).sum(axes, keepdim=True)
        coupled = coupled + share * share * sums
    # The square of a sum, multiplied out: rounding may leave a small negative number.
    total = (var * (1 - 2 * diagonal) + coupled).clamp(min=0)
    return Moments(y, total / scale.square())


def _standardize(input: Moments, axes: Axes, eps: float) -> Moments:
    """Moments of (x - mean(x)) / s over `axes`; s**2 is the expected sample variance."""
    mean, var = input.mean.to(input.var.dtype), input.var
    size = math.prod(mean.shape[axis] for axis in axes)
    centered = mean - mean.mean(axes, keepdim=True)
    noise = (1 - 1 / size) * var.mean(axes, keepdim=True)
    scale = (centered.square().mean(axes, keepdim=True) + noise + eps).sqrt()
    return _divide(centered, var, scale, axes, 1 / size, True)


def _affine(
    normal: Moments, weight: Tensor | None, bias: Tensor | None, like: Moments, trailing: int = 0
) -> Moments:
    """`weight y + bias` in the input's dtype; a weight per channel has `trailing` axes behind."""
    mean, var = normal.mean, normal.var
    ones = (1,) * trailing
    if weight is not None:
        gain = weight.to(var.dtype).reshape(weight.shape + ones)
        mean, var = mean * gain, var * gain.square()
    if bias is not None:
        mean = mean + bias.to(var.dtype).reshape(bias.shape + ones)
    return Moments(mean.to(like.mean.dtype), var)


_NORM: dict[str, Any] = {"fidelity": APPROXIMATE, "error": 0.1}


@rule(
    F.layer_norm,
    "layer_norm",
    samples=[
        Sample(normal(3, 16, std=0.3), (16,), constant(16), constant(16)),
        Sample(normal(2, 3, 4, 6, std=0.5), [4, 6], eps=1e-3),
        Sample(normal(2, 32, mean=2.0), (32,), weight=constant(32)),
    ],
    **_NORM,
)
def layer_norm(
    input: Moments,  # (*batch, *normalized_shape)
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,  # normalized_shape
    bias: Tensor | None = None,  # normalized_shape
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Moments:
    """s**2 = var(m) + (1 - 1/n) mean(v) + eps, E = (m - mean(m)) / s, Var = J**2 v.

    J_ij = (delta_ij - (1 + y_i y_j) / n) / s; then weight and bias.

    Assumes: independent elements, and a sample variance near its expectation: the std is within
    1 % for 32 elements or more, and 7 % too small for 8 with as much noise as signal.

    Source: our own; docs/accuracy.md compares it with the usual rule, which leaves the noise out.
    """
    normal = _standardize(input, tuple(range(-len(normalized_shape), 0)), eps)
    return _affine(normal, weight, bias, input)


@rule(
    F.group_norm,
    "group_norm",
    samples=[
        Sample(normal(2, 4, 3, 3, std=0.4), 2, constant(4), constant(4)),
        Sample(normal(2, 4, 3, 3, std=0.4), num_groups=1, eps=1e-3),
        Sample(normal(2, 24, std=0.4), 2),
    ],
    **_NORM,
)
def group_norm(
    input: Moments,  # (batch, channels, *)
    num_groups: int,
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Moments:
    """As `layer_norm` over each group of channels."""
    shape = input.mean.shape
    mean, var = (x.reshape(shape[0], num_groups, -1) for x in (input.mean, input.var))
    groups = _standardize(Moments(mean, var), (-1,), eps)
    normal = Moments(groups.mean.reshape(shape), groups.var.reshape(shape))
    return _affine(normal, weight, bias, input, trailing=len(shape) - 2)


_IMAGE, _STATISTICS = normal(2, 3, 4, 4, std=0.4), (constant(3), positive(3))


@rule(
    F.instance_norm,
    samples=[
        Sample(_IMAGE, weight=constant(3), bias=constant(3)),
        Sample(_IMAGE, *_STATISTICS, use_input_stats=False),
        Sample(normal(2, 3, 16, std=0.4), eps=1e-3),
    ],
    **_NORM,
)
def instance_norm(
    input: Moments,  # (batch, channels, *size)
    running_mean: Tensor | None = None,  # (channels,)
    running_var: Tensor | None = None,  # (channels,)
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """As `layer_norm` over each channel; as `batch_norm` with running statistics."""
    if not use_input_stats:
        statistics = running_mean, running_var
        return batch_norm(input, *statistics, weight, bias, False, momentum, eps)
    axes = tuple(range(2, input.mean.dim()))
    normal = _standardize(input, axes, eps)
    return _affine(normal, weight, bias, input, trailing=len(axes))


@rule(
    F.batch_norm,
    kind=Kind.LINEAR_MAP,
    samples=[
        Sample(normal(2, 3, 4, 4), *_STATISTICS, weight=constant(3), bias=constant(3)),
        Sample(normal(4, 3), *_STATISTICS, eps=1e-3),
        Sample(normal(2, 3, 5), *_STATISTICS, constant(3), None, False, 0.1, 1e-5),
    ],
)
def batch_norm(
    input: Moments,  # (batch, channels, *)
    running_mean: Tensor | None,  # (channels,)
    running_var: Tensor | None,  # (channels,)
    weight: Tensor | None = None,  # (channels,)
    bias: Tensor | None = None,  # (channels,)
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """var = weight**2 / (running_var + eps) * var: an affine map per channel.

    The authors' released code leaves out 1 / (running_var + eps).

    Assumes: nothing beyond fixed running statistics; exact.

    Source: Loquercio et al. 2020, Eq. 5 (linear layers).
    """
    if training or running_mean is None or running_var is None:
        raise NoRuleError(
            "Batch norm in train mode mixes the statistics of the batch into every element. Call "
            "`model.eval()`; a layer with `track_running_stats=False` needs running statistics."
        )
    dtype, shape = input.var.dtype, (-1, *[1] * (input.mean.dim() - 2))
    scale = torch.rsqrt(running_var.to(dtype) + eps)
    scale = scale if weight is None else scale * weight.to(dtype)
    if input.mean.dtype != dtype:  # half precision: torch's own keeps more digits
        settings = (running_mean, running_var, weight, bias, False, momentum, eps)
        mean = F.batch_norm(input.mean, *settings)
    else:
        center = running_mean.to(dtype)
        shift = -center * scale
        if bias is not None:
            shift = bias.to(dtype).addcmul(center, scale, value=-1)
        mean = (input.mean * scale.reshape(shape)).add_(shift.reshape(shape))
    return Moments(mean, input.var * scale.square().reshape(shape))


def _statistics_first(
    input: Moments,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
    *,
    use_input_stats: bool | None = None,
) -> tuple[Any, ...]:
    """The arguments in Python's order; an instance norm calls `training` `use_input_stats`."""
    flag = use_input_stats if training is None else training
    return input, running_mean, running_var, weight, bias, flag, momentum, eps


_AFFINE = constant(3), constant(3)
respell(
    batch_norm,
    torch.batch_norm,
    _aten.batch_norm.default,
    name="batch_norm (aten order)",
    samples=sample((2, 3, 4), *_AFFINE, *_STATISTICS, False, 0.1, 1e-5, False),
    arguments=_statistics_first,
)
respell(
    instance_norm,
    torch.instance_norm,
    _aten.instance_norm.default,
    name="instance_norm (aten order)",
    samples=[Sample(_IMAGE, *_AFFINE, None, None, True, 0.1, 1e-5, False)],
    arguments=_statistics_first,
)


@rule(
    _aten._native_batch_norm_legit_no_training.default,
    name="native_batch_norm",
    samples=sample((2, 3, 4), *_AFFINE, *_STATISTICS, 0.1, 1e-5),
)
def native_batch_norm(
    input: Moments,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Moments, Tensor, Tensor]:
    """As `batch_norm`, with two empty tensors: what exported programs without writes contain."""
    out = batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    empty = input.mean.new_empty(0)
    return out, empty, empty.clone()


@rule(
    "rms_norm",
    samples=[
        Sample(normal(3, 16, std=0.3), (16,), constant(16)),
        Sample(normal(2, 3, 4, 6, std=0.5), [4, 6], eps=1e-3),
        Sample(normal(2, 32, mean=2.0), (32,)),
    ],
    **_NORM,
)
def rms_norm(
    input: Moments,  # (*batch, *normalized_shape)
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,  # normalized_shape
    eps: float | None = None,
) -> Moments:
    """s**2 = mean(m**2 + v) + eps, E = m / s, Var = J**2 v, J_ij = (delta_ij - y_i y_j / n) / s.

    Assumes: see `layer_norm`.

    Source: `layer_norm`, without the subtraction of the mean.
    """
    mean, var = input.mean.to(input.var.dtype), input.var
    axes = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.mean.dtype).eps if eps is None else eps
    scale = ((mean.square() + var).mean(axes, keepdim=True) + eps).sqrt()
    normal = _divide(mean, var, scale, axes, 1 / math.prod(normalized_shape), False)
    return _affine(normal, weight, None, input)


@rule(
    F.normalize,
    fidelity=APPROXIMATE,
    samples=[
        Sample(normal(3, 16, std=0.3)),
        Sample(normal(2, 3, 24, std=0.5), dim=-1),
        Sample(normal(2, 12, 2, mean=2.0, std=0.5), 2.0, 1),
    ],
    error=0.1,
)
def normalize(
    input: Moments,
    p: float = 2.0,
    dim: int | Sequence[int] = 1,
    eps: float = 1e-12,
    out: object = None,
) -> Moments:
    """q = sum(m**2 + v), E = m / sqrt(q), Var = J**2 v, J_ij = (delta_ij - y_i y_j) / sqrt(q).

    Assumes: see `layer_norm`; unit length in the 2-norm.

    Source: `layer_norm`.
    """
    if p != 2:
        raise NoRuleError(
            f"`normalize` has a rule for p = 2 and was called with p = {p}. Divide by "
            "`x.abs().sum(dim, keepdim=True)` or the like in the model."
        )
    mean, var = input.mean.to(input.var.dtype), input.var
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    length = (mean.square() + var).sum(axes, keepdim=True)
    is_short = length <= eps * eps
    # Below eps torch divides by eps, a constant, and the length is left out of the derivative.
    scale = torch.where(is_short, torch.ones_like(length), length).sqrt()
    unit = _divide(mean, var, scale, axes, 1.0, False)
    short = Moments(mean / eps, var / eps**2) if eps else unit
    return Moments(
        torch.where(is_short, short.mean, unit.mean).to(input.mean.dtype),
        torch.where(is_short, short.var, unit.var),
    )


@rule(
    F.local_response_norm,
    fidelity=APPROXIMATE,
    samples=[
        Sample(normal(2, 6, 3, 3, std=0.5), 3),
        Sample(normal(2, 6, 3, 3, std=0.5), 2, 0.5, 0.75, 2.0),
        Sample(normal(2, 6, 3, 3, std=0.5), size=5, alpha=0.1),
    ],
    error=0.15,
)
def local_response_norm(
    input: Moments,  # (batch, channels, *)
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> Moments:
    """d = k + alpha / size sum_window (m**2 + v), E = m d**-beta, Var = J**2 v.

    J_ij = d_i**-beta (delta_ij - t_i m_i m_j) with t = 2 alpha beta / (size d).

    Assumes: independent elements, and a sum of squares near its expectation.

    Source: our own, as `layer_norm`.
    """

    def over_channels(x: Tensor) -> Tensor:
        """The sum over the `size` channels around each channel, as torch counts them."""
        flat = x.reshape(x.shape[0], 1, x.shape[1], -1)
        padded = F.pad(flat, (0, 0, size // 2, (size - 1) // 2))
        return F.avg_pool2d(padded, (size, 1), stride=1, divisor_override=1).reshape(x.shape)

    mean, var = input.mean.to(input.var.dtype), input.var
    power = mean.square()
    level = k + alpha * over_channels(power + var) / size
    pull = 2 * alpha * beta / (size * level)
    # The square of a sum, multiplied out: rounding may leave a small negative number.
    spread = var * (1 - 2 * pull * power)
    spread = (spread + pull.square() * power * over_channels(power * var)).clamp(min=0)
    out = mean * level.pow(-beta)
    return Moments(out.to(input.mean.dtype), spread * level.pow(-2 * beta))


# Lengths: roots of sums of squares.
def _root_of_squares(mean: Tensor, relative_var: Tensor, dtype: torch.dtype) -> Moments:
    """Moments of sqrt(Q) for a sum of squares Q, taken as gamma distributed.

    With u = Var[Q] / E[Q]**2 and k = 1/u: E = sqrt(E[Q]) g, Var = E[Q] (1 - g**2), where
    g = Gamma(k + 1/2) / (sqrt(k) Gamma(k)) (Nakagami 1960). Exact for a central chi-square; right
    to first order in the noise for any mean.
    """
    loss = _nakagami_loss(relative_var)
    root = torch.where(_vanishes(mean), torch.zeros_like(mean), _divisible(mean).sqrt())
    return Moments((root * (1 - loss).sqrt()).to(dtype), root.square() * loss)


def _vanishes(mean: Tensor) -> Tensor:
    """Where a sum of squares is 0, or so small that a quotient by it has no digits."""
    return mean < torch.finfo(mean.dtype).tiny


def _divisible(mean: Tensor) -> Tensor:
    """A sum of squares to divide by: 1 where it is 0."""
    return torch.where(_vanishes(mean), torch.ones_like(mean), mean)


def _nakagami_loss(u: Tensor) -> Tensor:
    """1 - g(1/u)**2 for 0 <= u <= 2, without cancellation.

    A series in u up to 1/8 (error 1e-7); beyond, the recurrence of Gamma lifts k by 8 first.
    """

    def series(u: Tensor) -> Tensor:
        return u * (1 / 4 - u * (1 / 32 + u * (1 / 128 - u * (5 / 2048 + u * (23 / 8192)))))

    k = 1 / u.clamp(min=0.125)
    ratio = torch.ones_like(k)
    for i in range(8):
        ratio = ratio * (k + i) / (k + i + 0.5)
    lifted = (k + 8) * (1 - series(1 / (k + 8)))
    return torch.where(u < 0.125, series(u.clamp(max=0.125)), 1 - ratio.square() * lifted / k)


_LENGTH: dict[str, Any] = {"fidelity": APPROXIMATE, "error": 0.05}


@rule(
    torch.linalg.vector_norm,
    _aten.linalg_vector_norm.default,
    name="vector_norm",
    samples=[
        Sample(normal(3, 6, std=0.5)),
        Sample(normal(3, 6), 2, 1),
        Sample(normal(2, 3, 5, std=0.3), 2, dim=(1, 2), keepdim=True),
        Sample(normal(3, 4), 1, -1),
    ],
    **_LENGTH,
)
def vector_norm(
    input: Moments,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Moments:
    """The 2-norm as the root of a gamma variable; the 1-norm as a sum of `abs`.

    Assumes: independent elements. Exact for the 1-norm, and for the 2-norm of means 0 and equal
    variances.

    Source: Nakagami 1960; `abs`.
    """
    dtype = dtype or input.mean.dtype
    m, v = input.mean.to(input.var.dtype), input.var
    axes = tuple(range(m.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if ord == 2:
        level = (m.square() + v).sum(axes, keepdim=True)
        # Shares of the whole: their squares do not underflow.
        power, noise = m.square() / _divisible(level), v / _divisible(level)
        relative = (4 * power * noise + 2 * noise.square()).sum(axes, keepdim=keepdim)
        return _root_of_squares(level if keepdim else level.squeeze(axes), relative, dtype)
    if ord == 1:
        size = absolute(Moments(m, v))
        total = size.mean.sum(axes, keepdim=keepdim)
        return Moments(total.to(dtype), size.var.sum(axes, keepdim=keepdim))
    raise NoRuleError(
        f"There is no rule for the {ord}-norm. Use the 1-norm or the 2-norm in the model, or write "
        "it with `abs`, `pow`, `sum` and `amax`."
    )


@rule(
    "norm",
    "frobenius_norm",
    torch.linalg.norm,
    _aten.linalg_norm.default,
    samples=[
        Sample(normal(3, 6, std=0.5)),
        Sample(normal(3, 6), 2, 1),
        Sample(normal(3, 6), p=1, dim=-1, keepdim=True),
    ],
    **_LENGTH,
)
def norm(
    input: Moments,
    p: object = "fro",
    dim: object = None,
    keepdim: bool = False,
    out: object = None,
    dtype: torch.dtype | None = None,
    **kwargs: object,
) -> Moments:
    """As `vector_norm`; the Frobenius norm is the 2-norm of all elements."""
    p = kwargs.get("ord", p)
    if isinstance(p, str) and p != "fro":
        raise NoRuleError(f"There is no rule for the {p} norm; use the Frobenius norm.")
    order = 2 if p in ("fro", None) else p
    return vector_norm(input, order, dim if dim != [] else None, keepdim, dtype=dtype)


@composite("hypot", samples=[Sample(normal(3, 4), normal(4))], fidelity=APPROXIMATE, error=0.1)
def hypot(input: Tensor, other: Tensor) -> Tensor:
    """As `vector_norm` of the pair."""
    return torch.linalg.vector_norm(torch.stack(torch.broadcast_tensors(input, other)), 2, 0)


@composite(
    "pairwise_distance",
    samples=[
        Sample(normal(3, 6, std=0.5), normal(3, 6, std=0.5)),
        Sample(normal(3, 6, std=0.5), constant(6), keepdim=True),
    ],
    **_LENGTH,
)
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """As `vector_norm` of x1 - x2 + eps."""
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


@composite(
    "cdist",
    samples=[
        Sample(normal(2, 3, 5, std=0.5), constant(2, 4, 5)),
        Sample(normal(3, 5, std=0.5), normal(4, 5, std=0.5), 1.0),
    ],
    **_LENGTH,
)
def cdist(
    x1: Tensor,  # (*batch, P, M)
    x2: Tensor,  # (*batch, R, M)
    p: float = 2.0,
    compute_mode: object = None,
) -> Tensor:  # (*batch, P, R)
    """As `vector_norm` of every difference; the distance of a point to itself is 0."""
    distance = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    if x1 is not x2:
        return distance
    size = x1.shape[-2]
    return distance.masked_fill(torch.eye(size, dtype=torch.bool, device=x1.device), 0.0)


@rule(
    "cosine_similarity",
    samples=[
        Sample(normal(3, 16, std=0.3), normal(3, 16, std=0.3)),
        Sample(normal(2, 16, 3, std=0.5), constant(2, 16, 3)),
        Sample(constant(16), normal(3, 16, std=0.5), dim=-1),
    ],
    fidelity=APPROXIMATE,
    error=0.15,
)
def cosine_similarity(
    x1: Moments | Tensor, x2: Moments | Tensor, dim: int = 1, eps: float = 1e-8
) -> Moments:
    """c = y1 . y2 with y = m / sqrt(q), q = sum(m**2 + v); Var = J1**2 v1 + J2**2 v2 + cross.

    J1 = (y2 - c y1) / sqrt(q1), J2 likewise, cross = sum v1 v2 / (q1 q2).

    Assumes: independent elements, and lengths near their expectation. `x` with itself gives 1.

    Source: our own, as `normalize`.
    """
    dtype = next(x.var.dtype for x in (x1, x2) if isinstance(x, Moments))

    def unit(x: Moments | Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of x over its expected length."""
        mean = mean_of(x).to(dtype)
        var = x.var if isinstance(x, Moments) else torch.zeros_like(mean)
        length = (mean.square() + var).sum(dim, keepdim=True).clamp(min=eps * eps)
        return mean / length.sqrt(), var / length

    (y1, v1), (y2, v2) = unit(x1), unit(x2)
    cosine = (y1 * y2).sum(dim, keepdim=True)
    if x1 is x2:
        return Moments(torch.ones_like(cosine.squeeze(dim)), torch.zeros_like(cosine.squeeze(dim)))
    pulls = v1 * (y2 - cosine * y1).square() + v2 * (y1 - cosine * y2).square()
    out = torch.promote_types(mean_of(x1).dtype, mean_of(x2).dtype)
    return Moments(cosine.squeeze(dim).to(out), pulls.sum(dim) + (v1 * v2).sum(dim))


# Variance and standard deviation of elements along dimensions: quadratic forms of Gaussians.
_DIMENSIONS = [
    Sample(normal(3, 6), 1),
    Sample(normal(2, 3, 5), (1, 2), correction=0, keepdim=True),
    Sample(normal(3, 4), unbiased=False),
    Sample(normal(2, 7), -1, False, True),
]


def _arguments(
    dim: int | Sequence[int] | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Axes | None, float, bool]:
    """Dimensions, correction and `keepdim` of torch's three signatures of `var`."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ()) or None
    return axes, correction, keepdim


def _quadratic_form(input: Moments, axes: Axes | None, correction: float, keepdim: bool) -> Moments:
    """Moments of sum (x - mean(x))**2 / (n - correction), in the variance's dtype.

    With c = m - mean(m): E = sum c**2 + (1 - 1/n) sum v, Var = 4 sum c**2 v plus
    2 tr((M V)**2) = 2 [(1 - 2/n) sum v**2 + (sum v)**2 / n**2] for the centering matrix M.
    """
    m, v = input.mean.to(input.var.dtype), input.var
    axes = tuple(range(m.dim())) if axes is None else axes

    def total(x: Tensor) -> Tensor:
        return x.sum(axes, keepdim=keepdim)

    center = m.mean(axes, keepdim=True)
    count = m.numel() // max(center.numel(), 1)
    power = (m - center).square()
    scale = 1 / max(count - correction, 0) if count > correction else float("nan")
    level = (total(power) + (1 - 1 / count) * total(v)) * scale
    first_order = 4 * total(power * v) * scale**2
    # sum v**2 >= (sum v)**2 / n, so this is not negative for n >= 1; n = 1 needs the clamp.
    trace = (1 - 2 / count) * total(v.square()) + total(v).square() / count**2
    return Moments(level, first_order + 2 * trace.clamp(min=0) * scale**2)


@rule("var", samples=_DIMENSIONS)
def var(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """E = [sum c**2 + (1 - 1/n) sum v] / k, Var = [4 sum c**2 v + 2 tr((M V)**2)] / k**2.

    c = m - mean(m), k = n - correction, M the centering matrix.

    Assumes: independent elements; exact.

    Source: variance of a quadratic form of Gaussians, 2 tr(MVMV) + 4 m'MVMm.
    """
    form = _quadratic_form(input, *_arguments(*args, **kwargs))
    return Moments(form.mean.to(input.mean.dtype), form.var)


@rule("std", samples=_DIMENSIONS, **_LENGTH)
def std(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Moments of the root of `var`, whose distribution is matched by a gamma distribution.

    Assumes: independent elements. Exact for equal means and variances.

    Source: Nakagami 1960; `var`.
    """
    axes, correction, keepdim = _arguments(*args, **kwargs)
    whole = _quadratic_form(input, axes, correction, True).mean
    unit = _divisible(whole)
    # In units of the whole: squares of small numbers do not underflow.
    m = input.mean.to(unit.dtype)
    axes = tuple(range(m.dim())) if axes is None else axes
    scaled = Moments((m - m.mean(axes, keepdim=True)) / unit.sqrt(), input.var / unit)
    spread = _quadratic_form(scaled, axes, correction, keepdim).var
    level = whole if keepdim else whole.squeeze(axes)
    return _root_of_squares(level, spread, input.mean.dtype)


def _with_mean(name: str, spread: Callable[..., Tensor], **options: Any) -> None:
    @composite(name, samples=_DIMENSIONS, **options)
    def both(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The sample variance (or its root) and the mean of the same elements.

        Assumes: independent elements.

        Source: `var`, `std`, `mean`.
        """
        axes, _, keepdim = _arguments(*args, **kwargs)
        return spread(input, *args, **kwargs), torch.mean(input, axes, keepdim)


_with_mean("var_mean", torch.var)
_with_mean("std_mean", torch.std, **_LENGTH)
