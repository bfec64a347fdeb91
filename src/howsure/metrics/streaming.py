"""Metrics that are computed at once or piece by piece, from one definition.

A metric is two steps: data to summary, summary to result. Between them summaries merge, so the
data may come in batches and from several processes:

    nll(mean, var, target)                # at once

    running = nll.stream()                # piece by piece
    for mean, var, target in batches:
        running.update(mean, var, target)
    running.merge(other).compute()

`@streamed` marks a function that returns a summary; calling the metric finishes it as well.
`@kept` marks a function that needs all values at once; its stream keeps them. It gives no gradient.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from howsure.metrics.summaries import Summary, Values

Data = ParamSpec("Data")
Result = TypeVar("Result")
Digest = TypeVar("Digest", bound=Summary)
Options = Mapping[str, object]


@dataclass(frozen=True)
class Steps(Generic[Result]):
    """The two steps of a metric.

    Attributes:
        names: Keys of the state.
        summary: What the data become.
        summarise: From options and data to the summary.
        finish: From options and the summary to the result.
    """

    names: tuple[str, ...]
    summary: type[Summary]
    summarise: Callable[..., Summary]
    finish: Callable[..., Result]


class Metric(Generic[Data, Result]):
    """A function of tensors that can also be computed piece by piece."""

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature

    def __init__(self, function: Callable[Data, Result], steps: Steps[Result]) -> None:
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.steps = steps
        self._function = function

    def __call__(self, *args: Data.args, **kwargs: Data.kwargs) -> Result:
        """The metric of all the data."""
        return self._function(*args, **kwargs)

    def stream(self, **options: object) -> Accumulator[Result]:
        """An accumulator of this metric; the options are the metric's own."""
        known = _option_names(self)
        if unknown := sorted(options.keys() - known):
            raise TypeError(
                f"`{self.__name__}` has no option `{unknown[0]}`; its options are {sorted(known)}."
            )
        # Plain values, which `merge` can compare.
        plain = {name: x.tolist() if isinstance(x, Tensor) else x for name, x in options.items()}
        return Accumulator(self, plain)

    def from_state(self, state: Mapping[str, Tensor], **options: object) -> Accumulator[Result]:
        """The accumulator whose `state()` was saved; give the same options again."""
        running = self.stream(**options)
        running.summary = self.steps.summary.from_tensors(state) if state else None
        return running

    def __reduce__(self) -> str:
        """Pickled by name, like a function."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"{self.__name__}{inspect.signature(self)}"


@dataclass(eq=False)
class Accumulator(Generic[Result]):
    """A metric of data that arrive in pieces.

    `update` and `merge` change the accumulator and return it. The result does not depend on how
    the data were split, up to rounding.
    """

    metric: Metric[..., Result]
    options: Options
    summary: Summary | None = None

    @torch.no_grad()
    def update(self, *data: Tensor, **selection: Tensor | None) -> Accumulator[Result]:
        """Adds a piece of data: the metric's tensors, and its `mask` or `weight`."""
        self._add(self.metric.steps.summarise(self.options, *data, **selection))
        return self

    def merge(self, other: Accumulator[Result]) -> Accumulator[Result]:
        """Adds what another accumulator of the same metric and options has seen."""
        if (other.metric, other.options) != (self.metric, self.options):
            raise ValueError(
                f"`{self.metric.__name__}` with options {self.options} cannot be merged with "
                f"`{other.metric.__name__}` with options {other.options}; make them equal."
            )
        if other.summary is not None:
            self._add(other.summary)
        return self

    @torch.no_grad()
    def compute(self) -> Result:
        """The metric of everything seen so far."""
        if self.summary is None:
            raise ValueError(
                f"`{self.metric.__name__}` has seen no data yet; call `update` before `compute`."
            )
        return self.metric.steps.finish(self.options, self.summary)

    def state(self) -> dict[str, Tensor]:
        """What has been seen, as plain tensors; empty before the first update."""
        return {} if self.summary is None else self.summary.tensors()

    def _add(self, summary: Summary) -> None:
        self.summary = summary if self.summary is None else self.summary.merge(summary)


def streamed(
    summary: type[Digest], finish: Callable[[Digest], Result]
) -> Callable[[Callable[Data, Digest]], Metric[Data, Result]]:
    """Makes a metric of a function from data to `summary` and of `finish` from there."""

    def decorate(function: Callable[Data, Digest]) -> Metric[Data, Result]:
        @functools.wraps(function)
        def at_once(*args: Data.args, **kwargs: Data.kwargs) -> Result:
            return finish(function(*args, **kwargs))

        steps = Steps(
            tuple(inspect.signature(summary).parameters),
            summary,
            summarise=lambda options, *data, **chosen: function(*data, **options, **chosen),
            finish=lambda options, summary: finish(summary),
        )
        metric = Metric(at_once, steps)
        returned = inspect.signature(finish).return_annotation
        metric.__signature__ = metric.__signature__.replace(return_annotation=returned)
        return metric

    return decorate


def kept(
    select: Callable[..., tuple[Tensor, ...]],
) -> Callable[[Callable[Data, Result]], Metric[Data, Result]]:
    """Makes a metric of a function that needs all values; a stream keeps what `select` returns.

    Args:
        select: The check from `checks` with which the function itself begins.
    """

    def decorate(function: Callable[Data, Result]) -> Metric[Data, Result]:
        names = _data_names(function)

        @functools.wraps(function)
        def at_once(*args: Data.args, **kwargs: Data.kwargs) -> Result:
            with torch.no_grad():
                return function(*args, **kwargs)

        def keep(_: Options, *data: Tensor, mask: Tensor | None = None) -> Values:
            # Checks that also serve sums return weights last, here all 1.
            columns = zip(names, select(*data, mask=mask), strict=False)
            # Copied, since the caller may fill the same memory with the next batch.
            return Values(({name: column.clone() for name, column in columns},))

        def finish(options: Options, values: Values) -> Result:
            return function(**values.tensors(), **options)  # pyright: ignore[reportCallIssue]

        return Metric(at_once, Steps(names, Values, keep, finish))

    return decorate


def _data_names(function: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)


def _option_names(function: Callable[..., object]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"mask", "weight"}
