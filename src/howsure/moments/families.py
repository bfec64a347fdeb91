"""The mechanisms by which a moment rule follows from its operation: one line per rule.

- `structural`: an op that moves elements, or adds them up.
- `linear_map`, `bilinear_map`: an op with weights, or with two operands.
- `separable_map`: a linear op along each axis, whose weights are nowhere written down.
- `elementwise`: a function of single elements, by quadrature; `pointwise`: by a formula.
- `composite`: a definition by operations that have rules.
- `respell`: another order of arguments; `value_only`: a query; `refuse`: no answer but a reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NoReturn

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.numerics import Deviation, expectation, through_squares
from howsure.moments.rule import (
    REFUSED,
    STRUCTURAL,
    Draw,
    Fidelity,
    Kind,
    Rule,
    Sample,
    Samples,
    Target,
    one_of_each_shape,
    parameter_names,
    register,
    rule,
)
from howsure.moments.value import (
    HALF_PRECISION,
    Args,
    Moments,
    leaves_of,
    mean_of,
    substitute,
    variance_dtype,
)

# Operations that move elements: the data is their first argument, unless they say otherwise.
_FIRST = {0: "input"}


def structural(
    *targets: Target | str,
    samples: Samples,
    op: Target | None = None,
    data: Mapping[int, str] = _FIRST,
    views: bool = True,
    inplace: bool = False,
    fidelity: Fidelity = STRUCTURAL,
    kind: Kind = Kind.STRUCTURAL,
    **options: Any,
) -> Rule:
    """Registers an op that moves elements, or adds them up: the same op on mean and variance.

    `data` names the arguments that hold elements, by position and keyword; all others are indices,
    masks and sizes. `op` stands in for all spellings where they are called alike, in place or not.
    `views` is false for an op that returns a copy: writes to one then leave the other alone.
    """

    def moments(target: Target, *args: object, **kwargs: object) -> object:
        """The same operation on mean and variance; a constant has variance 0.

        Assumes: constant indices, masks and sizes. Elements that are added up are independent;
        copies of one element are fully correlated, which later rules ignore.

        Source: definition.
        """
        return move(op or target, data, *args, **kwargs)

    options |= {"fidelity": fidelity, "kind": kind, "takes_target": True, "views": views}
    return rule(*targets, samples=samples, inplace=inplace, **options)(moments)


def move(op: Target, data: Mapping[int, str], *args: object, **kwargs: object) -> Any:
    """Moments of an op that moves the elements of its arguments `data`, or adds them up."""
    rest = [argument for position, argument in enumerate(args) if position not in data]
    rest += [argument for key, argument in kwargs.items() if key not in data.values()]
    if next(leaves_of(rest, Moments), None) is not None:
        raise NoRuleError(
            "An index, a mask or a size that depends on the noisy input is not a Gaussian "
            "operation; compute it from a tensor without noise."
        )
    means = op(*mean_of(args), **mean_of(kwargs))
    dtype = variance_dtype(next(leaves_of(means, Tensor)).dtype)
    noises = [noise_of(arg, dtype) if i in data else arg for i, arg in enumerate(args)]
    named = {k: noise_of(arg, dtype) if k in data.values() else arg for k, arg in kwargs.items()}
    if kwargs.get("dtype") is not None:
        named["dtype"] = dtype
    return _pair(means, op(*noises, **named))


def noise_of(argument: object, dtype: torch.dtype) -> Any:
    """The variance of an argument that holds elements; a constant has variance 0."""
    if isinstance(argument, Moments):
        return argument.var.to(dtype)
    if isinstance(argument, (tuple, list)):
        return [noise_of(item, dtype) for item in argument]
    if isinstance(argument, Tensor):
        return torch.zeros_like(argument, dtype=dtype)
    return None if argument is None else 0.0


def _pair(means: Any, variances: Any) -> Any:
    """`Moments` of a tensor, or of each in a tuple or list; indices among them stay indices."""
    if isinstance(means, Tensor):
        return Moments(means, variances) if means.dtype.is_floating_point else means
    return type(means)(_pair(m, v) for m, v in zip(means, variances, strict=True))


def linear_map(
    function: Target, *aliases: Target | str, samples: Samples, source: str, name: str = ""
) -> Rule:
    """Registers `function(input, weight, bias, ...)`: linear in input and in weight.

    The variance goes through the same function with squared weights and without the bias.
    """

    def moments(
        input: Moments | Tensor,
        weight: Moments | Tensor,
        bias: Moments | Tensor | None = None,
        *args: object,
        **kwargs: object,
    ) -> Moments:
        def op(data: Tensor, kernel: Tensor, shift: Tensor | None = None) -> Tensor:
            return function(data, kernel, shift, *args, **kwargs)

        mean = op(*mean_of((input, weight, bias)))
        var = bilinear_var(op, input, weight)
        if isinstance(bias, Moments):
            # Where data and weights are 0 the bias alone is left, in its place.
            data, kernel = (torch.zeros_like(mean_of(x), dtype=var.dtype) for x in (input, weight))
            var = var + op(data, kernel, bias.var)
        return Moments(mean, var)

    moments.__doc__ = (
        "var = op(var, weight**2); the bias moves the mean only.\n\n"
        "Assumes: independent elements of input, weight and bias. Exact for each output; outputs "
        f"become correlated, which later rules ignore.\n\nSource: {source}."
    )
    options = {"name": name, "samples": samples, "kind": Kind.LINEAR_MAP}
    return rule(function, *aliases, **options)(moments)


def bilinear(
    op: Callable[[Tensor, Tensor], Tensor], left: Moments | Tensor, right: Moments | Tensor
) -> Moments:
    """Moments of an op that is linear in each of two independent operands. Exact."""
    return Moments(op(mean_of(left), mean_of(right)), bilinear_var(op, left, right))


def bilinear_var(
    op: Callable[[Tensor, Tensor], Tensor], left: Moments | Tensor, right: Moments | Tensor
) -> Tensor:
    """op(m1**2, v2) + op(v1, m2**2) + op(v1, v2); a constant operand has variance 0."""
    if isinstance(left, Moments) and isinstance(right, Moments):
        var = op(left.mean.to(left.var.dtype).square(), right.var)
        var = var + op(left.var, right.mean.to(right.var.dtype).square())
        return var + op(left.var, right.var)
    if isinstance(left, Moments):
        assert isinstance(right, Tensor)
        return through_squares(op, left.var, right)
    assert isinstance(right, Moments)
    return through_squares(lambda var, square: op(square, var), right.var, left)


def bilinear_map(
    *targets: Target | str,
    samples: Samples,
    name: str = "",
    first: str = "input",
    second: str = "other",
) -> Rule:
    """Registers an op that is linear in each of its operands, named `first` and `second`."""

    def moments(target: Target, *args: Any, **kwargs: Any) -> Moments:
        """E = op(m1, m2), Var = op(m1**2, v2) + op(v1, m2**2) + op(v1, v2).

        Assumes: independent operands; exact then. A tensor and its own transpose are not, nor are
        the elements that `outer(x, x)` has on its diagonal.

        Source: sums of products of independent variables, Goodman 1960.
        """
        given = dict(zip((first, second), args, strict=False)) | kwargs
        left, right = given.pop(first), given.pop(second)

        def op(x: Tensor, y: Tensor) -> Tensor:
            return target(x, y, *args[2:], **given)

        return bilinear(op, left, right)

    options = {"name": name, "samples": samples, "inplace": False, "kind": Kind.BILINEAR}
    return rule(*targets, **options, takes_target=True)(moments)


def separable_map(
    op: Target,
    *aliases: Target | str,
    dims: int,
    samples: Samples,
    name: str = "",
    parameters: Sequence[str] = (),
    neutral: Mapping[str, Any] | None = None,
    **options: Any,
) -> Rule:
    """Registers a linear op whose weights are products over its last `dims` axes.

    Its weights need not be written down anywhere: `separable` finds them, faster where `neutral`
    has the op's settings per axis; then `parameters` names what follows its input.
    """

    def moments(input: Moments, *args: Any, **kwargs: Any) -> Moments:
        """Var = A**2 var: the squared weights of the op, one axis after the other.

        Assumes: independent elements; exact then. Neighboring outputs share inputs.

        Source: Loquercio et al. 2020, Eq. 5.
        """
        if not neutral:
            return separable(lambda x: op(x, *args, **kwargs), input, dims)
        settings = dict(zip(parameters, args, strict=False)) | kwargs
        return separable(op, input, dims, neutral, **settings)

    options |= {"name": name, "samples": samples, "kind": Kind.LINEAR_MAP}
    return rule(op, *aliases, **options)(moments)


def separable(
    op: Target,
    input: Moments,
    dims: int,
    neutral: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Moments:
    """Moments of a linear op whose weights are products over the last `dims` axes.

    Average pools and resizing. Along one axis the weights are what the op makes of unit vectors,
    up to a factor; the variance goes through their squares. To find them, the other axes are as
    long as in the input; or they have two elements, where `neutral` says for every setting that has
    a value per axis which value leaves an axis alone.
    """
    size, var, neutral = input.mean.shape[-dims:], input.var, neutral or {}
    total = op(var.new_ones(1, 1, *size), **settings)[0, 0]
    for axis, n in enumerate(size):
        alone = {
            # What is not given, or empty, has its default for every axis.
            key: tuple(per_dim(value, dims)[i] if i == axis else neutral[key] for i in range(dims))
            if key in neutral and value not in (None, [], ())
            else value
            for key, value in settings.items()
        }
        # Two elements, not one: with one, torch 2.13 antialiases along the wrong axis.
        lengths = [n if i == axis else 2 if neutral else m for i, m in enumerate(size)]
        eye = torch.eye(n, dtype=var.dtype, device=var.device)
        eye = eye.reshape(1, n, *(n if i == axis else 1 for i in range(dims)))
        lines = op(eye.expand(1, n, *lengths).contiguous(), **alone)[0]
        lines = lines.movedim(axis + 1, 1)
        weight = lines[(..., *(m // 2 for m in lines.shape[2:]))]  # (n, out)
        share = (weight / weight.sum(0)).square()
        var = (var.movedim(axis - dims, -1) @ share).movedim(-1, axis - dims)
    return Moments(op(input.mean, **settings), var * total.square())


def per_dim(value: Any, dims: int) -> tuple[Any, ...]:
    """A setting for every dimension, from one value or one for each."""
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values if len(values) > 1 else values * dims


def elementwise(
    function: Target,
    *aliases: Target | str,
    name: str = "",
    samples: Samples = one_of_each_shape,
    error: float = 1e-3,
    analytic: bool = False,
    deviation: Deviation | None = None,
    kinks: Sequence[float] = (),
) -> Rule:
    """Registers a scalar function by centered quadrature; no formula needed.

    `analytic`, `deviation` and `kinks`: as in `howsure.moments.numerics.expectation`.
    """
    names = parameter_names(function)[1:]

    def moments(input: Moments, *args: object, **kwargs: object) -> Moments:
        """E and Var of f(x) by centered quadrature: sum w f, sum w (f - mean)**2.

        Assumes: independent elements. Exact up to the quadrature's error.

        Source: Gauss-Legendre quadrature in a sinh-stretched variable, see
        `howsure.moments.numerics`.
        """
        given = dict(zip(names, args, strict=False)) | kwargs if names else kwargs
        given.pop("inplace", None)

        def called(values: Tensor) -> Tensor:
            return function(values, **given) if names else function(values, *args, **given)

        options = {"analytic": analytic, "deviation": deviation, "kinks": kinks}
        return in_float32(partial(expectation, called, **options), input)

    options = {"name": name, "samples": samples, "kind": Kind.ELEMENTWISE, "error": error}
    return rule(function, *aliases, **options, pointwise=True)(moments)


def pointwise(
    *targets: Target | str, samples: Samples = one_of_each_shape, **options: Any
) -> Callable[[Callable[..., Moments]], Rule]:
    """Registers a formula of mean, variance and the operation's other arguments.

    Mean and variance come in the variance's dtype (`in_float32`).
    """
    enter = rule(*targets, samples=samples, pointwise=True, **options)

    def of_elements(formula: Callable[..., Moments]) -> Rule:
        @wraps(formula)
        def moments(input: Moments, *args: object, **kwargs: object) -> Moments:
            return in_float32(lambda mean, var: formula(mean, var, *args, **kwargs), input)

        mean, _, *others = inspect.signature(formula).parameters.values()
        moments.__signature__ = inspect.Signature([mean.replace(name="input"), *others])  # pyright: ignore[reportAttributeAccessIssue]
        return enter(moments)

    return of_elements


def in_float32(formula: Callable[[Tensor, Tensor], Moments], input: Moments) -> Moments:
    """Evaluates a nonlinear formula in the variance's dtype; the mean comes back in its own."""
    if input.mean.dtype not in HALF_PRECISION:
        return formula(input.mean, input.var)
    out = formula(input.mean.to(input.var.dtype), input.var)
    # float16 ends at 65504: a mean beyond it becomes the largest number, not infinity.
    mean = bounded(out.mean, input.mean.dtype).to(input.mean.dtype)
    return Moments(mean, out.var)


