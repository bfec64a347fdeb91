"""One model: how it is built and fed; does it run, is it right without noise, what does it cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import howsure
from howsure.moments.interpreter import Gaussian
from howsure.moments.rule import operation_name
from howsure.trees import as_call, floats_of, tensors_of

NOISE_VAR = 1e-4


@dataclass(frozen=True)
class Setup:
    """A model in eval mode, its input, and the noise variance in the structure of the input."""

    model: nn.Module
    x: Any
    noise_var: Any


@dataclass(frozen=True)
class Case:
    """A named recipe; `further` marks models beyond the list that the rules were made for."""

    library: str
    family: str
    name: str
    build: Callable[[], Setup]
    further: bool = False

    @property
    def key(self) -> str:
        return f"{self.library}/{self.family}/{self.name}"

    def setup(self, seed: int = 0) -> Setup:
        """The model with random weights, the same ones every time."""
        torch.manual_seed(seed)
        made = self.build()
        made.model.eval()
        randomize_constants(made.model)
        fit_batch_norms(made.model, made.x)
        return made


def call(model: Callable[..., Any], x: Any) -> Any:
    """The plain forward pass: a tuple is positional arguments, a dict keyword arguments."""
    args, named = as_call(x)
    return model(*args, **named)


def randomize_constants(model: nn.Module, scale: float = 0.2) -> None:
    """Adds random numbers to constant parameters: scales of 1 or 1e-6, zero biases.

    Many architectures start with branches multiplied by 0 or 1e-6; an error in such a branch would
    not be seen in the output.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(scale * torch.randn_like(parameter))


def fit_batch_norms(model: nn.Module, x: Any, batch: int = 4) -> None:
    """Sets the running statistics to those of a few random inputs, as after training.

    With the initial statistics (0, 1) many untrained networks shrink their signal a hundredfold per
    layer, and the variance leaves the range of float32.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    hooks = [norm.register_forward_pre_hook(_take_statistics) for norm in norms]
    if norms:
        with torch.no_grad():
            call(model, pytree.tree_map(lambda t: torch.randn(batch, *t.shape[1:]), x))
    for hook in hooks:
        hook.remove()


def _take_statistics(norm: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    axes = [axis for axis in range(args[0].dim()) if axis != 1]
    var, mean = torch.var_mean(args[0], axes, correction=0)
    norm.running_mean.copy_(mean)
    # Channels that hardly vary must not be blown up: the network would amplify rounding errors.
    norm.running_var.copy_(var + 0.2 * var.mean())


def noisy_input(model: nn.Module, *shape: int) -> Setup:
    """A model of one tensor, with noise on all of it."""
    return Setup(model, torch.randn(*shape), NOISE_VAR)


class OperationCount(TorchFunctionMode):
    """Counts the calls that involve a Gaussian; operations on constants need no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, Gaussian) for kind in types):
            self.calls[operation_name(func)] += 1
        return func(*args, **(kwargs or {}))


TOLERANCE = 1e-4


@dataclass
class Result:
    """What coverage.json keeps of one model.

    `status`: ok; missing (an operation has no rule); wrong (a check failed); failed (any other
    exception); timeout; memory. `default` is the method that `hs.Uncertain` took by itself, or
    "failed"; `few` the same for the first four numbers of the output alone, and `few_ratio` its std
    over that of 200 samples (geometric mean).
    """

    library: str
    family: str
    name: str
    further: bool
    status: str = "ok"
    reason: str = ""
    missing: list[dict[str, str]] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    zero_noise_error: float | None = None
    std_range: tuple[float, float] | None = None
    cost_ratio: float | None = None
    plain_seconds: float | None = None
    default: str = ""
    default_notes: list[str] = field(default_factory=list)
    few: str = ""
    few_notes: list[str] = field(default_factory=list)
    few_ratio: float | None = None

    def defaults(self) -> dict[str, Any]:
        """What `hs.Uncertain` did by itself."""
        return {
            name: kept for name, kept in vars(self).items() if name.startswith(("default", "few"))
        }


def measure(case: Case, result: Result, *, repeats: int, only_defaults: bool) -> Result:
    """Fills in the result of one model; `repeats` of 0 leaves out the timing."""
    setup = case.setup()
    run_few(setup, result, run_default(setup, result))
    if only_defaults:
        return result
    with torch.no_grad():
        plain = call(setup.model, setup.x)
        count = OperationCount()
        try:
            with count:
                noisy = howsure.propagate(setup.model, setup.x, setup.noise_var)
        except howsure.NoRuleError as error:
            result.status, result.reason = "missing", str(error)
            result.missing = missing_operations(setup, error)
            return result
        finally:
            result.operations = dict(count.calls)
        check_variance(noisy, result)
        check_without_noise(setup, plain, result)
        if repeats:
            time_both(setup, repeats, result)
    return result


