"""Runs a trained model on Gaussians instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from howsure import rules as _rules  # noqa: F401  (fills the table)
from howsure.call_site import CallSites
from howsure.errors import NoRuleError
from howsure.freed_memory import keep_freed_memory
from howsure.gaussian import Gaussian
from howsure.inputs import noisy
from howsure.interpreter import RuleInterpreter
from howsure.moments import Moments, variance_dtype
from howsure.registry import Rule, Target
from howsure.structure import as_call, map_leaves


@dataclass(frozen=True, eq=False)
class Propagated(Moments):
    """Moments of a model's output; `mean` and `var` have the structure of that output."""

    mean: Any
    var: Any
    notes: tuple[str, ...] = ()


def propagate(
    model: Callable[..., Any],
    x: Any,
    noise_var: Any,
    *,
    fallback: str = "error",
    rules: Mapping[Target, Rule] | None = None,
) -> Propagated:
    """Mean and variance of the model's output for inputs x ~ N(x, noise_var).

    Assumed density filtering (Loquercio, Segu & Scaramuzza 2020, Eq. 2 to 7; Gast & Roth 2018):
    every operation maps means and variances to means and variances, as if the elements of its
    input were independent. The model is not changed, and gradients pass through.

    Args:
        model: Any module or function made of torch operations, in eval mode.
        x: Its input: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        noise_var: The sensor's **variance**: a number, or a tensor that broadcasts to `x`. For
            several inputs the same structure as `x`, with `None` for inputs without noise.
        fallback: For operations without a rule: "error"; "linearise" (first order in the noise,
            and masks and orders frozen at the mean); "sample" (256 draws). The result's `notes`
            name every operation that took it.
        rules: Rules that win over the registered ones, by operation.

    Raises:
        NoRuleError: If an operation has no rule; `missing_rules` lists all of them at once.
    """
    interpreter = RuleInterpreter(rules, CallSites(model), fallback)
    output = run(model, x, noise_var, interpreter)
    return outcome(output, interpreter.notes)


def run(model: Callable[..., Any], x: Any, noise_var: Any, interpreter: RuleInterpreter) -> Any:
    """The model's output, with carriers where it is random."""
    _refuse_train_mode(model)
    keep_freed_memory()
    args, kwargs = as_call(x)
    if type(x) is tuple and not isinstance(noise_var, tuple | list) and noise_var is not None:
        raise TypeError(
            f"`x` has {len(x)} positional inputs, so `noise_var` must be a tuple of {len(x)} "
            "variances, with None for inputs without noise."
        )

    if kwargs:
        return model(**noisy(kwargs, noise_var, interpreter.enter))
    if type(x) is tuple:
        return model(*noisy(args, tuple(noise_var or [None] * len(args)), interpreter.enter))
    return model(noisy(args[0], noise_var, interpreter.enter))


def _refuse_train_mode(model: Callable[..., Any]) -> None:
    """A batch norm in train mode would count this pass in its statistics before its rule acts."""
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if module.training and isinstance(module, nn.modules.batchnorm._NormBase):
            raise NoRuleError(
                f"`{path or type(module).__name__}` is in train mode, where a norm layer mixes "
                "the statistics of the batch into every element. Call `model.eval()`."
            )


def outcome(output: Any, notes: tuple[str, ...] = ()) -> Propagated:
    """Means and variances of a model's output; a tensor that is not random has variance 0."""
    return Propagated(map_leaves(_mean, output), map_leaves(_var, output), notes=notes)


def _mean(leaf: Any) -> Any:
    return leaf.read().mean if isinstance(leaf, Gaussian) else leaf


def _var(leaf: Any) -> Any:
    if isinstance(leaf, Gaussian):
        return leaf.read().var
    if isinstance(leaf, Tensor):
        dtype = leaf.dtype if leaf.dtype.is_floating_point else torch.get_default_dtype()
        return torch.zeros(leaf.shape, dtype=variance_dtype(dtype), device=leaf.device)
    return None if leaf is None else 0.0
