"""One method for inputs of one shape, traced and compiled."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from howsure.deploy.compiling.backward import COMPILED
from howsure.deploy.compiling.tracing import traced
from howsure.estimators.variances import note_doubts
from howsure.methods import Method
from howsure.methods.gradients import POINTS, why_no_gradients
from howsure.moments.numerics import NARROW, widths_noted
from howsure.prediction import Prediction, concatenated
from howsure.probe import probe_model
from howsure.problem import Layout, Sources, has_rows, rows_of
from howsure.progress import keep_freed_memory
from howsure.setup import Setup
from howsure.trees import Slot, TensorTree, map_leaves, rebuild_mapping

Run = Callable[[object], Prediction]
# The largest value that a number may have, and what is raised beyond.
Limit = tuple[float, type[RuntimeError]]

# Elements of noise that run at once: activations take some hundred times as much memory.
_ELEMENTS = 2**21


class NotCompilableError(RuntimeError):
    """The method or the model's output has no compiled form."""


class TooWideError(RuntimeError):
    """Gaussians are not as narrow as the program takes them for."""


class DoubtfulError(RuntimeError):
    """Gradients at the points do not tell the variance of some inputs: eager looks, and samples."""


def compiled_method(setup: Setup, method: Method, x: object, *, may_assume: bool = True) -> Run:
    """The method as a compiled function of inputs that are shaped like `x`.

    Weights become constants, which lets the compiler fold batch norms into convolutions and lay
    weights out for the processor. If it may, and all Gaussians are narrow for `x`, the program
    takes them for narrow, and raises `TooWideError` for inputs for which they are not.
    """
    if method.draws_noise:
        raise NotCompilableError(f'the method "{method}" draws noise in every call')
    with widths_noted() as widths:
        method(setup, x)  # Checks the model and finds dropout sites, outside the trace.
    narrow = may_assume and all(float(width) <= NARROW for width in widths)
    rows = _rows_at_once(setup, x) if method.has_budget else None
    if rows is None:
        return _in_one_program(setup, method, x, assume_narrow=narrow)
    # One program serves all parts of a large batch.
    run = _in_one_program(setup, method, _rows(x, slice(0, rows)), assume_narrow=narrow)

    def in_parts(x: object) -> Prediction:
        parts = [slice(s, s + rows) for s in range(0, rows_of(x), rows)]
        return concatenated([run(_rows(x, part)) for part in parts], maps=True)

    return in_parts


