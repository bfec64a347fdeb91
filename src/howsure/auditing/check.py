"""How the moment rules apply to a model: operations, approximations and gaps, by module.

`check` and `missing_rules` need one dry run, which notes every operation that the model calls on
noisy data, with or without a rule. `trace` follows a noise through the modules.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from howsure.arrays import explain_failure
from howsure.errors import NoRuleError
from howsure.isolation import isolated, random_state_kept
from howsure.moments.interpreter import (
    Gaussian,
    RuleInterpreter,
    input_moments,
    propagate,
    read,
    run,
    works_in_place,
)
from howsure.moments.rule import (
    APPROXIMATE,
    LINEARIZED,
    REFUSED,
    Kind,
    Rule,
    Target,
    find,
    operation_name,
)
from howsure.moments.value import Args, Kwargs, certain, leaves_of, mean_of
from howsure.noise import Noise, note_units, variance_of
from howsure.operations import CallSites
from howsure.trees import as_call, clone_tensors, map_leaves

_MISSING = "missing"
_SCOPE = (
    'Only `propagate` and the methods "adf" and "sampled_adf" use these rules. All other methods, '
    "including the default, run the network itself; what they chose is in `p.method` and "
    "`p.notes` of a prediction."
)


@dataclass(frozen=True)
class CheckRow:
    """One operation of the model.

    Attributes:
        operation: How torch calls it.
        rule: Name of the rule that serves it; "" if none does.
        fidelity: How true that rule is: "exact", "approximate", ...; "missing" without one.
        error: Bound on the relative error of the standard deviation, for approximate rules.
        count: How often the model calls it.
        modules: Where.
        reason: For a missing rule, why and what to do.
        adds_up: Whether it sums or averages elements, as if they were independent.
    """

    operation: str
    rule: str
    fidelity: str
    error: float
    count: int
    modules: tuple[str, ...]
    reason: str = ""
    adds_up: bool = False


@dataclass(frozen=True)
class Check:
    """The operations of a model, with what howsure makes of them.

    Attributes:
        rows: The operations.
        notes: What contradicts the noise that was given.
    """

    rows: tuple[CheckRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every operation has a rule."""
        return not self.missing

    @property
    def missing(self) -> tuple[CheckRow, ...]:
        """Operations without a rule."""
        return tuple(row for row in self.rows if row.fidelity == _MISSING)

    @property
    def approximate(self) -> tuple[CheckRow, ...]:
        """Operations whose rule is not exact even for independent inputs."""
        weak = (APPROXIMATE.value, LINEARIZED.value)
        return tuple(row for row in self.rows if row.fidelity in weak)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, in sentences."""
        notes = [*self.notes, *(f"`{row.operation}`: {row.reason}" for row in self.missing)]
        if not self.rows:
            notes.append(
                "No operation has a noisy input: the inputs are integers or tokens, which carry "
                "no sensor noise. Model uncertainty needs none: see `Uncertain.fit`."
            )
        worst = max(self.approximate, key=lambda row: row.error, default=None)
        if worst is not None:
            notes.append(
                f"`{worst.operation}` is the weakest rule: its std is within {worst.error:.0%} "
                "for independent inputs."
            )
        if any(row.adds_up for row in self.rows):
            notes.append(
                "The model sums or averages values that share an input, such as residual "
                "connections and pools. Diagonal propagation takes them as independent, so its "
                "std is too small there; compare with noisy samples of your own input."
            )
        return tuple(notes)

    def __str__(self) -> str:
        """A table, for whom it holds, then the advice."""
        lines = [("operation", "calls", "rule", "fidelity", "first called in")]
        for row in self.rows:
            bound = f" ({row.error:.0%})" if row.fidelity == APPROXIMATE.value else ""
            where = row.modules[0] or "the model itself"
            lines.append((row.operation, str(row.count), row.rule, row.fidelity + bound, where))
        return "\n".join([align_columns(lines), "", _SCOPE, *self.advice])


def check(
    model: Callable[..., object],
    *inputs: object,
    noise_var: object = None,
    rules: Mapping[Target, Rule] | None = None,
    **named_inputs: object,
) -> Check:
    """A table of every operation that the model calls on noisy data, from one dry run.

    Print the result, or look at `.ok`, `.missing`, `.approximate` and `.advice`.

    Args:
        model: Any module or function made of torch operations, in eval mode.
        *inputs: Its inputs, as to the model itself: `check(model, x, h)`. A tuple as the only
            one is taken as several, a dict as inputs by name.
        noise_var: Which inputs are noisy, as in `propagate`: a variance or a noise of
            `howsure.noise`; for several inputs one for each in their structure, with `None` for
            those without noise. By default every input of floating-point numbers is.
        rules: Rules that win over the registered ones, by operation.
        **named_inputs: Inputs by name, in place of `inputs`: `check(model, image=x, motion=h)`.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
        >>> hs.check(model, torch.zeros(2, 3)).ok
        True
    """
    x, variance = _read_inputs(model, inputs, named_inputs, noise_var)
    by_operation: dict[tuple[str, str], list[OperationCall]] = {}
    with _explained(model, x):
        calls_by_rules = survey(model, x, variance, rules)
    for call in calls_by_rules:
        if call.rule is None or call.rule.kind is not Kind.VALUE_ONLY:
            by_operation.setdefault((call.operation, call.reason), []).append(call)
    rows = []
    for (operation, reason), calls in by_operation.items():
        rule = calls[0].rule
        if reason or (rule and rule.fidelity is REFUSED):
            rule = None
        row = CheckRow(
            operation,
            rule.name if rule else "",
            rule.fidelity.value if rule else _MISSING,
            rule.error if rule else 0.0,
            sum(call.count for call in calls),
            tuple(dict.fromkeys(call.module for call in calls)),
            reason,
            adds_up=rule.adds_up if rule else False,
        )
        rows.append(row)
    rows.sort(key=lambda row: (row.fidelity != _MISSING, row.operation))
    return Check(tuple(rows), note_units(noise_var, x))


@dataclass(frozen=True)
class OperationCall:
    """One operation as it was called in one module.

    Attributes:
        operation: How torch calls it, e.g. `torch.nn.functional.relu`.
        module: The dotted path of the module; "" is the model itself.
        shapes: Shapes of its random arguments.
        rule: The rule that serves it, if there is one.
        reason: Why there is no answer; "" if there is one.
        count: How often.
    """

    operation: str
    module: str
    shapes: tuple[tuple[int, ...], ...]
    rule: Rule | None
    reason: str = ""
    count: int = 1

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
) -> list[OperationCall]:
    """Every operation without a rule that the model calls on noisy data, from one dry run.

    Inputs are given as to the model itself. An empty list means that `propagate` will run.

    Examples:
        >>> [call.operation for call in hs.missing_rules(torch.sort, torch.zeros(3))]
        ['torch.sort']
    """
    x, variance = _read_inputs(model, inputs, named_inputs, noise_var)
    return [call for call in survey(model, x, variance, rules) if call.reason]


def survey(
    model: Callable[..., object],
    x: object,
    variance: object,
    rules: Mapping[Target, Rule] | None,
) -> list[OperationCall]:
    """Every operation on noisy data in one pass of the model, with how often it was called.

    Without a variance, every floating-point input counts as noisy.
    """

    def zero_if_floating(leaf: object) -> float | None:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return None
        input_moments(leaf, 0.0)
        return 0.0

    if variance is None:
        variance = map_leaves(zero_if_floating, x)
    surveyor = Surveyor(rules, CallSites(model))
    with torch.no_grad():
        try:
            run(model, x, variance, surveyor)
        except Exception as error:
            # Without a gap the failure is the model's own. After one it may be that of the plain
            # value that stood in, as where a model takes gradients of its own.
            if not any(call.reason for call in surveyor.calls):
                raise
            reason = f"not checked: the model failed after an operation without a rule ({error})"
            surveyor.calls[OperationCall("the rest of the model", "", (), None, reason)] += 1
    return [replace(call, count=count) for call, count in surveyor.calls.items()]


class Surveyor(RuleInterpreter):
    """Notes every call; where no rule helps, goes on with the plain value and variance 0."""

    def __init__(self, overrides: Mapping[Target, Rule] | None, sites: CallSites) -> None:
        super().__init__(overrides, sites)
        self.calls: Counter[OperationCall] = Counter()
        self.depth = 0

    def call(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """Runs the operation as in a pass, but notes a missing rule instead of raising."""
        if self.depth:
            return super().call(func, args, kwargs)
        # Before the call: an operation that writes in place changes the shapes.
        arguments = leaves_of((args, kwargs), Gaussian)
        shapes = tuple(tuple(gaussian.moments_now.mean.shape) for gaussian in arguments)
        module, rule = self.sites.module_path() or "", find(func, self.overrides)
        operation = OperationCall(operation_name(func), module, shapes, rule)
        self.depth += 1
        try:
            result = super().call(func, args, kwargs)
        except NoRuleError as error:
            # Counted first: the plain operation may fail, too.
            self.calls[replace(operation, reason=error.reason)] += 1
            return self._plain(func, args, kwargs)
        finally:
            self.depth -= 1
        self.calls[operation] += 1
        return result

    def _plain(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """The operation on the means, as a Gaussian without variance."""

        def as_certain(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
                return leaf
            return self.wrap(certain(leaf))

        means, options = clone_tensors(mean_of(read((args, kwargs))))
        result = map_leaves(as_certain, func(*means, **options))
        in_place = works_in_place(find(func, self.overrides), func, args, kwargs)
        if in_place and isinstance(args[0], Gaussian) and isinstance(result, Gaussian):
            args[0].write(result.read())
            return args[0]
        return result


def _read_inputs(
    model: object, args: tuple[object, ...], named: Mapping[str, object], noise_var: object
) -> tuple[object, object]:
    """The input in one piece, from arguments given as to the model itself, and its variance."""
    if args and named:
        raise TypeError("Give all inputs by position or all by keyword.")
    if not args and not named:
        raise TypeError("There is no input; give the inputs as to the model itself.")
    if noise_var is None and len(args) > 1 and type(args[-1]) in (int, float):
        raise TypeError(
            f"Is {args[-1]!r} an input or a variance? Give the variance of the noise as "
            f"`noise_var={args[-1]!r}`, and inputs that are numbers by keyword."
        )
    if noise_var is None and len(args) == 2 and _may_be_variance(model, *args):
        raise TypeError(
            "Is the second tensor an input or a variance? The model runs without it. Give the "
            "variance of the noise as `noise_var=...`, and inputs by keyword."
        )
    x = dict(named) if named else args[0] if len(args) == 1 else args
    has_noises = any(True for _ in leaves_of(noise_var, Noise))
    return x, variance_of(noise_var, x) if has_noises else noise_var


@contextmanager
def _explained(model: Any, x: object) -> Iterator[None]:
    """An error in words of ours where the model cannot run on an input of this kind."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        args, kwargs = as_call(clone_tensors(x), model)
        try:
            with torch.no_grad(), random_state_kept():
                isolated(model)(*args, **kwargs)
        except Exception:  # Any error of the model's own.
            if reason := explain_failure(model, x, None):
                raise TypeError(reason) from error
        raise


