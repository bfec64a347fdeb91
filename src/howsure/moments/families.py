"""Kinds of operations whose moment rule follows from the operation itself: one line per rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NoReturn

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.numerics.blocks import through_squares
from howsure.moments.numerics.quadrature import Deviation, expectation
from howsure.moments.rule import (
    EXACT,
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
    register,
    rule,
    rule_of,
    spellings,
)
from howsure.moments.value import HALF_PRECISION, Moments
from howsure.trees import map_leaves


def bilinear(
    op: Callable[[Tensor, Tensor], Tensor], left: Moments | Tensor, right: Moments | Tensor
) -> Moments:
    """Moments of an op that is linear in each of two independent operands.

    mean = op(m1, m2), var = op(m1**2, v2) + op(v1, m2**2) + op(v1, v2); a constant operand has
    variance 0. Exact.
    """
    if isinstance(left, Moments) and isinstance(right, Moments):
        var = op(left.mean.to(left.var.dtype).square(), right.var)
        var = var + op(left.var, right.mean.to(right.var.dtype).square())
        return Moments(op(left.mean, right.mean), var + op(left.var, right.var))
    if isinstance(left, Moments):
        assert isinstance(right, Tensor)
        return Moments(op(left.mean, right), through_squares(op, left.var, right))
    assert isinstance(right, Moments)
    var = through_squares(lambda var, square: op(square, var), right.var, left)
    return Moments(op(left, right.mean), var)


def linear_map(
    function: Target, *aliases: Target, name: str, samples: Samples, source: str
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
        def op(data: Tensor, kernel: Tensor) -> Tensor:
            return function(data, kernel, None, *args, **kwargs)

        if isinstance(input, Moments) and isinstance(weight, Tensor):
            # The usual case keeps torch's fused bias: the mean is then the plain value exactly.
            shift = bias.mean if isinstance(bias, Moments) else bias
            mean = function(input.mean, weight, shift, *args, **kwargs)
            out = Moments(mean, through_squares(op, input.var, weight))
        else:
            out = bilinear(op, input, weight)
            if bias is not None:
                shift = bias.mean if isinstance(bias, Moments) else bias
                out = Moments(out.mean + _per_channel(shift, out.mean), out.var)
        if isinstance(bias, Moments):
            return Moments(out.mean, out.var + _per_channel(bias.var, out.mean))
        return out

    def _per_channel(shift: Tensor, like: Tensor) -> Tensor:
        channel_axes = 0 if function is torch.nn.functional.linear else like.dim() - 2
        return shift.reshape(shift.shape + (1,) * min(channel_axes, like.dim() - 1))

    moments.__doc__ = (
        "var = op(var, weight**2); the bias moves the mean only.\n\n"
        "Assumes: independent elements of input, weight and bias. Exact for each output; outputs "
        f"become correlated, which later rules ignore.\n\nSource: {source}."
    )
    return register(Rule(name, moments, (function, *aliases), EXACT, samples, kind=Kind.LINEAR_MAP))


def structural(*targets: Target, name: str, samples: Samples, views: bool = True) -> Rule:
    """Registers an op that moves elements: the same op on mean and variance.

    `views` is false for an op that returns a copy: writes to one then leave the other alone.
    """

    def moments(target: Target, *args: object, **kwargs: object) -> object:
        """The same operation on mean and variance.

        Assumes: nothing. Copies of one element are fully correlated, which later rules ignore.

        Source: definition.
        """
        means = target(*select(args, "mean"), **select(kwargs, "mean"))
        variances = target(*select(args, "var"), **select(kwargs, "var"))
        return zip_moments(means, variances)

    options = {"kind": Kind.STRUCTURAL, "takes_target": True, "views": views}
    return rule(*targets, name=name, fidelity=STRUCTURAL, samples=samples, **options)(moments)


def select(arguments: object, field: str) -> Any:
    """Arguments with every `Moments` replaced by its mean or variance, containers included."""
    if isinstance(arguments, Moments):
        return getattr(arguments, field)
    if isinstance(arguments, (tuple, list)) and not isinstance(arguments, torch.Size):
        return type(arguments)(select(item, field) for item in arguments)
    if isinstance(arguments, dict):
        return {key: select(item, field) for key, item in arguments.items()}
    return arguments


def zip_moments(means: Any, variances: Any) -> object:
    """`Moments` of a tensor, or of each tensor in a tuple or list."""
    if isinstance(means, Tensor):
        return Moments(means, variances)
    return type(means)(zip_moments(m, v) for m, v in zip(means, variances, strict=True))


def elementwise(
    function: Target,
    *aliases: Target,
    name: str,
    samples: Samples = one_of_each_shape,
    error: float = 1e-3,
    analytic: bool = False,
    deviation: Deviation | None = None,
) -> Rule:
    """Registers a scalar function by centred quadrature; no formula needed.

    `analytic` and `deviation`: as in `howsure.moments.numerics.quadrature.expectation`.
    """

    def moments(input: Moments, *args: object, **kwargs: object) -> Moments:
        """E and Var of f(x) by centred quadrature: sum w f, sum w (f - mean)**2.

        Assumes: independent elements. Exact up to the quadrature's error.

        Source: Gauss-Legendre quadrature in a sinh-stretched variable, see
        `howsure.moments.numerics.quadrature`.
        """
        kwargs.pop("inplace", None)

        def called(values: Tensor) -> Tensor:
            return function(values, *args, **kwargs)

        return in_float32(
            partial(expectation, called, analytic=analytic, deviation=deviation), input
        )

    targets = (function, *(alias for alias in aliases if alias is not function))
    return register(
        Rule(name, moments, targets, EXACT, samples, Kind.ELEMENTWISE, error=error, pointwise=True)
    )


def pointwise(
    *names: str, first: Target | None = None, samples: Samples = one_of_each_shape, **options: Any
) -> Callable[[Callable[..., Moments]], Rule]:
    """Registers a formula for single elements, under all `spellings` of the operations `names`.

    See `of_elements` for its arguments.
    """
    enter = rule_of(*names, first=first, samples=samples, pointwise=True, **options)
    return lambda formula: enter(of_elements(formula))


def of_elements(formula: Callable[..., Moments]) -> Callable[..., Moments]:
    """A rule's function from a formula of mean, variance and the operation's other arguments.

    Mean and variance come in the variance's dtype (`in_float32`).
    """

    @wraps(formula)
    def moments(input: Moments, *args: object, **kwargs: object) -> Moments:
        return in_float32(lambda mean, var: formula(mean, var, *args, **kwargs), input)

    mean, _, *others = inspect.signature(formula).parameters.values()
    moments.__signature__ = inspect.Signature([mean.replace(name="input"), *others])  # pyright: ignore[reportAttributeAccessIssue]
    return moments


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
    *targets: Target,
    name: str,
    samples: Samples,
    fidelity: Fidelity = EXACT,
    wide: bool = False,
    **options: Any,
) -> Callable[[Callable[..., object]], Rule]:
    """Registers an op by a definition in terms of operations that have rules.

    With `wide`, its steps run in float32 where the op is called in half precision, as torch's own
    kernel does: what overflows between two steps need not overflow in the end.
    """

    def enter(definition: Callable[..., object]) -> Rule:
        own = _widened(definition) if wide else definition
        return register(Rule(name, own, targets, fidelity, samples, Kind.COMPOSITE, **options))

    return enter


def composite_of(
    *names: str, inplace: bool = True, **options: Any
) -> Callable[[Callable[..., object]], Rule]:
    """`composite` for all `spellings` of torch's operations `names`."""
    return composite(*spellings(*names, inplace=inplace), name=names[0], **options)


