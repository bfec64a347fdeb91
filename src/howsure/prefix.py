"""What every chunk of samples computes alike: the operations before the first dropout mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from howsure.call_site import CallSites
from howsure.interpreter import RuleInterpreter
from howsure.registry import Rule, Target


class Prefix:
    """Results of the operations before the first mask, in the order of their calls.

    The first pass fills it, those after it read from it: a model without masks takes the same
    operations in every pass.
    """

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.position = 0
        self.is_open = False

    def start(self) -> None:
        """A pass begins."""
        self.position, self.is_open = 0, True

    def close(self) -> None:
        """A mask was used: from now on passes differ."""
        self.is_open = False

    def result(self, compute: Callable[[], Any]) -> Any:
        """The result of the next operation."""
        if not self.is_open:
            return compute()
        if self.position == len(self.results):
            self.results.append(compute())
        self.position += 1
        return self.results[self.position - 1]


class PrefixInterpreter(RuleInterpreter):
    """Moment propagation that does not repeat what an earlier pass has done before its masks."""

    def __init__(
        self,
        overrides: Mapping[Target, Rule] | None,
        sites: CallSites,
        fallback: str,
        prefix: Prefix,
    ) -> None:
        super().__init__(overrides, sites, fallback)
        self.prefix = prefix

    def moments_by(
        self,
        rule: Rule,
        formula: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a formula gives, or has given."""
        compute = partial(super().moments_by, rule, formula, args, kwargs)
        # New tensors are there to be written to, in each pass from the beginning.
        return compute() if rule.family == "construction" else self.prefix.result(compute)