def run_default(setup: Setup, result: Result) -> Any:
    """What `hs.Uncertain` does without being told how: any network must run, and noise arrive."""
    try:
        found = call(howsure.Uncertain(setup.model, setup.noise_var), setup.x)
    except Exception as failure:  # the table must name this model whatever happens
        result.default, result.default_notes = "failed", [f"{failure!r}"[:300]]
        return None
    stds = [std for std in tensors_of(found.std) if std.numel()]
    is_finite = all(bool(torch.isfinite(std).all()) for std in stds)
    arrives = any(float(std.max()) > 0 for std in stds)
    result.default = found.method if is_finite and arrives else "failed"
    result.default_notes = list(found.notes)
    return found


def first_four(output: Any) -> Tensor:
    """The first numbers of the first tensor of an output, for every input."""
    return floats_of(output)[0].flatten(1)[:, :4]


def run_few(setup: Setup, result: Result, whole: Any) -> None:
    """The same with so few outputs that gradients serve, and how far it is from sampling."""
    try:
        found = call(howsure.Uncertain(setup.model, setup.noise_var, output=first_four), setup.x)
        if whole is None or whole.method != "noise_sampling":
            sampler = howsure.Uncertain(setup.model, setup.noise_var, "noise_sampling")
            whole = call(sampler, setup.x)
        ratio = found.std.double() / first_four(whole.std).double()
    except Exception as failure:  # the table must name this model whatever happens
        result.few, result.few_notes = "failed", [f"{failure!r}"[:300]]
        return
    result.few, result.few_notes = found.method, list(found.notes)
    result.few_ratio = float(ratio[ratio.isfinite() & (ratio > 0)].log().mean().exp())


def missing_operations(setup: Setup, error: howsure.NoRuleError) -> list[dict[str, str]]:
    """Every operation without a rule, from one dry run; the first of them if that fails too."""
    try:
        found = howsure.missing_rules(setup.model, setup.x, noise_var=setup.noise_var)
    except Exception as failure:  # the table must name this model whatever happens
        note = f"the dry run stopped: {failure!r}"[:300]
        return [{"operation": operation_name(error.operation), "module": "", "reason": note}]
    first = {entry.operation: entry for entry in reversed(found)}
    return [
        {"operation": name, "module": entry.module, "reason": entry.reason}
        for name, entry in first.items()
    ]


def check_variance(noisy: Any, result: Result) -> None:
    """Variances are finite, not negative, and not all zero: noise must arrive at the output."""
    variances = [var for var in tensors_of(noisy.var) if var.numel()]
    lowest = min(float(var.min()) for var in variances)
    highest = max(float(var.max()) for var in variances)
    if not all(bool(torch.isfinite(var).all()) for var in variances):
        result.status, result.reason = "wrong", "the variance is not finite"
    elif lowest < 0:
        result.status, result.reason = "wrong", f"negative variance {lowest:.3g}"
    elif highest == 0:
        result.status, result.reason = "wrong", "the variance is zero everywhere"
    else:
        result.std_range = (lowest**0.5, highest**0.5)


def check_without_noise(setup: Setup, plain: Any, result: Result) -> None:
    """With variance 0 the mean is the plain forward pass and the variance stays 0."""
    none = pytree.tree_map(lambda _: 0.0, setup.noise_var)
    silent = howsure.propagate(setup.model, setup.x, none)
    result.zero_noise_error = relative_error(silent.mean, plain)
    if not result.zero_noise_error <= TOLERANCE:
        result.status = "wrong"
        result.reason = f"zero noise is off by {result.zero_noise_error:.3g}"
    elif any(float(var.abs().max()) != 0 for var in tensors_of(silent.var) if var.numel()):
        result.status, result.reason = "wrong", "zero noise gives variance"


def relative_error(found: Any, expected: Any) -> float:
    """Largest deviation over all outputs, relative to the largest value of that output."""
    errors = [
        float((a - b).abs().max() / b.abs().max().clamp(min=torch.finfo(b.dtype).tiny))
        for a, b in zip(tensors_of(found), tensors_of(expected), strict=True)
        if b.is_floating_point() and b.numel()
    ]
    return max(errors)


def time_both(setup: Setup, repeats: int, result: Result) -> None:
    """Cost of one pass with Gaussians in plain forward passes: minima of interleaved runs."""
    calls = {
        "plain": lambda: call(setup.model, setup.x),
        "noisy": lambda: howsure.propagate(setup.model, setup.x, setup.noise_var),
    }
    rounds = [{name: seconds(each) for name, each in calls.items()} for _ in range(repeats)]
    plain, noisy = (min(times[name] for times in rounds) for name in calls)
    result.plain_seconds, result.cost_ratio = plain, noisy / plain


def seconds(function: Callable[[], Any]) -> float:
    """Processor time of this thread; that of a process with a limit on it counts whole ticks."""
    start = time.thread_time()
    function()
    return time.thread_time() - start
