"""The carrier: what a model sees in place of a noisy tensor.

The only file that knows `__torch_function__`. A `Gaussian` is a tensor to the model (it passes
`isinstance` checks and answers shape queries), but holds no data of its own: every operation on
it goes to the interpreter that made it, which looks up the moment rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.value import Args, Kwargs, Moments, Refused


class Interpreter(Protocol):
    """Runs operations on carriers."""

    def call(self, func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """The result of `func`, with carriers in place of random tensors."""


class Memory:
    """What a Gaussian and its views share: how often it was written to."""

    def __init__(self) -> None:
        self.version = 0


_NOWHERE = torch.device("meta")


class Gaussian(Tensor):
    """A tensor of independent Gaussians on its way through a model."""

    # Attribute names avoid those of Tensor, whose `mean` and `var` are methods.
    moments_now: Moments
    interpreter: Interpreter
    memory: Memory
    version_seen: int
    # Made by `new_zeros` and its like, and not yet written to: an ordinary tensor in all but name.
    constant: bool
    # The index that this view was taken with, to recognise `x[i] += y`.
    index: Any
    # Why this must not be used, if so.
    refusal: str

    @staticmethod
    def __new__(
        cls: type[Gaussian], moments: Moments, interpreter: Interpreter, memory: Memory
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
        self.version_seen = memory.version
        self.constant = False
        self.index = None
        self.refusal = ""
        return self

    def read(self) -> Moments:
        """The moments; an error if a view of the same memory was written to since."""
        if self.refusal:
            raise NoRuleError(self.refusal, can_fall_back=False)
        if self.version_seen != self.memory.version:
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
        self.version_seen = self.memory.version

    def accept_write_to(self, view: Gaussian, index: object) -> None:
        """Takes note of `x[index] += y`: a write to that very view, followed by `x[index] = view`.

        Python evaluates `index` once, so both steps have the same object.
        """
        only_write = view.version_seen == self.memory.version == self.version_seen + 1
        if view.memory is self.memory and view.index is index and only_write:
            self.version_seen = self.memory.version

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
        cls,
        func: Callable[..., object],
        types: object,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        """Hands the operation to the interpreter."""
        kwargs = kwargs or {}
        first = next(carriers([args, kwargs]), None)
        if first is None:
            # A class-level query such as `Tensor.__subclasscheck__`: no data are involved.
            return NotImplemented
        return first.interpreter.call(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: object,
        types: object,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> NoReturn:
        """Reached only from below Python: compiled C++ or scripted code, where no rule applies."""
        raise NoRuleError(
            f"`{func}` was called on a Gaussian from compiled code (TorchScript, a C++ extension "
            "or a custom autograd function), where howsure cannot see what happens to the "
            "variance. Use the Python module in place of the compiled one, or register a rule "
            "for the compiled operation with `@howsure.rule(op, ...)`."
        )


_NESTED = (tuple, list, dict)
_NOT_PLAIN = (Gaussian, *_NESTED)


def carriers(arguments: object) -> Iterator[Gaussian]:
    """Every Gaussian in nested tuples, lists and dicts of arguments."""
    if isinstance(arguments, Gaussian):
        yield arguments
    elif isinstance(arguments, _NESTED):
        # Every operation asks: a call for each number would take as long as small rules.
        for item in arguments.values() if isinstance(arguments, dict) else arguments:
            if isinstance(item, Gaussian):
                yield item
            elif isinstance(item, _NESTED):
                yield from carriers(item)


def unwrap(arguments: object) -> Any:
    """Arguments with moments in place of carriers."""
    if isinstance(arguments, Gaussian):
        return arguments.read()
    if not isinstance(arguments, _NESTED) or isinstance(arguments, torch.Size):
        return arguments
    if isinstance(arguments, dict):
        return {key: unwrap(item) for key, item in arguments.items()}
    items = [unwrap(item) if isinstance(item, _NOT_PLAIN) else item for item in arguments]
    return type(arguments)(*items) if hasattr(arguments, "_fields") else type(arguments)(items)


def wrap(result: object, interpreter: Interpreter, memory: Memory | None = None) -> Any:
    """A rule's result with carriers in place of moments; views share `memory`."""
    if isinstance(result, Moments):
        return Gaussian(result, interpreter, memory or Memory())
    if isinstance(result, Refused):
        refused = Gaussian(Moments(result.value, result.value), interpreter, Memory())
        refused.refusal = result.reason
        return refused
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        items = [wrap(item, interpreter, memory) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result
