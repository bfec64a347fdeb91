"""Metrics that are computed at once or batch by batch, from one formula.

    nll(mean, var, target)                # at once: plain torch

    running = nll.stream()                # batch by batch: a torchmetrics.Metric
    for mean, var, target in batches:
        running.update(mean, var, target)
    running.compute()

A metric is a formula under a decorator. Its signature is what users call; its body gets what the
`check` makes of the data, the chosen entries `(n, ...)` in float64. Mask and weight are applied
outside of it.

- `@mean_over(check)`: the formula gives the score of each entry, the metric is their mean.
- `@summary_over(check, kind, finish)`: its values are summed up into `Sums` or a `Scatter`, which
  join over batches, and `finish` makes the result.
- `@values_over(check)`: it needs all entries at once; a stream keeps them. There is no gradient.
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
Check = Callable[..., list[Tensor]]


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
    def join(cls, parts: Sequence[Sums]) -> Sums:
        """The sums over all parts of the data, in their order."""
        total, weight = (functools.reduce(torch.add, x) for x in zip(*parts, strict=True))
        return cls(total, weight)

    def mean(self) -> Tensor:
        """The total divided by the weight."""
        return self.total / self.weight


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
        finish: The metric, from its options and the summaries of all batches.
        width: The number of tensors in the summary of a batch.

    Examples:
        >>> running = hs.metrics.mae.stream()
        >>> running.update(torch.tensor([1.0]), torch.tensor([2.0]))
        >>> running.update(torch.tensor([5.0]), torch.tensor([2.0]))
        >>> running.compute()
        tensor(2., dtype=torch.float64)
    """

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature

    def __init__(
        self,
        formula: Callable[Data, object],
        check: Check,
        summarize: Callable[..., Sequence[Tensor]],
        finish: Callable[..., Result],
        width: int | None = None,
        returns: object = None,
    ) -> None:
        functools.update_wrapper(self, formula)
        signature = inspect.signature(formula)
        returns = returns or signature.return_annotation
        self.__signature__ = signature.replace(return_annotation=returns)
        parameters = signature.parameters.values()
        self._data = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._options = {p.name for p in parameters} - {*self._data, "mask", "weight"}
        self._check, self._summarize, self.finish = check, summarize, finish
        self.width = width or len(self._data)

    def __call__(self, *args: Data.args, **kwargs: Data.kwargs) -> Result:
        """The metric of all the data."""
        options = {name: kwargs[name] for name in self._options & kwargs.keys()}
        return self.finish(options, [self.summarize(*args, **kwargs)])

    def summarize(self, *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        """The summary of a batch of data: a few tensors."""
        try:
            arguments = self.__signature__.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.__name__}() {error}") from None
        data = {name: arguments.pop(name) for name in self._data}
        selection = arguments.pop("mask", None), arguments.pop("weight", None)
        # Where `vectors` has its components.
        place = {"dim": arguments["dim"]} if "dim" in arguments else {}
        *entries, weight = self._check(*selection, **place, **data)
        return self._summarize(entries, weight, arguments)

    def stream(self, **options: object) -> Stream[Result]:
        """The metric as a `torchmetrics.Metric`; the options are the metric's own."""
        from howsure.metrics.torchmetrics_stream import Stream

        if unknown := sorted(options.keys() - self._options):
            raise TypeError(
                f"`{self.__name__}` has no option `{unknown[0]}`; its options are "
                f"{sorted(self._options)}."
            )
        # Plain values, which can be compared when streams are merged.
        plain = {name: x.tolist() if isinstance(x, Tensor) else x for name, x in options.items()}
        return Stream(self, plain)

    def __reduce__(self) -> str:
        """Pickled by name, like a function."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"{self.__name__}{self.__signature__}"


def summary_over(
    check: Check,
    kind: type[Summary],
    finish: Callable[[Summary], Result],
    sum_up: Callable[[Any, Tensor], Summary] | None = None,
) -> Callable[[Callable[Data, Any]], Metric[Data, Result]]:
    """Makes a metric of a formula whose values are summed up, `kind.of(values, weight)`.

    Args:
        check: The function of `checks` that the data go through.
        kind: How summaries of batches are joined.
        finish: From the summary of all data to the result.
        sum_up: In place of `kind.of`.
    """

    def decorate(formula: Callable[Data, Any]) -> Metric[Data, Result]:
        def summarize(entries: list[Tensor], weight: Tensor, options: dict[str, Any]) -> Summary:
            values = formula(*entries, **options)  # pyright: ignore[reportCallIssue]
            return (sum_up or kind.of)(values, weight)

        def result(_: object, batches: Sequence[Sequence[Tensor]]) -> Result:
            for tensors in zip(*batches, strict=True):
                _check_equal(tensor.shape for tensor in tensors)
            parts: Any = [kind(*batch) for batch in batches]
            return finish(kind.join(parts))

        returns = inspect.signature(finish).return_annotation
        return Metric(formula, check, summarize, result, len(kind._fields), returns)

    return decorate


def mean_over(
    check: Check, finish: Callable[[Tensor], Tensor] | None = None
) -> Callable[[Callable[Data, Tensor]], Metric[Data, Tensor]]:
    """Makes a metric of a formula for the score of each entry: their mean, or `finish` of it."""

    def result(sums: Sums) -> Tensor:
        return sums.mean() if finish is None else finish(sums.mean())

    return summary_over(check, Sums, result)


def values_over(check: Check) -> Callable[[Callable[Data, Result]], Metric[Data, Result]]:
    """Makes a metric of a formula that needs all entries at once; a stream keeps them."""

    def decorate(formula: Callable[Data, Result]) -> Metric[Data, Result]:
        def summarize(entries: list[Tensor], *_: object) -> list[Tensor]:
            return [entry.detach() for entry in entries]

        def result(options: dict[str, Any], batches: Sequence[Sequence[Tensor]]) -> Result:
            columns = [list(column) for column in zip(*batches, strict=True)]
            for column in columns:
                _check_equal(values.shape[1:] for values in column)
            whole = (torch.cat(column) if len(column) > 1 else column[0] for column in columns)
            return formula(*whole, **options)  # pyright: ignore[reportCallIssue]

        return Metric(formula, check, summarize, result)

    return decorate


def _check_equal(shapes: Iterable[torch.Size]) -> None:
    first, *others = dict.fromkeys(shapes)
    for other in others:
        raise ValueError(
            f"Batches of shape {tuple(first)} and {tuple(other)} cannot be merged; use the same "
            "options and the same number of classes or components for every batch."
        )
