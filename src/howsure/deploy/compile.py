"""`Uncertain.compile()`: methods as machine code, kept by input shape, with eager as the fallback.

A method is traced into plain operations, backward passes included, and handed to torch's compiler.
Every tensor that the model or a setting holds is an input of the program (`deploy/state.py`).

Only convolutions need constant kernels to be fast: the compiler lays those out for the processor
and folds batch norms into them (DroNet by "adf": 4.4 times as fast as eager, with kernels as inputs
1.0 times). Programs with convolutions keep copies of the tensors; every call compares all bits, and
a difference has the program made anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from howsure.deploy.agreement import allowed, differences
from howsure.deploy.state import State
from howsure.deploy.tracing import COMPILED, held_constants, lift_constants, traced
from howsure.errors import warn
from howsure.estimators.variances import record_unreliable
from howsure.methods.gradients import POINTS, is_sampled_eagerly, why_no_gradients
from howsure.methods.method import Method, Uses
from howsure.moments.numerics import NARROW, widths_noted
from howsure.prediction import Prediction, concatenated
from howsure.private_torch import compile_graph, pytree
from howsure.probe import probe_gradients, probe_model
from howsure.problem import Layout, Sources, has_rows
from howsure.progress import warm_up_allocator
from howsure.setup import Setup
from howsure.trees import Slot, TensorTree, batch_size, fill_slots, map_leaves, tensors_of

# From the tensors of an input and those of the state to a prediction.
Run = Callable[[Sequence[Tensor], Sequence[Tensor]], Prediction]
# The method, the structure of the input, and shapes, dtypes and devices of its tensors.
_Key = tuple[Method, str, tuple[Hashable, ...]]
# The largest value that a number may have, and what is raised beyond.
_Limit = tuple[float, type[RuntimeError]]

# Elements of noise that run at once: activations take some hundred times as much memory.
_ELEMENTS = 2**21
# Compiled code adds up in another order; so many times what rounding makes is an error in it.
_WRONG = 100
_settings = attrgetter(*(field.name for field in fields(Setup) if not field.name.startswith("_")))


class NotCompilableError(RuntimeError):
    """The method or the model's output has no compiled form."""


class TooWideError(RuntimeError):
    """Gaussians are not as narrow as the program takes them for."""


class DoubtfulError(RuntimeError):
    """Gradients at the points do not tell the variance of some inputs: eager looks, and samples."""


@dataclass(frozen=True, eq=False)
class Program:
    """Compiled code, and the state of the wrapper that is frozen into it.

    Attributes:
        state: Model and settings, whose signature is that of the trace.
        run: Takes the input and the tensors of the state.
        frozen: By their number in the state, copies of the tensors that are constants of the code.
        rows: How many rows it takes at once; `None` for all of the input.
        looks: Whether eager takes inputs in which few numbers may choose otherwise, or gradients
            are hidden.
    """

    state: State
    run: Run
    frozen: dict[int, Tensor]
    rows: int | None = None
    looks: bool = False

    def fits(self, state: State) -> bool:
        """Whether all that is frozen is as it was."""
        return self.state.signature == state.signature and all(
            torch.equal(bits_of(state.tensors[number]), bits_of(copy))
            for number, copy in self.frozen.items()
        )

    def __call__(self, x: object, state: State) -> Prediction:
        """The prediction with the tensors of a state of the same signature."""
        if self.rows is None:
            return self.run(tensors_of(x), state.tensors)
        parts = [slice(start, start + self.rows) for start in range(0, batch_size(x), self.rows)]
        predictions = [self.run(tensors_of(_rows(x, part)), state.tensors) for part in parts]
        return concatenated(predictions, maps=True)


