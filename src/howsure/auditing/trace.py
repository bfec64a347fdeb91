"""Mean and variance statistics of every module's output: where the uncertainty grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from howsure.auditing.check import as_input
from howsure.moments.interpreter import Gaussian, propagate
from howsure.moments.rule import Rule, Target


@dataclass(frozen=True)
class ModuleTrace:
    """Statistics of one output of one module.

    Attributes:
        module: Dotted path of the module.
        kind: Class name of the module.
        shape: Shape of the output.
        mean: Average of the means.
        mean_spread: Standard deviation of the means over the elements: the signal.
        var: Average variance: the noise.
        largest_var: Largest variance of an element.
    """

    module: str
    kind: str
    shape: tuple[int, ...]
    mean: float
    mean_spread: float
    var: float
    largest_var: float


def trace(
    model: nn.Module,
    *inputs: object,
    noise_var: object = None,
    rules: Mapping[Target, Rule] | None = None,
    **named_inputs: object,
) -> list[ModuleTrace]:
    """Statistics per module call, in the order in which the modules finish.

    A diagnosis: it watches the modules with forward hooks, which are gone when it returns. Inputs
    are given as to the model itself; `noise_var` is a **variance**, as in `propagate`.
    """
    x = as_input(model, inputs, named_inputs, noise_var)
    if noise_var is None:
        raise TypeError("`trace` follows a noise through the model; give its `noise_var=`.")
    rows: list[ModuleTrace] = []

    def record(path: str, module: nn.Module, output: object) -> None:
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(tensor, Gaussian):
                moments = tensor.read()
                mean, var = moments.mean.detach(), moments.var.detach()
                signal, spread = float(mean.mean()), float(mean.std(correction=0))
                noise = float(var.mean()), float(var.max())
                kind, shape = type(module).__name__, tuple(mean.shape)
                rows.append(ModuleTrace(path, kind, shape, signal, spread, *noise))

    with watch_modules(model, record):
        propagate(model, x, noise_var, rules=rules)
    return rows


@contextmanager
def watch_modules(
    model: nn.Module, receive: Callable[[str, nn.Module, object], None]
) -> Iterator[None]:
    """Calls `receive(path, module, output)` after every module; hooks go, also after an error."""

    def watch(path: str, module: nn.Module) -> Callable[[], None]:
        hook = module.register_forward_hook(lambda module, _, output: receive(path, module, output))
        return hook.remove

    removals = [watch(path, module) for path, module in model.named_modules()]
    try:
        yield
    finally:
        for remove in removals:
            remove()
