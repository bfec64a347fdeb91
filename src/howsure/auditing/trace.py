"""Mean and variance statistics of every module's output: where the uncertainty grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from howsure.auditing.inputs import as_input
from howsure.moments.interpreter import Gaussian, propagate
from howsure.moments.rule import Rule, Target
from howsure.moments.value import Moments


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
    with _watched(model, rows):
        propagate(model, x, noise_var, rules=rules)
    return rows


@contextmanager
def _watched(model: nn.Module, rows: list[ModuleTrace]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(_recorder(path, rows))
        for path, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recorder(path: str, rows: list[ModuleTrace]) -> Callable[[nn.Module, object, object], None]:
    def record(module: nn.Module, args: object, output: object) -> None:
        outputs = output if isinstance(output, (tuple, list)) else [output]
        rows.extend(
            _row(path, type(module).__name__, each.read())
            for each in outputs
            if isinstance(each, Gaussian)
        )

    return record


def _row(path: str, kind: str, moments: Moments) -> ModuleTrace:
    mean, var = moments.mean.detach(), moments.var.detach()
    return ModuleTrace(
        path,
        kind,
        tuple(mean.shape),
        float(mean.mean()),
        float(mean.std(correction=0)),
        float(var.mean()),
        float(var.max()),
    )
