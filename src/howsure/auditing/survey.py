"""One dry run that notes every operation a model calls on noisy data, with or without a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.auditing.inputs import as_input
from howsure.errors import NoRuleError
from howsure.moments.interpreter import (
    Gaussian,
    RuleInterpreter,
    input_moments,
    read,
    run,
    works_in_place,
)
from howsure.moments.rule import Rule, Target, find, operation_name
from howsure.moments.value import Args, Kwargs, certain, leaves_of, mean_of
from howsure.operations import CallSites
from howsure.trees import clone_tensors, map_leaves


@dataclass(frozen=True)
class OperationCall:
    """One operation as it was called in one module.

    Attributes:
        operation: How torch calls it, e.g. `torch.nn.functional.relu`.
        module: The dotted path of the module; "" is the model itself.
        shapes: Shapes of its random arguments.
        rule: The rule that serves it, if there is one.
        reason: Why there is no answer; "" if there is one.
    """

    operation: str
    module: str
    shapes: tuple[tuple[int, ...], ...]
    rule: Rule | None
    reason: str = ""


class Surveyor(RuleInterpreter):
    """Notes every call; where no rule helps, goes on with the plain value and variance 0."""

    def __init__(self, overrides: Mapping[Target, Rule] | None, sites: CallSites) -> None:
        super().__init__(overrides, sites)
        self.calls: Counter[OperationCall] = Counter()
        self.depth = 0

    def call(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """Runs the operation as in a pass, but notes a missing rule instead of raising."""
        outermost, self.depth = self.depth == 0, self.depth + 1
        noted = self._noted(func, args, kwargs) if outermost else None
        try:
            result = super().call(func, args, kwargs)
        except NoRuleError as error:
            if not outermost:
                raise
            self.calls[self._noted(func, args, kwargs, error.reason)] += 1
            result = self._plain(func, args, kwargs)
        else:
            if noted is not None:
                self.calls[noted] += 1
        finally:
            self.depth -= 1
        return result

    def _noted(self, func: Target, args: Args, kwargs: Kwargs, reason: str = "") -> OperationCall:
        shapes = tuple(tuple(g.moments_now.mean.shape) for g in leaves_of((args, kwargs), Gaussian))
        found = find(func, self.overrides)
        return OperationCall(
            operation_name(func), self.sites.module_path() or "", shapes, found, reason
        )

    def _plain(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """The operation on the means, as a Gaussian without variance."""
        means, options = clone_tensors(mean_of(read((args, kwargs))))
        result = map_leaves(self._certain, func(*means, **options))
        in_place = works_in_place(find(func, self.overrides), func, args, kwargs)
        if in_place and isinstance(args[0], Gaussian) and isinstance(result, Gaussian):
            args[0].write(result.read())
            return args[0]
        return result

    def _certain(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return leaf
        return self.wrap(certain(leaf))


def survey(
    model: Callable[..., object],
    x: object,
    noise_var: object = None,
    *,
    rules: Mapping[Target, Rule] | None = None,
) -> Counter[OperationCall]:
    """Every operation on noisy data in one pass of the model, with how often it was called.

    Without `noise_var`, every floating-point input counts as noisy.
    """
    surveyor = Surveyor(rules, CallSites(model))
    if noise_var is None:
        noise_var = map_leaves(_zero_if_floating, x)
    with torch.no_grad():
        try:
            run(model, x, noise_var, surveyor)
        except Exception as error:
            # Without a gap the failure is the model's own. After one it may be that of the plain
            # value that stood in, as where a model takes gradients of its own.
            if not any(call.reason for call in surveyor.calls):
                raise
            reason = f"not looked at: after an operation without a rule the model failed ({error})"
            surveyor.calls[OperationCall("the rest of the model", "", (), None, reason)] += 1
    return surveyor.calls


def _zero_if_floating(leaf: object) -> float | None:
    if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point:
        input_moments(leaf, 0.0)
        return 0.0
    return None


@dataclass(frozen=True)
class MissingRule:
    """An operation for which howsure has no rule, and where the model calls it."""

    operation: str
    module: str
    shapes: tuple[tuple[int, ...], ...]
    count: int
    reason: str

    def __str__(self) -> str:
        """One line for a table of what is missing."""
        shapes = ", ".join(str(shape) for shape in self.shapes)
        where = f"`{self.module}`" if self.module else "the model's own `forward`"
        return f"`{self.operation}` in {where}, {self.count} x, on {shapes}: {self.reason}"


def missing_rules(
    model: Callable[..., object],
    *inputs: object,
    noise_var: object = None,
    rules: Mapping[Target, Rule] | None = None,
    **named_inputs: object,
) -> list[MissingRule]:
    """Every operation without a rule that the model calls on noisy data, from one dry run.

    Inputs are given as to the model itself. An empty list means that `propagate` will run.
    """
    x = as_input(model, inputs, named_inputs, noise_var)
    return [
        MissingRule(call.operation, call.module, call.shapes, count, call.reason)
        for call, count in survey(model, x, noise_var, rules=rules).items()
        if call.reason
    ]
