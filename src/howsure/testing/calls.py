"""Runs an operation and its rule on a sample, as functions of the random arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from howsure.moments.interpreter import Gaussian, RuleInterpreter, read
from howsure.moments.rule import Rule, Sample, Target
from howsure.moments.value import Moments, leaves_of, substitute, variance_dtype
from howsure.operations import CallSites


class Call:
    """A sample with its random arguments taken out, so that others can be put in.

    An argument that occurs twice is one random variable: `x * x` stays a square.
    """

    def __init__(self, sample: Sample, dtype: torch.dtype = torch.float64) -> None:
        self.arguments = (sample.args, sample.kwargs)
        self.dtype = dtype
        by_identity = {id(moments): moments for moments in leaves_of(self.arguments, Moments)}
        self.moments: list[Moments] = list(by_identity.values())

    @property
    def means(self) -> list[Tensor]:
        """The means of the random arguments, in the call's dtype."""
        return [m.mean.to(self.dtype) for m in self.moments]

    @property
    def variances(self) -> list[Tensor]:
        """Their variances."""
        return [m.var.to(variance_dtype(self.dtype)) for m in self.moments]

    def arguments_with(self, values: Sequence[object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with `values` in place of the random ones."""
        pairs = zip(self.moments, values, strict=True)
        by_identity = {id(moments): value for moments, value in pairs}

        def replace(leaf: Moments | Tensor) -> object:
            if isinstance(leaf, Moments):
                return by_identity[id(leaf)]
            return leaf.to(self.dtype) if leaf.dtype.is_floating_point else leaf

        return substitute(self.arguments, (Moments, Tensor), replace)

    def plain(self, target: Target, values: list[Tensor]) -> list[Tensor]:
        """What the torch operation itself returns."""
        args, kwargs = self.arguments_with([value.clone() for value in values])
        result = target(*args, **kwargs)
        # An assignment returns nothing: its result is what it wrote into.
        return tensors(args[0] if result is None else result)

    def ruled(
        self, rule: Rule, means: list[Tensor], variances: list[Tensor], target: Target | None = None
    ) -> list[Moments]:
        """What the rule returns, called through the carrier as in a model."""
        called = target or rule.targets[0]
        interpreter = RuleInterpreter({called: rule}, CallSites(called))
        pairs = zip(means, variances, strict=True)
        carriers = [interpreter.wrap(Moments(mean, var)) for mean, var in pairs]
        args, kwargs = self.arguments_with(carriers)
        result = interpreter.call(called, args, kwargs)
        return moments(read(args[0] if result is None else result))


def tensors(result: object) -> list[Tensor]:
    """All tensors of numbers in a result, in order; sizes and indices are not random."""
    return [tensor for tensor in leaves_of(result, Tensor) if tensor.dtype.is_floating_point]


def moments(result: object) -> list[Moments]:
    """All moments of a result, in order; a constant tensor has variance 0."""
    if isinstance(result, (Moments, Gaussian)):
        return [read(result)]
    if isinstance(result, Tensor):
        numbers = result.dtype.is_floating_point
        return [Moments(result, torch.zeros_like(result))] if numbers else []
    items = result if isinstance(result, (tuple, list)) else ()
    return [moment for item in items for moment in moments(item)]
