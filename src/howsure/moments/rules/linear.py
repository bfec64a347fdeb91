"""Operations that are linear in each of their operands: exact for independent operands.

Layers, sums, differences, products, reductions. The variance of a product of independent variables
is m1**2 v2 + m2**2 v1 + v1 v2 (Goodman 1960), and a sum adds up variances; so a bilinear operation
`op` has the variance op(m1**2, v2) + op(v1, m2**2) + op(v1, v2), and a constant has variance 0.

`x @ x.T` shares its data: the transpose is a different tensor to the rules, so the two sides
count as independent. That is right off the diagonal, where two different rows meet.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import (
    bilinear,
    bilinear_map,
    composite,
    linear_map,
    move,
    respell,
    structural,
)
from howsure.moments.numerics import squared
from howsure.moments.rule import (
    APPROXIMATE,
    EXACT,
    Kind,
    Sample,
    Target,
    constant,
    narrow,
    normal,
    operands,
    positive,
    rule,
    sample,
)
from howsure.moments.rules.closed_forms import reciprocal, square
from howsure.moments.value import (
    HALF_PRECISION,
    Moments,
    as_moments,
    mean_of,
    var_of,
    variance_dtype,
)

_aten = torch.ops.aten
Operand = Moments | Tensor
Number = Moments | Tensor | float


# Layers.
_SOURCE = "Gast & Roth 2018, Eq. 9; Loquercio et al. 2020, Eq. 5"


def _images(dims: int) -> list[Sample]:
    image, kernel = normal(2, 4, *(6, 5, 4)[:dims]), (3, 2, 2)[:dims]
    return [
        Sample(image, constant(3, 4, *kernel), constant(3), stride=2, padding=1),
        Sample(image, constant(4, 2, *kernel), None, 1, 1, 1, 2),
        Sample(image, constant(2, 4, *kernel), padding="same", dilation=2),
    ]


def _transposed_images(dims: int) -> list[Sample]:
    image, kernel = normal(2, 4, *(3, 4, 2)[:dims]), (3, 2, 3)[:dims]
    return [
        Sample(image, constant(4, 2, *kernel), constant(2), stride=2, output_padding=1),
        Sample(image, constant(4, 1, *kernel), groups=2, padding=1),
    ]


for _name, _samples in {
    "linear": [
        Sample(normal(4, 5), constant(3, 5), constant(3)),
        Sample(normal(2, 3, 5), weight=constant(2, 5)),
        Sample(normal(5), constant(3, 5)),
        Sample(normal(4, 5), normal(3, 5), normal(3)),
    ],
    "conv1d": _images(1),
    "conv2d": _images(2),
    "conv3d": _images(3),
    "conv_transpose1d": _transposed_images(1),
    "conv_transpose2d": _transposed_images(2),
    "conv_transpose3d": _transposed_images(3),
}.items():
    linear_map(getattr(F, _name), _name, samples=_samples, source=_SOURCE)


# Sums, differences, products and quotients.
_TWICE = normal(3, 4)
_PAIRS = [
    Sample(normal(3, 4), normal(3, 4)),
    Sample(normal(3, 4), constant(4)),
    Sample(normal(1, 4), constant(3, 1)),
    Sample(constant(3, 4), normal(4)),
    Sample(normal(3, 1), normal(4)),
    Sample(normal(3, 4), 1.7),
    Sample(_TWICE, _TWICE),
]
_PAIRS_WITH_ALPHA = [*_PAIRS, Sample(normal(3, 4), normal(3, 4), alpha=-0.4)]


def _broadcast(mean: Tensor, var: Tensor) -> Moments:
    """Moments with the variance in the mean's shape and dtype, which broadcasting has chosen."""
    return Moments(mean, var.to(variance_dtype(mean.dtype)).expand(mean.shape))


def _tensor(operand: Number, like: Number) -> Tensor:
    """The operand's mean; a number becomes a tensor like the other operand."""
    mean = mean_of(operand)
    return mean if isinstance(mean, Tensor) else torch.as_tensor(mean).to(mean_of(like))


