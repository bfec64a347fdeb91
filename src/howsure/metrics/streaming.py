"""Metrics that are computed at once or batch by batch, from one definition.

A metric is two steps: data to summary, summary to result. Summaries of batches join, so that

    nll(mean, var, target)                # at once: plain torch

    running = nll.stream()                # batch by batch: a torchmetrics.Metric
    for mean, var, target in batches:
        running.update(mean, var, target)
    running.compute()

`@streamed` marks a function that returns a summary; calling the metric finishes it as well.
`@kept` marks a function that needs all values at once; its stream keeps them. It gives no gradient.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from howsure.metrics.torchmetrics_stream import Stream

Data = ParamSpec("Data")
Result = TypeVar("Result")

# Rows per block, in `Sums.over`.
_BLOCK = 8192


class Sums(NamedTuple):
    """Weighted sums of scores, and the weight: enough for every mean."""

    total: Tensor  # (...)
    weight: Tensor  # (), or broadcasts to total

    @classmethod
    def of(
        cls,
        score: Tensor,  # (n, ...)
        weight: Tensor,  # (n,)
    ) -> Sums:
        """The sums over the first dimension."""
        return cls(torch.tensordot(weight, score, dims=1), weight.sum())

    @classmethod
    def over(
        cls,
        score: Callable[..., Tensor],  # (block, ...) of each column to (block, ...)
        weight: Tensor,  # (n,)
        *columns: Tensor,  # (n, ...)
    ) -> Sums:
        """The sums of `score(*columns)` by blocks, so that wide temporaries stay in the cache."""
        blocks = zip(*(x.split(_BLOCK) for x in (weight, *columns)), strict=True)
        return cls.join([cls.of(score(*block), w) for w, *block in blocks])

    @classmethod
    def join(cls, parts: Sequence[Sums]) -> Sums:
        """The sums over all parts of the data, in their order."""
        total, weight = parts[0]
        for part in parts[1:]:
            total, weight = total + part.total, weight + part.weight
        return cls(total, weight)

    def mean(self) -> Tensor:
        """The total divided by the weight."""
        return self.total / self.weight

    def root_mean(self) -> Tensor:
        """The square root of the mean."""
        return self.mean().sqrt()


class Scatter(NamedTuple):
    """Weight, mean and scatter matrix of several groups of vectors."""

    weight: Tensor  # ()
    mean: Tensor  # (groups, d)
    scatter: Tensor  # (groups, d, d), sum of weight (x - mean)(x - mean)^T

    @classmethod
    def of(
        cls,
        vectors: Tensor,  # (groups, n, d)
        weight: Tensor,  # (n,)
    ) -> Scatter:
        """The moments over the second dimension, centered before they are squared."""
        total, share = weight.sum(), weight.unsqueeze(1) / weight.sum()
        mean = (share * vectors).sum(1, keepdim=True)
        # Once more around that mean, whose rounding grows with n: a constant has scatter 0.
        mean = mean + (share * (vectors - mean)).sum(1, keepdim=True)
        centered = vectors - mean
        scatter = (share * centered).transpose(1, 2) @ centered * total
        return cls(total, mean.squeeze(1), scatter)

    @classmethod
    def join(cls, parts: Sequence[Scatter]) -> Scatter:
        """The moments of the union: scatter within the parts and between their means."""
        weight, mean, scatter = (torch.stack(x) for x in zip(*parts, strict=True))
        between = cls.of(mean.transpose(0, 1), weight)
        return between._replace(scatter=between.scatter + scatter.sum(0))


Summary = TypeVar("Summary", Sums, Scatter)


class Metric(Generic[Data, Result]):
    """A function of tensors that can also be computed batch by batch.

    Attributes:
        width: Number of tensors in a summary.
        summarize: From options and a batch of data to the summary, a tuple of tensors.
        finish: From options and the summaries of all batches to the result.
    """

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature

    def __init__(
        self,
        function: Callable[Data, Result],
        width: int,
        summarize: Callable[..., Sequence[Tensor]],
        finish: Callable[..., Result],
    ) -> None:
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.width, self.summarize, self.finish = width, summarize, finish
        self._function = function

    def __call__(self, *args: Data.args, **kwargs: Data.kwargs) -> Result:
        """The metric of all the data."""
        return self._function(*args, **kwargs)

    def stream(self, **options: object) -> Stream[Result]:
        """The metric as a `torchmetrics.Metric`; the options are the metric's own."""
        from howsure.metrics.torchmetrics_stream import Stream

        parameters = self.__signature__.parameters.values()
        known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"mask", "weight"}
        if unknown := sorted(options.keys() - known):
            raise TypeError(
                f"`{self.__name__}` has no option `{unknown[0]}`; its options are {sorted(known)}."
            )
        # Plain values, which can be compared when streams are merged.
        plain = {name: x.tolist() if isinstance(x, Tensor) else x for name, x in options.items()}
        return Stream(self, plain)

    def __reduce__(self) -> str:
        """Pickled by name, like a function."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"{self.__name__}{self.__signature__}"


def streamed(
    kind: type[Summary], finish: Callable[[Summary], Result]
) -> Callable[[Callable[Data, Summary]], Metric[Data, Result]]:
    """Makes a metric of a function from data to a summary and of `finish` from there."""

    def decorate(function: Callable[Data, Summary]) -> Metric[Data, Result]:
        @functools.wraps(function)
        def at_once(*args: Data.args, **kwargs: Data.kwargs) -> Result:
            return finish(function(*args, **kwargs))

        def join(_: object, batches: list[list[Tensor]]) -> Result:
            for tensors in zip(*batches, strict=True):
                _check_equal(tensor.shape for tensor in tensors)
            parts: Any = [kind(*batch) for batch in batches]
            return finish(kind.join(parts))

        metric = Metric(
            at_once,
            len(kind._fields),
            summarize=lambda options, *data, **chosen: function(*data, **options, **chosen),
            finish=join,
        )
        returned = inspect.signature(finish).return_annotation
        metric.__signature__ = metric.__signature__.replace(return_annotation=returned)
        return metric

    return decorate


def kept(
    check: Callable[..., list[Tensor]],
) -> Callable[[Callable[Data, Result]], Metric[Data, Result]]:
    """Makes a metric of a function that needs all values; a stream keeps what `check` returns.

    Args:
        check: The function of `checks` with which the metric itself begins.
    """

    def decorate(function: Callable[Data, Result]) -> Metric[Data, Result]:
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]

        @functools.wraps(function)
        def at_once(*args: Data.args, **kwargs: Data.kwargs) -> Result:
            with torch.no_grad():
                return function(*args, **kwargs)

        def keep(_: object, *data: Tensor, mask: Tensor | None = None) -> list[Tensor]:
            return check(mask, **dict(zip(names, data, strict=True)))[:-1]

        def finish(options: dict[str, object], batches: list[list[Tensor]]) -> Result:
            for column in zip(*batches, strict=True):
                _check_equal(values.shape[1:] for values in column)
            columns = (torch.cat(column) for column in zip(*batches, strict=True))
            return function(*columns, **options)  # pyright: ignore[reportCallIssue]

        return Metric(at_once, len(names), keep, finish)

    return decorate


def _check_equal(shapes: Iterable[torch.Size]) -> None:
    first, *others = dict.fromkeys(shapes)
    for other in others:
        raise ValueError(
            f"Batches of shape {tuple(first)} and {tuple(other)} cannot be merged; use the same "
            "options and the same number of classes or components for every batch."
        )
