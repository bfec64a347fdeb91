"""How an operation responds to noise: its mean, the directions behind it, and what is beyond.

x ~ N(m, v) with random directions F (var = sum_k F_k**2) goes to y with E[y], J F, and an
innovation of variance r = Var[y] - (J*J) v. J = d E[y] / d m with the variances held constant is
the statistically linearised Jacobian (Stein's lemma). Forward mode gives J F for every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.innovation import estimated_innovation
from howsure.moments import Moments
from howsure.pushforward import partials, push
from howsure.registry import Rule, Target
from howsure.squares import without_gradient

NO_PROBES = torch.empty(0)


@dataclass(frozen=True, eq=False)
class Probed(Moments):
    """Moments with the K directions, in front, that carry their correlations."""

    probes: Tensor = field(default_factory=lambda: NO_PROBES)


@dataclass(frozen=True, eq=False)
class Bend:
    """A quadratic part of a response, curvature / 2 * (direction . noise)**2 in each element."""

    curvature: Tensor  # the output's shape
    directions: Tensor  # (K, *output's shape)


@dataclass(frozen=True, eq=False)
class Response:
    """What noise does to one output of an operation.

    Attributes:
        mean: E[y]; it keeps its derivatives with respect to the means of the inputs.
        probes: J F, without the innovation.
        innovation: Variance beyond first order; `None` for nothing.
        bends: The quadratic part, where it is known with its correlations.
        rest: The innovation's variance that is not in `bends`.
        var: The rule's variance for independent elements, where there are no probes.
    """

    mean: Tensor
    probes: Tensor
    innovation: Tensor | None = None
    bends: tuple[Bend, ...] = ()
    rest: Tensor | None = None
    var: Tensor | None = None


class Call:
    """A call of a rule as a function of the means of its random arguments."""

    def __init__(self, rule: Rule | None, func: Target, args: Any, kwargs: Any) -> None:
        """Takes arguments with `Probed` in place of carriers; without a rule it is linearised."""
        self.given_rule = rule
        self.func = func
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        random = [leaf for leaf in self.leaves if isinstance(leaf, Probed)]
        found = {id(leaf): leaf for leaf in random}
        self.occurrences = len(random)
        self.inputs: list[Probed] = list(found.values())
        # The same object twice is the same variable: `x * x` is a square.
        self.slots = {key: index for index, key in enumerate(found)}

        first = args[0] if args else kwargs.get("input")
        self.data_alone = len(found) == 1 and isinstance(first, Probed)

    @property
    def rule(self) -> Rule:
        """The operation's rule."""
        assert self.given_rule is not None
        return self.given_rule

    @property
    def means(self) -> tuple[Tensor, ...]:
        """The means of the different random arguments."""
        return tuple(each.mean for each in self.inputs)

    @property
    def probes(self) -> tuple[Tensor, ...]:
        """Their directions."""
        return tuple(each.probes for each in self.inputs)

    def with_inputs(self, values: Any, function: Callable[..., Any]) -> Any:
        """The result of `function` with `values` in place of the random arguments."""
        leaves = [
            values[self.slots[id(leaf)]] if isinstance(leaf, Probed) else without_gradient(leaf)
            for leaf in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return function(*args, **kwargs)

    def by_rule(self, *means: Tensor) -> Any:
        """The rule's result for these means, with the variances as they are."""
        moments = [Moments(m, each.var) for m, each in zip(means, self.inputs, strict=True)]
        return self.with_inputs(moments, self.rule.called_as(self.func))

    def plainly(self, *means: Tensor) -> Any:
        """The operation itself on the means."""
        return self.with_inputs(means, self.func)


class Outputs:
    """The random leaves of an operation's result, and how to put others in their place."""

    def __init__(self, result: Any, kind: type) -> None:
        self.leaves, self.spec = pytree.tree_flatten(result)
        self.places = [
            place
            for place, leaf in enumerate(self.leaves)
            if isinstance(leaf, kind) and (kind is Moments or leaf.dtype.is_floating_point)
        ]
        self.found = [self.leaves[i] for i in self.places]

    def filled(self, values: list[Any]) -> Any:
        """The result with `values` in place of its random leaves."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return pytree.tree_unflatten(leaves, self.spec)


def pointwise(call: Call) -> Response:
    """Response of an elementwise function: F_out = E[f'] F, r = Var[f] - E[f']**2 v.

    Its quadratic part has the curvature E[f'']; by Hermite expansion r >= E[f'']**2 v**2 / 2.
    """
    (x,) = call.inputs

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        out = call.with_inputs([Moments(mean, var)], call.rule.called_as(call.func))
        return out.mean, out.var

    with torch.no_grad():
        mean, var, slope, bend = partials(moments, x.mean.detach(), x.var)
        innovation = (var - slope.square() * x.var).clamp(min=0)
    return scalar(x, mean, slope, bend, innovation)


def scalar(
    x: Probed, mean: Tensor, slope: Tensor, curvature: Tensor, innovation: Tensor
) -> Response:
    """Response of an elementwise function with these expectations."""
    with torch.no_grad():
        curvature = torch.nan_to_num(curvature, 0.0, 0.0, 0.0)
        rest = (innovation - (curvature * x.var).square() / 2).clamp(min=0)
        bend = Bend(curvature.to(mean.dtype), x.probes)
        probes = slope * x.probes
    if x.mean.requires_grad:
        # The value, with the expected slope as its derivative.
        mean = mean + slope * (x.mean - x.mean.detach())
    return Response(mean, probes, innovation, (bend,), rest)


def general(call: Call, seed: tuple[int, ...]) -> Any:
    """Responses of any rule: J F by forward mode, the innovation stated by the rule or pooled."""
    seen: list[Outputs] = []

    def values(*means: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        seen.append(Outputs(call.by_rule(*means), Moments))
        stated = (out.innovation for out in seen[-1].found)
        found = seen[-1].found
        beside = [out.var for out in found] + [beyond() for beyond in stated if beyond is not None]
        return tuple(out.mean for out in found), tuple(beside)

    out, pushed, beside = push(values, call.means, call.probes)
    variances, stated = beside[: len(out)], iter(beside[len(out) :])
    responses = []
    for index, (mean, F) in enumerate(zip(out, pushed, strict=True)):
        if seen[-1].found[index].innovation is not None:
            beyond = next(stated).detach()
        else:
            known = variances[index].detach()
            beyond = estimated_innovation(values, index, call.inputs, known, seed)
        responses.append(Response(mean, F.detach(), beyond, (), beyond))
    return seen[-1].filled(responses)


class _WithSlopes(torch.autograd.Function):
    """A value whose derivatives are known: one product per input in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *slopes_and_means: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes_and_means[: len(slopes_and_means) // 2])
        return value.detach()  # `view` would give a batch axis of size 1 another stride

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        return None, *[None] * len(slopes), *(gradients[0] * slope for slope in slopes)


def _expanded(call: Call) -> Response | None:
    """The response of an elementwise rule that knows its derivatives."""
    if call.rule.expanded is None or call.occurrences != len(call.inputs):
        return None
    with torch.no_grad():
        moments = [Moments(each.mean.detach(), each.var) for each in call.inputs]
        found = call.with_inputs(moments, call.rule.expanded)
        if found is NotImplemented:
            return None
        none = found.mean.new_empty((0, *found.mean.shape))
    mean: Any = _WithSlopes.apply(found.mean, *found.slopes, *call.means)
    return Response(mean, none, found.innovation, (), found.innovation, found.var)


def diagonal(call: Call, seed: Callable[[], tuple[int, ...]], *, affine: bool) -> Any:
    """Responses without probes: the rule's own moments, for independent elements.

    A seed is taken only to estimate something: operations that do without may be more or fewer.
    """
    known = _expanded(call)
    if known is not None:
        return known

    def values(*means: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return tuple(out.mean for out in Outputs(call.by_rule(*means), Moments).found), ()

    result = Outputs(call.by_rule(*call.means), Moments)
    responses = []
    for index, out in enumerate(result.found):
        var, beyond = out.var.detach(), None
        if affine:
            pass
        elif out.innovation is None:
            beyond = estimated_innovation(values, index, call.inputs, var, seed())
        else:
            beyond = out.innovation().detach()
        none = out.mean.new_empty((0, *out.mean.shape))
        responses.append(Response(out.mean, none, beyond, (), beyond, var))
    return result.filled(responses)