@rule("add", Tensor.__radd__, samples=_PAIRS_WITH_ALPHA, adds_up=True)
def add(input: Number, other: Number, *, alpha: float = 1) -> Moments:
    """E = m1 + alpha m2, Var = v1 + alpha**2 v2; `x + x` is 2 x.

    Assumes: different tensors are independent. A residual connection adds correlated branches:
    the main error of diagonal propagation.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    mean = torch.add(_tensor(input, other), mean_of(other), alpha=alpha)
    if input is other:
        return _broadcast(mean, var_of(input) * (1 + alpha) ** 2)
    return _broadcast(mean, var_of(input) + var_of(other) * alpha**2)


@rule("sub", "subtract", samples=_PAIRS_WITH_ALPHA)
def sub(input: Number, other: Number, *, alpha: float = 1) -> Moments:
    """E = m1 - alpha m2, Var = v1 + alpha**2 v2; `x - x` is 0.

    Assumes: different tensors are independent.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    return add(input, other, alpha=-alpha)


@rule("rsub", Tensor.__rsub__, samples=_PAIRS_WITH_ALPHA)
def rsub(input: Number, other: Number, *, alpha: float = 1) -> Moments:
    """As `sub(other, input)`."""
    return add(other, input, alpha=-alpha)


@rule("neg", "negative", samples=sample((3, 4)))
def neg(input: Moments) -> Moments:
    """E = -mean, Var = var.

    Assumes: nothing; exact.

    Source: definition.
    """
    return Moments(-input.mean, input.var)


@rule("mul", "multiply", Tensor.__rmul__, samples=_PAIRS)
def mul(input: Number, other: Number) -> Moments:
    """E = m1 m2, Var = m1**2 v2 + m2**2 v1 + v1 v2; `x * x` is a square.

    Assumes: different tensors are independent; exact then.

    Source: product of independent variables, Goodman 1960.
    """
    if input is other and isinstance(input, Moments):
        return square(input)
    mean = torch.mul(_tensor(input, other), mean_of(other))
    dtype = variance_dtype(mean.dtype)
    if not (isinstance(input, Moments) and isinstance(other, Moments)):
        random, constant = (input, other) if isinstance(input, Moments) else (other, input)
        factor: Any = constant.to(dtype) if isinstance(constant, Tensor) else constant
        return _broadcast(mean, var_of(random) * (factor * factor))
    first, second = input.mean.to(dtype), other.mean.to(dtype)
    # One factor after the other: the square of a mean may overflow where its variance is 0.
    var = first * other.var * first + second * input.var * second
    return Moments(mean, var + (input.var * other.var).to(dtype))


_STEADY = narrow(4, 1, 0.01)
_QUOTIENTS = [
    Sample(normal(3, 4), positive(4)),
    Sample(normal(3, 4), 1.7),
    Sample(normal(3, 4), _STEADY),
    Sample(2.0, _STEADY),
]


@rule(
    "div",
    "divide",
    "true_divide",
    "__truediv__",
    fidelity=APPROXIMATE,
    samples=_QUOTIENTS,
    error=0.05,
)
def div(input: Number, other: Number, *, rounding_mode: str | None = None) -> Moments:
    """Var = var / c**2 for a constant c; else the product with `reciprocal(other)`.

    Assumes: different tensors are independent. Exact for a constant divisor; a Gaussian one has
    no finite moments and is taken as log-normal, good to 5 % for mean / std above 5.

    Source: `mul` and `reciprocal`.
    """
    if rounding_mode is not None:
        raise NoRuleError("A rounded quotient is a step function; divide without `rounding_mode`.")
    if isinstance(other, Moments):
        return mul(input, reciprocal(other))
    assert isinstance(input, Moments)
    divisor = other.to(input.var.dtype) if isinstance(other, Tensor) else other
    return _broadcast(torch.div(input.mean, other), input.var / divisor / divisor)