def _widened(definition: Callable[..., object]) -> Callable[..., object]:
    @wraps(definition)
    def in_single(*args: object, **kwargs: object) -> object:
        found: list[torch.dtype] = []

        def widened(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or leaf.dtype not in HALF_PRECISION:
                return leaf
            found.append(leaf.dtype)
            return leaf.to(torch.float32)

        def narrowed(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32:
                return leaf
            return leaf.to(found[0])

        wide_args, wide_kwargs = map_leaves(widened, (args, kwargs))
        result = definition(*wide_args, **wide_kwargs)
        if not found:
            return result
        return map_leaves(narrowed, result)

    return in_single


def value_only(*targets: Target, name: str) -> Rule:
    """Registers queries that the mean alone answers: shapes, dtypes, devices."""

    def answer(target: Target, *args: object, **kwargs: object) -> object:
        """Answered from the mean; the answer is not random.

        Assumes: nothing.

        Source: definition.
        """
        return target(*select(args, "mean"), **select(kwargs, "mean"))

    return register(
        Rule(name, answer, targets, STRUCTURAL, _matrix, kind=Kind.VALUE_ONLY, takes_target=True)
    )


def refuse(*targets: Target, name: str, reason: str, can_fall_back: bool = False) -> Rule:
    """Registers an op without a Gaussian answer; it raises with the reason and the remedy.

    With `can_fall_back`, a user may ask for its value at the mean: a mask or an order, frozen.
    """

    def refused(*args: object, **kwargs: object) -> NoReturn:
        raise NoRuleError(reason, can_fall_back=can_fall_back)

    refused.__doc__ = f"{reason}\n\nAssumes: nothing.\n\nSource: howsure's own decision."
    return register(Rule(name, refused, targets, REFUSED, _matrix, kind=Kind.REFUSED))


def _matrix(draw: Draw) -> list[Sample]:
    return [Sample(draw.moments(3, 4))]
