"""Runs a trained model on Gaussians instead of numbers, every operation by its moment rule.

Read from top to bottom: the carrier, which a model sees in place of a noisy tensor; the
interpreter, which runs one operation on carriers; the noisy inputs; and `propagate`, which runs the
model.
"""

from __future__ import annotations

import contextlib
import dis
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from howsure.errors import NoRuleError
from howsure.isolation import isolated
from howsure.moments import rules as _rules  # noqa: F401  (fills the table)
from howsure.moments.fallback import FALLBACKS
from howsure.moments.rule import Kind, Rule, find, operation_name
from howsure.moments.value import (
    Args,
    Kwargs,
    Moments,
    Refused,
    Target,
    certain,
    leaves_of,
    mean_of,
    substitute,
    variance_dtype,
)
from howsure.operations import CallSites
from howsure.private_torch import OpOverload
from howsure.progress import warm_up_allocator
from howsure.trees import as_call, clone_tensors, has_values, is_tracing, map_leaves

# The carrier.


class Memory:
    """What a Gaussian and its views share: how often it was written to."""

    def __init__(self) -> None:
        self.version = 0


_NOWHERE = torch.device("meta")


class Gaussian(Tensor):
    """A tensor of independent Gaussians on its way through a model.

    It is a tensor to the model: it passes `isinstance` checks and answers shape queries. But it
    holds no data of its own: every operation on it goes to the interpreter that made it.
    """

    # Attribute names avoid those of Tensor, whose `mean` and `var` are methods.
    moments_now: Moments
    interpreter: RuleInterpreter
    memory: Memory
    version_read: int
    # Made by `new_zeros` and its like, and not yet written to: an ordinary tensor in all but name.
    constant: bool
    # The index that this view was taken with, to recognize `x[i] += y`.
    index: Any
    # Why this must not be used, if so.
    refusal: str

    @staticmethod
    def __new__(
        cls: type[Gaussian], moments: Moments, interpreter: RuleInterpreter, memory: Memory
    ) -> Gaussian:
        """An empty tensor with the mean's shape and dtype, and the moments beside it.

        Below Python it lies on the device "meta": code that asks no one before it reads memory,
        such as `y.data = x` or `to_dlpack(x)`, is then refused by torch and does not crash.
        """
        mean = moments.mean
        self = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, mean.shape, dtype=mean.dtype, device=_NOWHERE
        )
        self.moments_now = moments
        self.interpreter = interpreter
        self.memory = memory
        self.version_read = memory.version
        self.constant = False
        self.index = None
        self.refusal = ""
        return self

    def read(self) -> Moments:
        """The moments; an error if a view of the same memory was written to since."""
        if self.refusal:
            raise NoRuleError(self.refusal, can_fall_back=False)
        if self.version_read != self.memory.version:
            raise NoRuleError(
                "This tensor shares memory with another one that was changed in place, and "
                "howsure does not follow writes through views. Use the out-of-place form of the "
                "operation in the model, e.g. `x = x + y` for `x += y`."
            )
        return self.moments_now

    def write(self, moments: Moments) -> None:
        """Replaces the moments, as an in-place operation does."""
        if moments.mean.shape != self.moments_now.mean.shape:
            raise NoRuleError(
                "An in-place operation would change the shape from "
                f"{tuple(self.moments_now.mean.shape)} to {tuple(moments.mean.shape)}; use its "
                "out-of-place form."
            )
        self.moments_now = moments
        self.constant = False
        self.memory.version += 1
        self.version_read = self.memory.version

    def accept_write_to(self, view: Gaussian, index: object) -> None:
        """Takes note of `x[index] += y`: a write to that very view, followed by `x[index] = view`.

        Python evaluates `index` once, so both steps have the same object.
        """
        only_write = view.version_read == self.memory.version == self.version_read + 1
        if view.memory is self.memory and view.index is index and only_write:
            self.version_read = self.memory.version

    def __repr__(self, *, tensor_contents: object = None) -> str:
        """The shape alone: a debugger must not trigger computations."""
        return f"Gaussian(shape={tuple(self.moments_now.mean.shape)})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Carriers live inside one pass and are never stored or copied."""
        raise NoRuleError(
            "A Gaussian cannot be pickled or deep-copied; use `x.clone()` inside the model."
        )

    @classmethod
    def __torch_function__(
        cls, func: Target, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Hands the operation to the interpreter."""
        kwargs = kwargs or {}
        first = next(leaves_of((args, kwargs), Gaussian), None)
        if first is None:
            # A class-level query such as `Tensor.__subclasscheck__`: no data are involved.
            return NotImplemented
        return first.interpreter.call(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: object, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> NoReturn:
        """Reached only from below Python: compiled C++ or scripted code, where no rule applies."""
        error = NoRuleError(
            f"`{func}` was called on a Gaussian from compiled code (TorchScript, a C++ extension "
            "or a custom autograd function), where howsure cannot see what happens to the "
            "variance. Use the Python function in its place, or register a rule for the compiled "
            "operation with `@howsure.rule(op, ...)`."
        )
        # Compiled code may turn the error into one of its own.
        for gaussian in leaves_of((args, kwargs), Gaussian):
            gaussian.interpreter.below_python = error
        raise error


def read(tree: object) -> Any:
    """Arguments with moments in place of carriers."""
    return substitute(tree, Gaussian, Gaussian.read)


# The interpreter.


class RuleInterpreter:
    """Moment propagation of one pass: every operation by its rule.

    Attributes:
        overrides: Rules that win over the table's.
        sites: Tells in which module an operation was called.
        fallback: What to do without a rule: "error", "linearize" or "sample".
        fallen_back: How often each operation took the fallback, by module.
        below_python: The error of an operation that was called from compiled code.
    """

    def __init__(
        self, overrides: Mapping[Target, Rule] | None, sites: CallSites, fallback: str = "error"
    ) -> None:
        if fallback not in FALLBACKS:
            raise ValueError(f"`fallback` must be one of {list(FALLBACKS)}, not {fallback!r}.")
        self.overrides = overrides
        self.sites = sites
        self.fallback = fallback
        self.fallen_back: Counter[tuple[Target, str]] = Counter()
        self.below_python: NoRuleError | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the pass was not by a rule."""
        done = {"linearize": "linearized", "sample": "sampled"}.get(self.fallback)
        return tuple(
            f"`{operation_name(func)}` has no rule and was {done} in {where}, {count} x."
            for (func, where), count in self.fallen_back.items()
        )

    def enter(self, moments: Moments) -> Gaussian:
        """A noisy input as a carrier."""
        return self.wrap(moments)

    def wrap(self, result: object, memory: Memory | None = None) -> Any:
        """A rule's result with carriers in place of moments; views share `memory`."""

        def carry(leaf: Moments | Refused) -> Gaussian:
            if isinstance(leaf, Moments):
                return Gaussian(leaf, self, memory or Memory())
            refused = Gaussian(Moments(leaf.value, leaf.value), self, Memory())
            refused.refusal = leaf.reason
            return refused

        return substitute(result, (Moments, Refused), carry)

    def call(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """The result of `func`, with carriers in place of random tensors."""
        try:
            if all(gaussian.constant for gaussian in leaves_of((args, kwargs), Gaussian)):
                return self.of_constants(func, args, kwargs)
            return self.of_gaussians(func, args, kwargs)
        except NoRuleError as error:
            raise self.located(func, args, kwargs, error) from error.__cause__

    def of_constants(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """An operation on tensors such as `x.new_zeros(...)`: the plain one, on the plain values.

        Their values are ordinary tensors, so writes through views reach what they should.
        """
        first = args[0] if args and isinstance(args[0], Gaussian) else None
        means, options = mean_of(read((args, kwargs)))
        result = func(*means, **options)
        if first is not None and isinstance(result, Tensor) and result is means[0]:
            return first

        def carry(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
                return leaf
            carrier = self.wrap(certain(leaf), None if first is None else first.memory)
            carrier.constant = True
            return carrier

        return map_leaves(carry, result)

    def of_gaussians(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """The operation by its rule, or by the fallback; stored where it works in place."""
        if kwargs.get("out") is not None:
            raise NoRuleError("`out=` cannot take a Gaussian; assign instead.")
        rule = find(func, self.overrides)
        if rule is None:
            result = self.without_rule(func, args, kwargs)
        else:
            try:
                result = self.by_rule(rule, func, args, kwargs)
            except NoRuleError as error:
                if self.fallback == "error" or not error.can_fall_back:
                    raise
                result = self.without_rule(func, args, kwargs)
            except AttributeError as error:
                if not isinstance(error.obj, Moments):
                    raise
                result = self.without_rule(func, args, kwargs, error)
            except TypeError as error:
                if rule.kind is Kind.COMPOSITE:
                    raise
                # The call itself may be wrong, or its rule takes no Gaussian in one of its places.
                values, options = clone_tensors(mean_of(read((args, kwargs))))
                func(*values, **options)
                result = self.without_rule(func, args, kwargs, error)
        if not (isinstance(result, Gaussian) and works_in_place(rule, func, args, kwargs)):
            return result
        target = args[0] if args else kwargs["input"]
        if not isinstance(target, Gaussian):
            raise NoRuleError(
                "A Gaussian cannot be written into a constant tensor; start from "
                "`x.new_zeros(...)` or `torch.zeros_like(x)` of the noisy tensor."
            )
        if target is not result:
            target.write(result.read())
        return target

    def by_rule(self, rule: Rule, func: Target, args: Args, kwargs: Kwargs) -> object:
        """What the rule returns, wrapped; views share memory with what they view."""
        if rule.kind is Kind.COMPOSITE:  # it is handed the Gaussians, not their moments
            return rule.called_as(func)(*args, **kwargs)
        if func is Tensor.__setitem__ and all(isinstance(args[i], Gaussian) for i in (0, 2)):
            args[0].accept_write_to(args[2], args[1])
        result = self.moments_by(rule, func, args, kwargs)
        if rule.views_each:
            given = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
            return tuple(
                self.wrap(item, source.memory if isinstance(source, Gaussian) else None)
                for item, source in zip(result, given, strict=True)
            )
        is_view = rule.returns_view(*args)
        viewed = next(leaves_of((args, kwargs), Gaussian), None) if is_view else None
        wrapped = self.wrap(result, None if viewed is None else viewed.memory)
        if isinstance(wrapped, Gaussian):
            wrapped.constant = rule.kind is Kind.CONSTRUCTION
            wrapped.index = args[1] if func is Tensor.__getitem__ else None
        return wrapped

    def moments_by(self, rule: Rule, func: Target, args: Args, kwargs: Kwargs) -> Any:
        """What the rule gives for the moments of the arguments."""
        return rule.called_as(func)(*read(args), **read(kwargs))

    def without_rule(
        self, func: Target, args: Args, kwargs: Kwargs, cause: Exception | None = None
    ) -> object:
        """The fallback's answer, or an error that names the remedy.

        `cause` is the error of a rule that met a Gaussian where it takes constants only.
        """
        answer = FALLBACKS[self.fallback]
        if answer is not None:
            self.fallen_back[(func, self.sites.here())] += 1
            return self.wrap(answer(func, *read((args, kwargs))))
        if cause is not None:
            raise NoRuleError(
                "Its rule takes no Gaussian as one of these arguments, nor a tensor made by "
                '`x.new_tensor(...)`: use a tensor without noise there, or `fallback="linearize"`.'
            ) from cause
        if type(func).__name__ in ("ScriptMethod", "ScriptFunction"):
            raise NoRuleError(
                "TorchScript code runs below Python, where howsure cannot see what happens to the "
                "variance. Use the Python module that was scripted or traced, or "
                '`fallback="linearize"`.'
            )
        if isinstance(func, OpOverload):
            raise NoRuleError(
                "Programs have rules as `torch.export` makes them, and after "
                "`run_decompositions({})`; decomposed further, operations lose theirs. Export "
                'again, or use the Python module or `fallback="linearize"`.'
            )
        raise NoRuleError(
            f"Register a rule with `@howsure.rule({operation_name(func)}, ...)`, or accept a "
            'first-order answer with `fallback="linearize"`.'
        )

    def located(self, func: Target, args: Args, kwargs: Kwargs, error: NoRuleError) -> NoRuleError:
        """The error with operation, module path and shapes in front; added once."""
        if hasattr(error, "operation"):
            return error
        gaussians = list(leaves_of((args, kwargs), Gaussian))
        shapes = ", ".join(str(tuple(g.moments_now.mean.shape)) for g in gaussians)
        kind = "a Gaussian of shape" if len(gaussians) == 1 else "Gaussians of shapes"
        located = NoRuleError(
            f"no moment rule for `{operation_name(func)}`, called in {self.sites.here()} on "
            f"{kind} {shapes}. {error}"
        )
        located.operation = func
        located.reason = str(error)
        return located


_AUGMENTED = {"__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__"}


def works_in_place(rule: Rule | None, func: Target, args: Args, kwargs: Kwargs) -> bool:
    """Whether the call changes its first argument: `relu_`, `+=`, `inplace=True`, `x[i] = y`."""
    name = getattr(func, "__name__", "").split(".")[0]
    if name in _AUGMENTED or name == "__setitem__":
        return True
    if name.endswith("_") and not name.endswith("__"):
        return True
    if "inplace" in kwargs:
        return bool(kwargs["inplace"])
    position = rule.inplace_position if rule else None
    return position is not None and len(args) > position and bool(args[position])


# Noisy inputs.


def add_noise(x: object, noise_var: Any, make: Callable[[Moments], object], name: str = "x") -> Any:
    """`x` with every tensor that has a noise variance replaced by `make(moments)`.

    `noise_var` has the structure of `x`, with a number, a tensor or `None` (no noise) for each
    tensor; a dict may leave out the inputs without noise.
    """
    if noise_var is None:
        return x
    if isinstance(x, Tensor):
        return make(input_moments(x, noise_var, name))
    if isinstance(x, Mapping) and isinstance(noise_var, Mapping):
        unknown = [key for key in noise_var if key not in x]
        if unknown:
            raise ValueError(
                f"`noise_var` names {unknown[0]!r}, which is not among the inputs {list(x)}."
            )
        return {
            key: add_noise(item, noise_var.get(key), make, f"{name}[{key!r}]")
            for key, item in x.items()
        }
    if isinstance(x, Sequence) and isinstance(noise_var, Sequence) and not isinstance(x, str):
        if len(x) != len(noise_var):
            raise ValueError(
                f"`{name}` has {len(x)} parts but `noise_var` has {len(noise_var)}; give one "
                "variance, or None, for each."
            )
        items = [
            add_noise(item, var, make, f"{name}[{i}]")
            for i, (item, var) in enumerate(zip(x, noise_var, strict=True))
        ]
        constructor: Any = type(x)
        return constructor(*items) if hasattr(x, "_fields") else constructor(items)
    raise TypeError(
        f"`noise_var` must have the structure of `{name}`, with one variance (or None) for each "
        f"tensor; `{name}` is a {type(x).__name__} and its variance a {type(noise_var).__name__}."
    )


def input_moments(x: Tensor, noise_var: float | Tensor, name: str = "x") -> Moments:
    """`x` with its sensor's variance, broadcast to its shape; an error says what does not fit."""
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"`{name}` is {x.dtype}, and only floating-point inputs can carry noise; convert it "
            "as the model's preprocessing does, or give it the variance None."
        )
    var = torch.as_tensor(noise_var, dtype=variance_dtype(x.dtype), device=x.device)
    is_finite, is_negative = True, False
    if isinstance(noise_var, (int, float)):
        is_finite, is_negative = math.isfinite(noise_var), noise_var < 0
    elif has_values(var):
        is_finite, is_negative = bool(torch.isfinite(var).all()), bool((var < 0).any())
    if not is_finite:
        raise ValueError("`noise_var` contains NaN or infinity; a variance must be finite.")
    if is_negative:
        raise ValueError(
            "`noise_var` contains a negative number; it is a variance, the square of the "
            "sensor's standard deviation, and must be 0 or more."
        )
    if has_values(x) and not bool(torch.isfinite(x).all()):
        raise ValueError(f"`{name}` contains NaN or infinity; every input must be finite.")
    try:
        return Moments(x, var.expand(x.shape))
    except RuntimeError:
        raise ValueError(
            f"`noise_var` of shape {tuple(var.shape)} does not broadcast to `{name}` of shape "
            f"{tuple(x.shape)}; a variance per channel of an image has shape (C, 1, 1)."
        ) from None


# The model.


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
        fallback: For operations without a rule: "error"; "linearize" (first order in the noise,
            and masks and orders frozen at the mean); "sample" (256 draws). The result's `notes`
            name every operation that took it.
        rules: Rules that win over the registered ones, by operation.

    Raises:
        NoRuleError: If an operation has no rule; `missing_rules` lists all of them at once.

    Examples:
        >>> out = hs.propagate(torch.nn.ReLU(), torch.tensor([0.0]), 1.0)
        >>> out.mean  # of a standard normal, rectified: 1 / sqrt(2 pi)
        tensor([0.3989])
    """
    interpreter = RuleInterpreter(rules, CallSites(model), fallback)
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    # Weights made in inference mode have no gradients to pass.
    has_inference_weights = any(weight.is_inference() for weight in weights)
    with torch.no_grad() if has_inference_weights else contextlib.nullcontext():
        output = run(model, x, noise_var, interpreter)
    return outcome(output, interpreter.notes)


def run(
    model: Callable[..., object], x: object, noise_var: Any, interpreter: RuleInterpreter
) -> object:
    """The model's output, with carriers where it is random."""
    _refuse_train_mode(model)
    warm_up_allocator()
    args, kwargs = as_call(x, model)
    if type(x) is tuple and not isinstance(noise_var, tuple | list) and noise_var is not None:
        raise TypeError(
            f"`x` has {len(x)} positional inputs, so `noise_var` must be a tuple of {len(x)} "
            "variances, with None for inputs without noise."
        )
    if kwargs:
        kwargs = add_noise(kwargs, noise_var, interpreter.enter)
    elif type(x) is tuple:
        args = add_noise(args, tuple(noise_var or [None] * len(args)), interpreter.enter)
    else:
        args = (add_noise(args[0], noise_var, interpreter.enter),)
    try:
        with python_only():
            return isolated(model)(*args, **kwargs)
    except NoRuleError:
        raise
    except BufferError as error:
        raise NoRuleError(
            "`to_dlpack(x)` hands out the memory of a Gaussian, and it has none. Keep the model in "
            "torch, or move this step behind `propagate`."
        ) from error
    except RuntimeError as error:
        if interpreter.below_python is not None:
            raise interpreter.below_python from error
        name = _assigned_attribute(error)
        if name not in ("data", "grad"):
            raise
        raise NoRuleError(
            f"`y.{name} = x` puts a Gaussian into the memory of another tensor, and a Gaussian has "
            "none. Write `y = x` in the model."
        ) from error


def _assigned_attribute(error: Exception) -> str | None:
    """The attribute whose assignment raised the error, if that is what did."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    assert innermost is not None
    for instruction in dis.get_instructions(innermost.tb_frame.f_code):
        if instruction.offset == innermost.tb_lasti and instruction.opname == "STORE_ATTR":
            return instruction.argval
    return None


@contextlib.contextmanager
def python_only() -> Iterator[None]:
    """Inside, models run in Python, without questions that no random value can answer.

    Distributions do not check whether their parameters are valid, which the plain network has
    done, and what `torch.compile` made runs uncompiled.
    """
    is_checking = torch.distributions.Distribution._validate_args
    is_compiling = "torch._dynamo" in sys.modules and not is_tracing()
    stance = torch.compiler.set_stance("force_eager") if is_compiling else contextlib.nullcontext()
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with stance:
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(is_checking)


def _refuse_train_mode(model: Callable[..., object]) -> None:
    """A batch norm in train mode would count this pass in its statistics before its rule acts."""
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        # A frozen TorchScript module has no mode any more.
        is_training = getattr(module, "training", False)
        if is_training and isinstance(module, nn.modules.batchnorm._NormBase):
            raise NoRuleError(
                f"`{path or type(module).__name__}` is in train mode, where a norm layer mixes "
                "the statistics of the batch into every element. Call `model.eval()`."
            )


def outcome(output: object, notes: tuple[str, ...] = ()) -> Propagated:
    """Means and variances of a model's output; a tensor that is not random has variance 0."""

    def mean(leaf: object) -> object:
        return leaf.read().mean if isinstance(leaf, Gaussian) else leaf

    def var(leaf: object) -> object:
        if isinstance(leaf, Gaussian):
            return leaf.read().var
        if isinstance(leaf, Tensor):
            dtype = leaf.dtype if leaf.dtype.is_floating_point else torch.get_default_dtype()
            return torch.zeros(leaf.shape, dtype=variance_dtype(dtype), device=leaf.device)
        return None if leaf is None else 0.0

    return Propagated(map_leaves(mean, output), map_leaves(var, output), notes=notes)