respell(
    div,
    Tensor.__rdiv__,
    name="rdiv",
    samples=[Sample(_STEADY, 2.0)],
    arguments=lambda self, other: (other, self),
)


@rule(
    "lerp",
    samples=[
        Sample(normal(3, 4), normal(3, 4), normal(3, 4)),
        Sample(normal(3, 4), constant(3, 4), normal(4)),
        Sample(normal(3, 4), normal(4), 0.3),
        Sample(constant(3, 4), normal(3, 4), positive(3, 1)),
    ],
)
def lerp(input: Operand, end: Operand, weight: Number) -> Moments:
    """E = a + w (b - a), Var = (1 - w)**2 v_a + w**2 v_b + v_w [(b - a)**2 + v_a + v_b].

    Assumes: independent operands; exact then. The two places where a occurs are seen as one,
    unlike in `a + w * (b - a)`.

    Source: law of total variance.
    """
    if input is end and isinstance(input, Moments):
        return Moments(input.mean.clone(), input.var.clone())
    mean = torch.lerp(mean_of(input), mean_of(end), mean_of(weight))
    dtype = variance_dtype(mean.dtype)
    a, b, w = mean_of(input).to(dtype), mean_of(end).to(dtype), mean_of(weight)
    w = w.to(dtype) if isinstance(w, Tensor) else w
    var = (1 - w) ** 2 * var_of(input) + w**2 * var_of(end) + var_of(weight) * (b - a).square()
    # The product may be a number: its sum with zeros has the shape of the result.
    both = torch.zeros_like(mean, dtype=dtype) + var_of(weight) * (var_of(input) + var_of(end))
    return Moments(mean, var + both)


# Matrix products.
matmul = bilinear_map(
    "matmul",
    samples=[
        *operands((2, 3, 4), second=(4, 2)),
        Sample(normal(4), normal(4)),
        Sample(normal(3, 1, 2, 4), normal(2, 4, 3)),
    ],
)
bilinear_map("mm", samples=operands((3, 4), second=(4, 2)), second="mat2")
bilinear_map("bmm", samples=operands((2, 3, 4), second=(2, 4, 2)), second="mat2")
bilinear_map("mv", samples=operands((3, 4), second=(4,)), second="vec")
bilinear_map("inner", samples=[*operands((2, 4), second=(3, 4)), Sample(normal(4), normal(4))])
bilinear_map("outer", "ger", samples=operands((3,), second=(4,)), second="vec2")
bilinear_map("kron", samples=operands((2, 3), second=(2, 3)))
bilinear_map(
    "tensordot",
    samples=[
        Sample(normal(2, 3, 4), normal(3, 4, 2)),
        Sample(normal(3, 4), constant(4, 3), dims=([0, 1], [1, 0])),
        Sample(normal(3, 4), constant(4, 2), 1),
    ],
    first="a",
    second="b",
)
respell(
    matmul,
    Tensor.__rmatmul__,
    name="rmatmul",
    samples=[Sample(normal(3, 4), constant(2, 3))],
    arguments=lambda self, other: (other, self),
)
_VECTOR = normal(4)


@rule("dot", "vdot", samples=[*operands((4,), second=(4,)), Sample(_VECTOR, _VECTOR)])
def dot(input: Operand, other: Operand) -> Moments:
    """As `matmul` of two vectors; `dot(x, x)` is the sum of squares."""
    if input is not other:
        return bilinear(torch.dot, input, other)
    assert isinstance(input, Moments)
    squares = square(input)
    return Moments(squares.mean.sum(), squares.var.sum())