class Compiled:
    """Runs methods compiled; what cannot be compiled runs as it is, with one warning.

    Attributes:
        programs: Those that were made; `None` where a method runs uncompiled.
    """

    def __init__(self) -> None:
        self.programs: dict[_Key, Program | None] = {}

    def __call__(self, setup: Setup, method: Method, x: object) -> Prediction:
        """The method's prediction."""
        key, state = (method, *_kind(x)), read_state(setup)
        program, reason = self.programs.get(key), ""
        if key not in self.programs:
            count = sum(program is not None for program in self.programs.values())
            reason = (
                f"no program is compiled for inputs {key[2]} yet; there are {count} for other "
                "shapes. Give batches of one size, or use `drop_last=True`."
            )
        elif program is not None and not program.fits(state):
            reason = (
                "a part of the model or the settings that is frozen into the program has changed."
            )
        if reason:
            program = self._make(key, setup, method, x, reason)
            state = read_state(setup)
        # Eager refuses NaN where it must.
        is_finite = all(bool(t.isfinite().all()) for t in tensors_of(x) if t.is_floating_point())
        if program is None or not is_finite or (program.looks and is_sampled_eagerly(setup, x)):
            return method(setup, x)
        try:
            return program(x, state)
        except DoubtfulError:
            return method(setup, x)
        except TooWideError:
            prediction = method(setup, x)  # Eager refuses wrong inputs.
            reason = "the noise inside the network is larger than for earlier inputs."
            self._make(key, setup, method, x, reason, may_assume=False)
            return prediction

    def _make(
        self,
        key: _Key,
        setup: Setup,
        method: Method,
        x: object,
        reason: str,
        *,
        may_assume: bool = True,
    ) -> Program | None:
        """Makes the program of a key; `None`, with a warning, where there is none."""
        if any(program is not None for program in self.programs.values()):
            warn(f"Compiling again, which takes a while: {reason}")
        try:
            program = compile_method(setup, method, x, may_assume=may_assume)
        # The compiler's errors have no common class, and eager gives the same numbers.
        except Exception as error:
            # What is wrong with the input or the model is wrong in eager as well: let that say so.
            method(setup, x)
            lines = str(error).strip().splitlines()
            warn(
                f'The method "{method}" runs uncompiled, as before `compile()`: '
                f"{type(error).__name__}, {lines[0] if lines else 'no reason given'}"
            )
            program = None
        self.programs[key] = program
        return program


def read_state(setup: Setup) -> State:
    """The model and all settings as they are now."""
    return State(*_settings(setup))


def _kind(x: object) -> tuple[str, tuple[Hashable, ...]]:
    """What a program depends on: structure, shapes, dtypes, devices, and all that is no tensor."""
    leaves, spec = pytree.tree_flatten(x)
    kinds = [
        (leaf.shape, leaf.dtype, leaf.device)
        if isinstance(leaf, Tensor)
        else tuple(State(leaf).signature)
        for leaf in leaves
    ]
    return str(spec), tuple(kinds)