def _rows_at_once(setup: Setup, x: object) -> int | None:
    """How many inputs a part has, all parts equally many; `None` if there is one part.

    Checks that gradients are what eager takes, too.
    """
    reason = why_no_gradients(setup, x)
    if reason is not None:
        raise NotCompilableError(f'"gradients" cannot be used: {reason}')
    if setup.tolerance is not None:
        raise NotCompilableError("with a `tolerance`, inputs take as many points as each needs")
    probe = setup.once(probe_model, x)
    if probe.layout is not Layout.BATCHED or setup.batch_dim != 0 or not has_rows(x, 0):
        return None
    sources, count = Sources.of(setup, x, probe.layout), rows_of(x)
    points = max(setup.samples or POINTS, sources.design.points)
    fitting = max(1, _ELEMENTS // max(1, points * sources.elements))
    rows = next(size for size in range(min(fitting, count), 0, -1) if count % size == 0)
    return None if rows == count else rows


def _rows(x: object, rows: slice) -> object:
    """Some rows of every tensor that has any."""
    return map_leaves(
        lambda leaf: leaf[rows] if isinstance(leaf, Tensor) and leaf.dim() else leaf, x
    )


def _in_one_program(setup: Setup, method: Method, x: object, *, assume_narrow: bool) -> Run:
    leaves, spec = pytree.tree_flatten(x)
    found: list[TensorTree] = []
    checks: dict[Limit, Tensor] = {}

    def flat(*tensors: Tensor) -> list[Tensor]:
        filled = pytree.tree_unflatten(_with(leaves, tensors), spec)
        with (
            widths_noted() if assume_narrow else nullcontext([]) as widths,
            note_doubts() as doubts,
        ):
            found.append(TensorTree(method(setup, filled)))
        noted = {(NARROW, TooWideError): widths, (0.0, DoubtfulError): doubts}
        checks.clear()
        checks.update({limit: torch.stack(each).max() for limit, each in noted.items() if each})
        return [*found[-1].tensors, *checks.values()]

    graph = traced(flat, tensors_of(leaves), COMPILED)
    _check_floating(found[-1])
    run = compiled_graph(graph, tensors_of(leaves))
    return _runner(run, found[-1], list(checks))


def compiled_graph(
    graph: GraphModule, tensors: Sequence[Tensor]
) -> Callable[..., Sequence[Tensor]]:
    """The graph as machine code.

    The graph is flat already, so it goes to the compiler itself. `torch.compile` would take the
    weights for inputs: from it, "freezing" neither folds batch norms nor lays weights out.
    """
    import torch._inductor  # takes a second and 60 MB, which only compiling needs

    keep_freed_memory()
    examples: list[Any] = [tensor.contiguous() for tensor in tensors]
    # Kernels called from C++, not one by one from Python: half the time of an LSTM's program, and
    # sooner compiled.
    options = {"freezing": True, "cpp_wrapper": True}
    with torch.no_grad():
        run: Any = torch._inductor.compile(graph, examples, options=options)
        run(*examples)  # Some compilers begin only now; errors belong here.
    return run


def _runner(
    run: Callable[..., Sequence[Tensor]], parts: TensorTree, limits: Sequence[Limit]
) -> Run:
    """Calls the program, whose last outputs are numbers that must not exceed their limits."""
    filled = _filler(parts.template) or (lambda values: parts.template)

    def predict(x: object) -> Prediction:
        # Compiled code reads memory in the order it was compiled for.
        inputs = [tensor.contiguous() for tensor in tensors_of(pytree.tree_leaves(x))]
        with torch.no_grad():
            outputs = list(run(*inputs))
        for most, error in reversed(limits):
            if not float(outputs.pop()) <= most:
                raise error
        return filled(outputs)

    return predict


def _filler(template: object) -> Callable[[Sequence[object]], Any] | None:
    """Puts values into a template, looked at only once; `None` if it has no place for any."""
    if isinstance(template, Slot):
        return operator.itemgetter(template.index)
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        fields = [(f.name, getattr(template, f.name)) for f in dataclasses.fields(template)]
        parts = {name: part for name, each in fields if (part := _filler(each)) is not None}
        filled = functools.partial(dataclasses.replace, template)
        return (
            (lambda values: filled(**{n: p(values) for n, p in parts.items()})) if parts else None
        )
    leaves, spec = pytree.tree_flatten(template)
    if spec.is_leaf() and isinstance(template, Mapping):
        found = {key: part for key, each in template.items() if (part := _filler(each)) is not None}
        rest = dict(template)
        return (
            (
                lambda values: rebuild_mapping(
                    template, rest | {k: p(values) for k, p in found.items()}
                )
            )
            if found
            else None
        )
    if spec.is_leaf():
        return None
    own = [_filler(leaf) for leaf in leaves]
    if not any(own):
        return None
    pairs = list(zip(own, leaves, strict=True))
    return lambda values: spec.unflatten([p(values) if p else leaf for p, leaf in pairs])


def _check_floating(parts: TensorTree) -> None:
    """A tensor that is not floating point would keep the value it had in the trace."""
    left: list[Tensor] = []
    map_leaves(lambda leaf: left.append(leaf) if isinstance(leaf, Tensor) else None, parts.template)
    if left:
        raise NotCompilableError(f"the model returns a tensor of {left[0].dtype}")


def tensors_of(leaves: Sequence[object]) -> list[Tensor]:
    """The tensors among the leaves of an input."""
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _with(leaves: Sequence[object], tensors: Sequence[Tensor]) -> list[object]:
    remaining = iter(tensors)
    return [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
