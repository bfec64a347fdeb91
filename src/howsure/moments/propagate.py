"""Runs a trained model on Gaussians instead of numbers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from howsure.errors import NoRuleError
from howsure.isolation import isolated
from howsure.moments import rules as _rules  # noqa: F401  (fills the table)
from howsure.moments.carrier import Gaussian
from howsure.moments.interpreter import RuleInterpreter
from howsure.moments.rule import Rule, Target
from howsure.moments.value import Moments, noisy, variance_dtype
from howsure.operations import CallSites
from howsure.progress import keep_freed_memory
from howsure.trees import as_call, is_tracing, map_leaves


@dataclass(frozen=True, eq=False)
class Propagated(Moments):
    """Moments of a model's output; `mean` and `var` have the structure of that output."""

    mean: Any
    var: Any
    notes: tuple[str, ...] = ()


def propagate(
    model: Callable[..., object],
    x: object,
    noise_var: object,
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
    # Weights made in inference mode have no gradients to pass.
    with torch.no_grad() if _has_inference_weights(model) else contextlib.nullcontext():
        output = run(model, x, noise_var, interpreter)
    return outcome(output, interpreter.notes)


def _has_inference_weights(model: Callable[..., object]) -> bool:
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    return any(weight.is_inference() for weight in weights)


def run(
    model: Callable[..., object], x: object, noise_var: Any, interpreter: RuleInterpreter
) -> object:
    """The model's output, with carriers where it is random."""
    _refuse_train_mode(model)
    keep_freed_memory()
    args, kwargs = as_call(x, model)
    if type(x) is tuple and not isinstance(noise_var, tuple | list) and noise_var is not None:
        raise TypeError(
            f"`x` has {len(x)} positional inputs, so `noise_var` must be a tuple of {len(x)} "
            "variances, with None for inputs without noise."
        )

    if kwargs:
        args, kwargs = (), noisy(kwargs, noise_var, interpreter.enter)
    elif type(x) is tuple:
        args = noisy(args, tuple(noise_var or [None] * len(args)), interpreter.enter)
    else:
        args = (noisy(args[0], noise_var, interpreter.enter),)
    try:
        with python_only():
            return isolated(model)(*args, **kwargs)
    except NoRuleError:
        raise
    except (RuntimeError, BufferError) as error:
        reason = next((text for sign, text in _BELOW_PYTHON.items() if sign in str(error)), None)
        if reason is None:
            raise
        raise NoRuleError(reason) from error


# What torch says where a Gaussian meets code that asks for no rule, and what to do.
_BELOW_PYTHON = {
    "variable.set_data": "`y.data = x` puts a Gaussian into the memory of another tensor, and a "
    "Gaussian has none. Write `y = x` in the model.",
    "Cannot pack tensors on meta": "`to_dlpack(x)` hands out the memory of a Gaussian, and it has "
    "none. Keep the model in torch, or move this step behind `propagate`.",
    "attempting to assign a gradient": "`y.grad = x` takes a Gaussian for a gradient. Do this "
    "outside the model.",
    "TorchScript interpreter": "The model calls a function made by `torch.jit.script` or "
    "`torch.jit.trace`, which runs below Python, where howsure cannot see what happens to the "
    'variance. Use the Python function in its place, or `method="gradients"`.',
}


@contextlib.contextmanager
def python_only() -> Iterator[None]:
    """Inside, models run in Python, without questions that no random value can answer.

    Distributions do not check whether their parameters are valid, which the plain network has
    done, and what `torch.compile` made runs uncompiled.
    """
    checked = torch.distributions.Distribution._validate_args
    compiled = "torch._dynamo" in sys.modules and not is_tracing()
    stance = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with stance:
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)


def _refuse_train_mode(model: Callable[..., object]) -> None:
    """A batch norm in train mode would count this pass in its statistics before its rule acts."""
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        # A frozen TorchScript module has no mode any more.
        if getattr(module, "training", False) and isinstance(
            module, nn.modules.batchnorm._NormBase
        ):
            raise NoRuleError(
                f"`{path or type(module).__name__}` is in train mode, where a norm layer mixes "
                "the statistics of the batch into every element. Call `model.eval()`."
            )


def outcome(output: object, notes: tuple[str, ...] = ()) -> Propagated:
    """Means and variances of a model's output; a tensor that is not random has variance 0."""
    return Propagated(map_leaves(_mean, output), map_leaves(_var, output), notes=notes)


def _mean(leaf: object) -> object:
    return leaf.read().mean if isinstance(leaf, Gaussian) else leaf


def _var(leaf: object) -> object:
    if isinstance(leaf, Gaussian):
        return leaf.read().var
    if isinstance(leaf, Tensor):
        dtype = leaf.dtype if leaf.dtype.is_floating_point else torch.get_default_dtype()
        return torch.zeros(leaf.shape, dtype=variance_dtype(dtype), device=leaf.device)
    return None if leaf is None else 0.0