def bits_of(tensor: Tensor) -> Tensor:
    """The tensor as whole numbers, of which NaN equals itself and 0 does not equal -0."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.nbytes % 8 == 0 and flat.storage_offset() * flat.itemsize % 8 == 0:
        return flat.view(torch.int64)  # twice as fast
    return flat.view(torch.uint8)


def compile_method(setup: Setup, method: Method, x: object, *, may_assume: bool = True) -> Program:
    """The method as a program for inputs that are shaped like `x`.

    If it may, and all Gaussians are narrow for `x`, the program takes them for narrow, and raises
    `TooWideError` for inputs for which they are not.
    """
    if Uses.NOISE in method.uses:
        raise NotCompilableError(f'the method "{method}" draws noise in every call')
    with widths_noted() as widths:
        eager = method(setup, x)  # Checks the model and finds dropout sites, outside the trace.
    narrow = may_assume and all(float(width) <= NARROW for width in widths)
    # One program serves all parts of a large batch.
    rows = _rows_at_once(setup, x) if Uses.POINTS in method.uses else None
    part = x if rows is None else _rows(x, slice(0, rows))
    leaves, spec = pytree.tree_flatten(part)
    plain_leaves = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    if State(*plain_leaves).tensors:
        raise NotCompilableError("the input holds objects with tensors")
    trees: list[TensorTree] = []
    checks: dict[_Limit, Tensor] = {}

    def flat(*tensors: Tensor) -> list[Tensor]:
        remaining = iter(tensors)
        filled = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        with widths_noted() if narrow else nullcontext([]) as widths, record_unreliable() as doubts:
            trees.append(TensorTree(method(setup, pytree.tree_unflatten(filled, spec))))
        by_limit = {(NARROW, TooWideError): widths, (0.0, DoubtfulError): doubts}
        checks.clear()
        checks.update(
            {limit: torch.stack(numbers).max() for limit, numbers in by_limit.items() if numbers}
        )
        return [*trees[-1].tensors, *checks.values()]

    examples = [tensor.contiguous() for tensor in tensors_of(part)]
    graph = traced(flat, examples, COMPILED)
    prediction = trees[-1]
    if other := tensors_of(prediction.template):  # It would keep the value it had in the trace.
        raise NotCompilableError(f"the model returns a tensor of {other[0].dtype}")
    state = read_state(setup)
    constants = held_constants(graph, state.tensors)
    if any(node.target is torch.ops.aten.convolution.default for node in graph.graph.nodes):
        used = []
        frozen = {number: state.tensors[number].detach().clone() for number in constants.values()}
        # Copies in the graph as well: a compiler keeps weak references to its constants, and torch
        # swaps no tensors that have any.
        for name, number in constants.items():
            setattr(graph, name, frozen[number])
    else:
        used, frozen = list(constants.values()), {}
        lift_constants(graph, list(constants))
    tensors = [*examples, *(state.tensors[number] for number in used)]
    limits, fill = list(checks), _filler(prediction.template)

    def run(tensors: Sequence[Tensor], held: Sequence[Tensor]) -> Prediction:
        # Compiled code reads memory in the order it was compiled for; that of the state is checked.
        inputs = [tensor.contiguous() for tensor in tensors]
        with torch.no_grad():
            outputs = list(program(*inputs, *(held[number] for number in used)))
        # The last outputs are numbers that must not exceed their limits.
        for most, error in reversed(limits):
            if not float(outputs.pop()) <= most:
                raise error
        return fill(outputs)

    looks = False
    if Uses.POINTS in method.uses:
        probe = setup.cached(probe_gradients, x)
        looks = probe.chooses or probe.hides_in_rows
    made = Program(state, run, frozen, rows, looks)
    can_compare = not (looks and is_sampled_eagerly(setup, x))
    # Compilers have errors, too: with constant kernels that of torch 2.13 makes the data variance
    # of 20 masks through a ResNet-18, 8 images of 112 x 112, 12 % too small.
    for freezing in (True, False):
        program = compiled_graph(graph, tensors, freezing=freezing)
        if not can_compare or _agrees(made, x, eager):
            return made
    raise NotCompilableError("the compiler made a program with other numbers")


def _agrees(program: Program, x: object, eager: Prediction) -> bool:
    """Whether the program has the numbers of eager, or eager answers for this input."""
    try:
        compiled = program(x, program.state)
    except (DoubtfulError, TooWideError):
        return True
    expected, written = (
        [t for part in (p.mean, p.data_var, p.model_var) for t in tensors_of(part)]
        for p in (eager, compiled)
    )
    if not all(bool(tensor.isfinite().all()) for tensor in expected):
        return True
    most = [min(_WRONG * allowed(output), 0.1) for output in expected]
    pairs = zip(differences(expected, written, by_part=True), most, strict=True)
    return all(apart <= limit for apart, limit in pairs)


def _filler(template: Prediction) -> Callable[[Sequence[Tensor]], Prediction]:
    """Puts tensors into the slots of a prediction; into those of its details on demand.

    To walk through all of it takes as long as a small program runs.
    """
    parts = {field.name: getattr(template, field.name) for field in fields(template)}
    parts = {name: part for name, part in parts.items() if _has_slots(part)}
    details = parts.pop("details", None)

    def fill(values: Sequence[Tensor]) -> Prediction:
        changes: dict[str, Any] = {
            name: values[part.index] if isinstance(part, Slot) else fill_slots(part, values)
            for name, part in parts.items()
        }
        if details is not None:
            changes["details"] = functools.cache(lambda: fill_slots(details, values))
        return replace(template, **changes)

    return fill


def _has_slots(tree: object) -> bool:
    slots: list[Slot] = []
    map_leaves(lambda leaf: slots.append(leaf) if isinstance(leaf, Slot) else None, tree)
    return bool(slots)


def compiled_graph(
    graph: GraphModule, tensors: Sequence[Tensor], *, freezing: bool = True
) -> Callable[..., Sequence[Tensor]]:
    """The graph as machine code for inputs like these; `freezing` lays out constants for speed."""
    warm_up_allocator()
    inputs = [tensor.detach() for tensor in tensors]
    freezing = freezing and any(True for _ in graph.buffers())
    with torch.no_grad():
        run = compile_graph(graph, inputs, freezing=freezing)
        run(*inputs)  # Some compilers begin only now; errors belong here.
    return run


def _rows_at_once(setup: Setup, x: object) -> int | None:
    """How many inputs a part has, all parts equally many; `None` if there is one part.

    Checks that gradients are what eager takes, too.
    """
    reason = why_no_gradients(setup, x)
    if reason is not None:
        raise NotCompilableError(f'"gradients" cannot be used: {reason}')
    if setup.tolerance is not None:
        raise NotCompilableError("with a `tolerance`, the number of points depends on the input")
    probe = setup.cached(probe_model, x)
    if probe.layout is not Layout.BATCHED or setup.batch_dim != 0 or not has_rows(x, 0):
        return None
    sources, count = Sources.of(setup, x, probe.layout), batch_size(x)
    points = max(setup.samples or POINTS, sources.design.points)
    fitting = max(1, _ELEMENTS // max(1, points * sources.elements))
    rows = next(size for size in range(min(fitting, count), 0, -1) if count % size == 0)
    return None if rows == count else rows


def _rows(x: object, rows: slice) -> object:
    """Some rows of every tensor that has any."""
    return map_leaves(
        lambda leaf: leaf[rows] if isinstance(leaf, Tensor) and leaf.dim() else leaf, x
    )
