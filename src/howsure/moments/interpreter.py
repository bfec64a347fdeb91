"""Runs one operation on Gaussians: find its rule, unwrap, compute, wrap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.carrier import Gaussian, Memory, carriers, unwrap, wrap
from howsure.moments.fallback import FALLBACKS, note
from howsure.moments.rule import Rule, Target, find, operation_name
from howsure.moments.value import Args, Kwargs, Moments, certain, mean_of
from howsure.operations import CallSites
from howsure.trees import map_leaves


class RuleInterpreter:
    """Moment propagation of one pass: every operation by its rule.

    Attributes:
        overrides: Rules that win over the table's.
        sites: Tells in which module an operation was called.
        fallback: What to do without a rule: "error", "linearise" or "sample".
        fallen_back: How often each operation took the fallback, by module.
    """

    def __init__(
        self,
        overrides: Mapping[Target, Rule] | None,
        sites: CallSites,
        fallback: str = "error",
    ) -> None:
        self.overrides = overrides
        self.sites = sites
        self.fallback = fallback
        if fallback not in FALLBACKS:
            raise ValueError(f"`fallback` must be one of {list(FALLBACKS)}, not {fallback!r}.")
        self.answer_without_rule = FALLBACKS[fallback]
        self.fallen_back: Counter[tuple[Target, str]] = Counter()

    def enter(self, moments: Moments) -> Gaussian:
        """A noisy input as a carrier."""
        return wrap(moments, self)

    def call(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """The result of `func`, with carriers in place of random tensors."""
        if kwargs.get("out") is not None:
            raise self.located(func, args, kwargs, "`out=` cannot take a Gaussian; assign instead.")
        if all(carrier.constant for carrier in carriers([args, kwargs])):
            return self.of_constants(func, args, kwargs)
        rule = find(func, self.overrides)
        try:
            if rule is None:
                return self.missing(func, args, kwargs)
            if func is Tensor.__setitem__ and all(isinstance(args[i], Gaussian) for i in (0, 2)):
                args[0].accept_write_to(args[2], args[1])
            return self.written(rule, func, args, kwargs, self.apply(rule, func, args, kwargs))
        except NoRuleError as error:
            if not (rule is not None and error.can_fall_back and self.answer_without_rule):
                raise self.located(func, args, kwargs, error) from error.__cause__
        except (AttributeError, TypeError) as error:
            if "Moments" not in str(error):
                raise
            if self.answer_without_rule is None:
                raise self.located(func, args, kwargs, _UNEXPECTED) from error
        try:
            return self.missing(func, args, kwargs)
        except NoRuleError as error:
            raise self.located(func, args, kwargs, error) from error.__cause__

    def of_constants(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """An operation on tensors such as `x.new_zeros(...)`: the plain one, on the plain values.

        Their values are ordinary tensors, so writes through views reach what they should.
        """
        means = mean_of(unwrap(args))
        result = func(*means, **mean_of(unwrap(kwargs)))
        first = args[0] if args else None
        if isinstance(first, Gaussian) and isinstance(result, Tensor) and result is means[0]:
            return first
        return map_leaves(lambda leaf: self._constant(leaf, first), result)

    def _constant(self, leaf: object, source: object) -> object:
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
            return leaf
        memory = source.memory if isinstance(source, Gaussian) else None
        carrier = wrap(certain(leaf), self, memory)
        carrier.constant = True
        return carrier

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the pass was not by a rule."""
        return tuple(
            note(self.fallback, func, where, count)
            for (func, where), count in self.fallen_back.items()
        )

    def apply(self, rule: Rule, func: Target, args: Args, kwargs: Kwargs) -> object:
        """What the rule returns, wrapped; views share memory with what they view."""
        if rule.takes_carriers:
            return rule.called_as(func)(*args, **kwargs)
        result = self.moments_by(rule, func, args, kwargs)
        if rule.views_each:
            given = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
            memories = [each.memory if isinstance(each, Gaussian) else None for each in given]
            pairs = zip(result, memories, strict=True)
            return tuple(wrap(item, self, memory) for item, memory in pairs)
        wrapped = wrap(result, self, _shared_memory(rule, args, kwargs))
        if isinstance(wrapped, Gaussian):
            wrapped.constant = rule.is_construction
            wrapped.index = args[1] if func is Tensor.__getitem__ else None
        return wrapped

    def moments_by(self, rule: Rule, func: Target, args: Args, kwargs: Kwargs) -> Any:
        """What the rule gives for the moments of the arguments."""
        return rule.called_as(func)(*unwrap(args), **unwrap(kwargs))

    def written(
        self,
        rule: Rule | None,
        func: Target,
        args: Args,
        kwargs: Kwargs,
        result: object,
    ) -> object:
        """The result, stored in the first argument if the operation works in place."""
        if not works_in_place(rule, func, args, kwargs) or not isinstance(result, Gaussian):
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

    def missing(self, func: Target, args: Args, kwargs: Kwargs) -> object:
        """An operation without a rule: the fallback, or an error that names the remedy."""
        if self.answer_without_rule is not None:
            self.fallen_back[(func, self.sites.here())] += 1
            answer = wrap(self.answer_without_rule(func, args, kwargs), self)
            return self.written(find(func, self.overrides), func, args, kwargs, answer)
        if type(func).__name__ in ("ScriptMethod", "ScriptFunction"):
            raise NoRuleError(
                "TorchScript code runs below Python, where howsure cannot see what happens to the "
                "variance. Use the Python module that was scripted or traced, or "
                '`fallback="linearise"`.'
            )
        raise NoRuleError(
            f"Register a rule with `@howsure.rule({operation_name(func)}, ...)`, or accept a "
            'first-order answer with `fallback="linearise"`.'
        )

    def located(
        self, func: Target, args: Args, kwargs: Kwargs, error: str | Exception
    ) -> NoRuleError:
        """The error with operation, module path and shapes in front; added once."""
        if isinstance(error, NoRuleError) and hasattr(error, "operation"):
            return error
        located = NoRuleError(
            f"no moment rule for `{operation_name(func)}`, called in {self.sites.here()} on "
            f"{described(args, kwargs)}. {error}"
        )
        located.operation = func
        located.reason = str(error)
        return located


# A rule met moments where it takes constants only.
_UNEXPECTED = (
    "Its rule takes no Gaussian in one of these places, nor a tensor made by `x.new_tensor(...)`: "
    'use a tensor without noise there, or `fallback="linearise"`.'
)


def _shared_memory(rule: Rule, args: Args, kwargs: Kwargs) -> Memory | None:
    """The memory of the first Gaussian if the operation returns a view of it."""
    if not rule.returns_view(*args):
        return None
    first = next(carriers([args, kwargs]), None)
    return None if first is None else first.memory


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


def described(args: Args, kwargs: Kwargs) -> str:
    """The Gaussians among the arguments, by shape."""
    shapes = [f"{tuple(g.moments_now.mean.shape)}" for g in carriers([args, kwargs])]
    return (
        f"Gaussians of shapes {', '.join(shapes)}"
        if len(shapes) > 1
        else (f"a Gaussian of shape {shapes[0]}")
    )