def bounded(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The value cut off at the largest finite numbers of the dtype, its own by default."""
    largest = torch.finfo(dtype or value.dtype).max
    return value.clamp(-largest, largest)


def composite(
    *targets: Target | str, samples: Samples, wide: bool = False, **options: Any
) -> Callable[[Callable[..., object]], Rule]:
    """Registers an op by a definition in terms of operations that have rules.

    With `wide`, its steps run in float32 where the op is called in half precision, as torch's own
    kernel does: what overflows between two steps need not overflow in the end.
    """
    enter = rule(*targets, samples=samples, kind=Kind.COMPOSITE, **options)
    return lambda definition: enter(_widen(definition) if wide else definition)


def _widen(definition: Callable[..., object]) -> Callable[..., object]:
    """The definition with half-precision arguments in float32, and its results back."""

    @wraps(definition)
    def in_single(*args: object, **kwargs: object) -> object:
        halves = [x.dtype for x in leaves_of((args, kwargs), Tensor) if x.dtype in HALF_PRECISION]
        if not halves:
            return definition(*args, **kwargs)

        def convert(source: Sequence[torch.dtype], to: torch.dtype, tree: object) -> Any:
            return substitute(tree, Tensor, lambda x: x.to(to) if x.dtype in source else x)

        args, kwargs = convert(HALF_PRECISION, torch.float32, (args, kwargs))
        return convert((torch.float32,), halves[0], definition(*args, **kwargs))

    return in_single


def respell(
    like: Rule, *targets: Target, name: str, samples: Samples, arguments: Callable[..., Args]
) -> Rule:
    """Registers a spelling with another order of arguments; `arguments` puts them in `like`'s."""

    def moments(*args: object, **kwargs: object) -> object:
        return like(*arguments(*args, **kwargs))

    moments.__doc__ = f"As `{like.name}`, with another order of arguments."
    changes = {"name": name, "function": moments, "targets": targets, "samples": samples}
    return register(replace(like, **changes, takes_target=False))


def value_only(*targets: Target | str, name: str) -> Rule:
    """Registers queries that the mean alone answers: shapes, dtypes, devices."""

    def answer(target: Target, *args: object, **kwargs: object) -> object:
        """Answered from the mean; the answer is not random.

        Assumes: nothing.

        Source: definition.
        """
        return target(*mean_of(args), **mean_of(kwargs))

    options = {"fidelity": STRUCTURAL, "kind": Kind.VALUE_ONLY, "takes_target": True}
    return rule(*targets, name=name, samples=_matrix, inplace=False, **options)(answer)


def refuse(*targets: Target | str, name: str, reason: str, can_fall_back: bool = False) -> Rule:
    """Registers an op without a Gaussian answer; it raises with the reason and the remedy.

    With `can_fall_back`, a user may ask for its value at the mean: a mask or an order, frozen.
    """

    def refused(*args: object, **kwargs: object) -> NoReturn:
        raise NoRuleError(reason, can_fall_back=can_fall_back)

    refused.__doc__ = f"{reason}\n\nAssumes: nothing.\n\nSource: howsure's own decision."
    options = {"fidelity": REFUSED, "kind": Kind.REFUSED}
    return rule(*targets, name=name, samples=_matrix, **options)(refused)


def _matrix(draw: Draw) -> list[Sample]:
    return [Sample(draw.moments(3, 4))]