def _may_be_variance(model: object, x: object, other: object) -> bool:
    """Whether a second input fits the first as its variance, and the model needs no second one.

    In version 0.1 the second argument was the variance.
    """
    if not isinstance(x, Tensor) or not isinstance(other, Tensor) or bool((other < 0).any()):
        return False
    try:
        inspect.signature(getattr(model, "forward", model)).bind(x)  # pyright: ignore[reportArgumentType]
        return torch.broadcast_shapes(x.shape, other.shape) == x.shape
    except (TypeError, ValueError, RuntimeError):
        return False


@dataclass(frozen=True)
class ModuleTrace:
    """Mean and variance of one output of one module.

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
    """Where the uncertainty grows: statistics per module call, in the order of completion.

    A diagnosis: it observes the modules with forward hooks, which are removed when it returns.
    Inputs are given as to the model itself; `noise_var` is a **variance** or a noise, as in
    `check`.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
        >>> [step.kind for step in hs.trace(model, torch.zeros(2, 3), noise_var=0.01)]
        ['Linear', 'ReLU', 'Sequential']
    """
    x, variance = _read_inputs(model, inputs, named_inputs, noise_var)
    if variance is None:
        raise TypeError("`trace` needs the noise of the input: pass `noise_var=`.")
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

    with watch_modules(model, record), _explained(model, x):
        propagate(model, x, variance, rules=rules)
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


def align_columns(lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first line as heading."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    heading, *rows = (line.rstrip() for line in padded)
    return "\n".join([heading, "-" * len(heading), *rows])