# Fused products and sums: beta input + alpha product.
def _scale(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _register_fused(
    name: str, product: Target, factors: tuple[str, str], *shapes: tuple[int, ...]
) -> None:
    start, left, right = shapes
    samples = [
        Sample(constant(*start), normal(*left), constant(*right)),
        Sample(normal(*start), normal(*left), normal(*right)),
        Sample(normal(*start), normal(*left), constant(*right), beta=0.5),
        Sample(normal(*start), constant(*left), normal(*right), alpha=-2),
    ]

    @composite(name, samples=samples)
    def fused(
        input: Tensor, *args: Tensor, beta: float = 1, alpha: float = 1, **kwargs: Tensor
    ) -> Tensor:
        """As `matmul` or `outer`, for beta input + alpha product."""
        given = dict(zip(factors, args, strict=False)) | kwargs
        scaled = _scale(product(*(given[factor] for factor in factors)), alpha)
        # Where beta is 0, torch does not even read `input`.
        return scaled if beta == 0 else _scale(input, beta) + scaled


def _sum_bmm(batch1: Tensor, batch2: Tensor) -> Tensor:
    return torch.bmm(batch1, batch2).sum(0)


_register_fused("addmm", torch.mm, ("mat1", "mat2"), (2,), (3, 4), (4, 2))
_register_fused("addmv", torch.mv, ("mat", "vec"), (3,), (3, 4), (4,))
_register_fused("addr", torch.outer, ("vec1", "vec2"), (3, 2), (3,), (2,))
_register_fused("baddbmm", torch.bmm, ("batch1", "batch2"), (2, 3, 2), (2, 3, 4), (2, 4, 2))
_register_fused("addbmm", _sum_bmm, ("batch1", "batch2"), (3, 2), (2, 3, 4), (2, 4, 2))


@composite(
    "addcmul",
    samples=[
        Sample(normal(3, 4), normal(3, 4), normal(4)),
        Sample(constant(3, 4), normal(4), constant(3, 1), value=-0.5),
        Sample(normal(3, 4), _TWICE, _TWICE),
    ],
)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """As `mul`, for input + value tensor1 tensor2."""
    return input + _scale(tensor1 * tensor2, value)


@composite(
    "addcdiv",
    samples=[
        Sample(normal(3, 4), normal(3, 4), positive(4)),
        Sample(normal(3, 4), constant(4), normal(3, 4, mean=8, std=0.2)),
    ],
    fidelity=APPROXIMATE,
    error=0.05,
)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """As `div`, for input + value tensor1 / tensor2."""
    return input + _scale(tensor1 / tensor2, value)


@composite(
    torch.linalg.cross,
    _aten.linalg_cross.default,
    samples=operands((2, 3), second=(2, 3)),
)
def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """As `mul`, for a_j b_k - a_k b_j: products of different elements, and their difference."""
    ahead, behind = (tuple(x.roll(shift, dim) for x in (input, other)) for shift in (-1, -2))
    return ahead[0] * behind[1] - behind[0] * ahead[1]


@composite("cross", samples=operands((3, 2), second=(3, 2), behind=(0,)))
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """As `linalg_cross`, by default over the first dimension of size 3."""
    first = next(axis for axis, size in enumerate(input.shape) if size == 3)
    return torch.linalg.cross(input, other, dim=first if dim is None else dim)


# Reductions.
_DIMENSIONS = [
    Sample(normal(3, 4)),
    Sample(normal(2, 3, 4), 1),
    Sample(normal(2, 3, 4, 2), (2, 3), keepdim=True),
    Sample(normal(2, 3, 4), dim=-1),
]
_ALONG_ONE = [Sample(normal(3, 4), 1), Sample(normal(4), dim=0)]


_SUMS: dict[str, Any] = {"fidelity": EXACT, "kind": Kind.LINEAR_MAP, "views": False}
_SUMS["inplace"] = True
structural("sum", samples=_DIMENSIONS, op=torch.sum, adds_up=True, **_SUMS)
structural("cumsum", samples=_ALONG_ONE, op=torch.cumsum, **_SUMS)
structural("trace", samples=sample((3, 4)), op=torch.trace, **_SUMS)


@rule("mean", samples=_DIMENSIONS, kind=Kind.LINEAR_MAP, adds_up=True)
def mean(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Var = sum of the variances / n**2.

    Assumes: independent elements; exact then. Neighboring features are correlated in a trained
    network, which makes a global average pool the second main error of diagonal propagation.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    average = move(torch.mean, {0: "input"}, input, *args, **kwargs)
    count = max(input.mean.numel() // max(average.mean.numel(), 1), 1)
    return Moments(average.mean, average.var / count)


@rule(
    "prod",
    samples=[Sample(normal(4)), Sample(normal(2, 3, 4), 1), Sample(normal(2, 4), -1, keepdim=True)],
)
def prod(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Var of x y as m1**2 v2 + m2**2 v1 + v1 v2, pair by pair.

    Assumes: independent elements; exact then.

    Source: Goodman 1960; `mul`.
    """
    mean = torch.prod(input.mean, *args, **kwargs)
    dtype = variance_dtype(mean.dtype)
    dim = args[0] if args else kwargs.get("dim")
    factors = [x.to(dtype) for x in (input.mean, input.var)]
    m, v = (x.flatten() if dim is None else x.movedim(dim, 0) for x in factors)
    while m.shape[0] > 1:
        half = m.shape[0] // 2
        pair = bilinear(torch.mul, *(Moments(m[i::2][:half], v[i::2][:half]) for i in (0, 1)))
        m, v = torch.cat([pair.mean, m[2 * half :]]), torch.cat([pair.var, v[2 * half :]])
    return Moments(mean, v.reshape(mean.shape))


@composite("cumprod", wide=True, samples=_ALONG_ONE)
def cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """As `mul`, one element after the other; the outputs are strongly correlated."""
    parts = (input if dtype is None else input.to(dtype)).unbind(dim)
    return torch.stack(list(itertools.accumulate(parts, torch.mul)), dim)


@rule(
    "diff",
    samples=[
        Sample(normal(3, 5)),
        Sample(normal(5, 3), n=2, dim=0),
        Sample(normal(3, 5), 1, -1, normal(3, 1), constant(3, 2)),
    ],
)
def diff(
    input: Moments,
    n: int = 1,
    dim: int = -1,
    prepend: Operand | None = None,
    append: Operand | None = None,
) -> Moments:
    """Var = sum_k binomial(n, k)**2 v of the n + 1 neighbors.

    Assumes: independent elements; exact for each output.

    Source: Loquercio et al. 2020, Eq. 5.
    """
    parts = [as_moments(x) for x in (prepend, input, append) if x is not None]
    mean = torch.diff(torch.cat([part.mean for part in parts], dim), n, dim)
    var = torch.cat([part.var for part in parts], dim)
    count = var.shape[dim] - n
    spread = [var.narrow(dim, k, count) * math.comb(n, k) ** 2 for k in range(n + 1)]
    return Moments(mean, torch.stack(spread).sum(0))


_ROWS, _TABLE = torch.tensor([[0, 2], [1, 3]]), normal(4, 3)
_BAGS = [
    Sample(_ROWS, _TABLE),
    Sample(_ROWS, _TABLE, mode="sum", per_sample_weights=constant(2, 2)),
    Sample(torch.tensor([0, 2, 1]), _TABLE, torch.tensor([0, 1])),
]


@rule(F.embedding_bag, samples=_BAGS, kind=Kind.LINEAR_MAP)
def embedding_bag(
    input: Tensor,  # (bags, n) of indices, or (all,) with offsets
    weight: Moments,  # (rows, width)
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Moments:
    """Var = sum of the rows' variances, by squared weights; over n**2 for a mean.

    Assumes: independent rows, and no row twice in one bag; exact then.

    Source: `sum`, `mean`.
    """
    if mode == "max" or max_norm is not None:
        raise NoRuleError("`embedding_bag` has a rule for sums and means, without `max_norm`.")

    def bag(table: Tensor, how: str = "sum", weights: Tensor | None = None) -> Tensor:
        options = {"include_last_offset": include_last_offset, "padding_idx": padding_idx}
        options |= {"mode": how, "per_sample_weights": weights}
        return F.embedding_bag(input, table, offsets, **options)  # pyright: ignore[reportArgumentType]

    mean = bag(weight.mean, mode, per_sample_weights)
    if mode == "mean":
        count = bag(torch.ones_like(weight.var)).clamp(min=1)
        return Moments(mean, bag(weight.var) / count.square())
    if per_sample_weights is None:
        return Moments(mean, bag(weight.var))
    squares = squared(per_sample_weights, weight.var.dtype)
    return Moments(mean, bag(weight.var, weights=squares))


# Sums of products of any number of operands.
def multilinear(equation: str, tensors: Sequence[Operand]) -> Moments:
    """Moments of `torch.einsum(equation, *tensors)` for independent operands.

    The variance of a multilinear form is a sum over the non-empty sets S of random operands
    (Hoeffding's decomposition): contract the means of all others, square, and contract with the
    variances of those in S.
    """
    names, output = _letters(equation, [mean_of(tensor).shape for tensor in tensors])
    plain = torch.einsum(equation, *mean_of(tuple(tensors)))
    dtype = variance_dtype(plain.dtype)
    # A tensor that occurs twice with the same letters is a square, which moves the mean too.
    terms: list[tuple[Operand, str]] = []
    for tensor, letters in zip(tensors, names, strict=True):
        twins = [i for i, term in enumerate(terms) if term[0] is tensor and term[1] == letters]
        if twins and isinstance(tensor, Moments):
            terms[twins[0]] = square(tensor), letters
        else:
            terms.append((tensor, letters))
    random = [i for i, (tensor, _) in enumerate(terms) if isinstance(tensor, Moments)]
    sets = [s for n in range(1, len(random) + 1) for s in itertools.combinations(random, n)]
    parts = []
    for chosen in sets:
        noises = [(var_of(terms[i][0]), terms[i][1]) for i in chosen]
        others = [
            (mean_of(tensor).to(dtype), letters)
            for i, (tensor, letters) in enumerate(terms)
            if i not in chosen
        ]
        if others:
            needed = set(output + "".join(letters for _, letters in noises))
            present = set("".join(letters for _, letters in others)) - {"_"}
            kept = "".join(sorted(needed & present))
            noises.append((_contract(others, kept).square(), kept))
        parts.append(_contract(noises, output))
    if len(terms) < len(tensors):
        plain = _contract([(mean_of(tensor), letters) for tensor, letters in terms], output)
    return Moments(plain, torch.stack(parts).sum(0))


def _contract(factors: Sequence[tuple[Tensor, str]], output: str) -> Tensor:
    """`einsum` of tensors with their letters; a dimension `_` of size 1 is left out."""
    shown = [
        tensor[tuple(0 if letter == "_" else slice(None) for letter in letters)]
        for tensor, letters in factors
    ]
    inputs = ",".join(letters.replace("_", "") for _, letters in factors)
    return torch.einsum(f"{inputs}->{output}", *shown)


def _letters(equation: str, shapes: Sequence[torch.Size]) -> tuple[list[str], str]:
    """The letters of every operand and of the output; ellipses are spelled out.

    A dimension of size 1 that broadcasts against a longer one gets the letter `_`: its element
    enters every summand and is therefore not summed over.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    # An ellipsis stands for the dimensions that have no letter, the last ones of the longest.
    extra = [len(s) - len(n.replace("...", "")) for s, n in zip(shapes, names, strict=True)]
    widest = max((e for e, n in zip(extra, names, strict=True) if "..." in n), default=0)
    ellipsis = "".join(spare[:widest])
    names = [n.replace("...", ellipsis[widest - e :]) for n, e in zip(names, extra, strict=True)]
    if not arrow:
        once = sorted(c for c in set("".join(names)) - set(ellipsis) if inputs.count(c) == 1)
        output = "..." + "".join(once)
    sizes: dict[str, int] = {}
    for letters, shape in zip(names, shapes, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    names = [
        "".join(c if n == sizes[c] else "_" for c, n in zip(letters, shape, strict=True))
        for letters, shape in zip(names, shapes, strict=True)
    ]
    return names, output.replace("...", ellipsis)


_EQUATIONS = [
    Sample("bij,bjk->bik", normal(2, 3, 4), normal(2, 4, 2)),
    Sample("...d,ed->...e", normal(2, 3, 4), constant(2, 4)),
    Sample("i,j->", normal(3), normal(4)),
    Sample("ij,j", constant(3, 4), normal(4)),
    Sample("ii->i", normal(3, 3)),
    Sample("bi,oij,bj->bo", normal(2, 3), constant(2, 3, 4), normal(2, 4)),
    Sample("a,ab,b->", normal(2), normal(2, 3), normal(3)),
    Sample("bi,bi->b", normal(2, 1), normal(2, 3)),
    Sample("bi,bi->b", _TWICE, _TWICE),
]


def _only_reorders(equation: str, *operands: object) -> bool:
    """Whether `einsum` sums nothing: of one tensor, torch then returns a view."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(c for c in inputs if c == "." or inputs.count(c) == 1)
    return "," not in inputs and set(inputs) == set(output)


@rule("einsum", samples=_EQUATIONS, views=_only_reorders)
def einsum(equation: str, *operands: Any, path: object = None) -> Moments:
    """Var = sum over sets S of operands of einsum(einsum(means not in S)**2, variances in S).

    Assumes: different tensors are independent; exact then, for any number of operands. The same
    tensor twice with the same letters is a square.

    Source: Hoeffding 1948, for multilinear forms.
    """
    listed = len(operands) == 1 and isinstance(operands[0], (list, tuple))
    return multilinear(equation, operands[0] if listed else operands)


@rule(
    "bilinear",
    samples=[
        Sample(normal(2, 3), normal(2, 4), constant(2, 3, 4), constant(2)),
        Sample(normal(5, 2, 3), constant(5, 2, 4), constant(2, 3, 4)),
        Sample(normal(2, 3), normal(2, 4), normal(2, 3, 4)),
    ],
)
def bilinear_layer(
    input1: Operand,  # (*batch, in1)
    input2: Operand,  # (*batch, in2)
    weight: Operand,  # (out, in1, in2)
    bias: Tensor | None = None,  # (out,)
) -> Moments:
    """E = m1' W m2 + b, Var = v1' (W m2)**2 + (m1' W)**2 v2 + v1' W**2 v2.

    Assumes: independent inputs; exact then.

    Source: `einsum`.
    """
    out = multilinear("...i,oij,...j->...o", (input1, weight, input2))
    mean = F.bilinear(mean_of(input1), mean_of(input2), mean_of(weight), bias)
    return Moments(mean, out.var)


@rule(
    torch.linalg.multi_dot,
    _aten.linalg_multi_dot.default,
    name="multi_dot",
    samples=[
        Sample([normal(2, 3), constant(3, 4), normal(4, 2)]),
        Sample([normal(2, 3), constant(3, 4), constant(4, 2)]),
    ],
)
def multi_dot(tensors: Sequence[Operand]) -> Moments:
    """As `einsum` of all matrices at once, whatever the order of evaluation."""
    names = [string.ascii_letters[i : i + 2] for i in range(len(tensors))]
    # The first and the last operand may be vectors.
    names[0] = names[0][2 - mean_of(tensors[0]).dim() :]
    names[-1] = names[-1][: mean_of(tensors[-1]).dim()]
    ends = (names[0][:1] if len(names[0]) == 2 else "") + names[-1][1:]
    dtype = mean_of(tensors[0]).dtype
    if dtype in HALF_PRECISION:
        # Which products come first is torch's choice: one of ours must not overflow instead.
        tensors = [
            Moments(x.mean.float(), x.var) if isinstance(x, Moments) else x.float() for x in tensors
        ]
    out = multilinear(",".join(names) + "->" + ends, tensors)
    return Moments(out.mean.to(dtype), out.var)
