"""Metrics of a whole data set by several processes, or by one in bounded memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.data.distributed.sharing import sharded, this_share
from howsure.fit.validation_data import pairs_of
from howsure.metrics import Metric
from howsure.prediction import Prediction
from howsure.trees import TensorTree, as_call
from howsure.uncertain import Uncertain

if TYPE_CHECKING:
    from howsure.metrics.torchmetrics_stream import Stream


@torch.no_grad()
def evaluate(
    sure: Uncertain,
    loader: Iterable[object],
    metrics: Mapping[str, Metric[..., object] | Stream[object]],
) -> dict[str, Any]:
    """The value of each metric over all batches of a loader, the same in every process.

    Started by `torchrun`, and after `torch.distributed.init_process_group`, each process predicts
    its share of the batches. Summaries are merged batch by batch in the loader's order, so the
    values are those of one process, bit for bit.

    Args:
        sure: The model, the same in every process.
        loader: Batches of (inputs, targets), the same in every process and not shuffled.
        metrics: By name a metric of `howsure.metrics`, or `metric.stream(**options)`. Their
            arguments are filled by name: `mean`, `var`, `target`, `error`, `uncertainty`, and for
            classes `probabilities` or `scores`.
    """
    streams = {
        name: metric.stream() if isinstance(metric, Metric) else metric
        for name, metric in metrics.items()
    }
    share = this_share()
    mine = []
    for inputs, target in _pairs(sharded(loader, share)):
        args, kwargs = as_call(inputs)
        prediction = sure(*args, **kwargs)
        mine.append({name: _row(each, prediction, target) for name, each in streams.items()})
    batches = share.joined(mine)
    if not batches:
        raise ValueError("The loader is empty; there is nothing to evaluate.")
    return {
        name: stream.value([batch[name] for batch in batches]) for name, stream in streams.items()
    }


def _pairs(loader: Iterable[object]) -> Iterator[tuple[object, Tensor]]:
    """The batches of this process; there may be none, where there are more processes."""
    batches = iter(loader)
    for first in islice(batches, 1):
        yield from pairs_of(chain([first], batches))


def _row(stream: Stream[object], prediction: Prediction, target: Tensor) -> Tensor:
    """What one batch adds to the state of a stream."""
    running = stream.metric.stream(**stream.options)
    running.update(*_arguments(stream.metric, prediction, target))
    return running.rows[0]


def _arguments(metric: Metric[..., object], prediction: Prediction, target: Tensor) -> list[Tensor]:
    mean = _one(prediction.mean)
    given = {
        "mean": lambda: mean,
        "probabilities": lambda: mean,
        "scores": lambda: mean,
        "var": lambda: _one(prediction.total_var),
        "target": lambda: target.to(mean.device),
        "error": lambda: (mean - target.to(mean)).abs(),
        "uncertainty": lambda: _one(prediction.std),
    }
    parameters = inspect.signature(metric).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if unknown := [name for name in names if name not in given]:
        raise ValueError(
            f"`{metric.__name__}` needs `{unknown[0]}`, which a prediction and its target do not "
            f"give; use metrics of {list(given)}, or `.stream()` and `update` by hand."
        )
    return [given[name]() for name in names]


def _one(tree: object) -> Tensor:
    tensors = TensorTree(tree).tensors
    if len(tensors) != 1:
        raise ValueError(
            f"The model has {len(tensors)} outputs; wrap it so that it returns the one to evaluate."
        )
    return tensors[0]
