"""Metrics of a whole data set, by the processes that `torchrun` starts, or by one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from howsure.arrays import batched
from howsure.fit.held_out import pairs_of
from howsure.metrics import Metric
from howsure.prediction import Prediction, only_tensor
from howsure.trees import as_call

if TYPE_CHECKING:
    from howsure.metrics.torchmetrics_stream import Stream
    from howsure.uncertain import Uncertain


@torch.no_grad()
def evaluate(
    sure: Uncertain,
    loader: Iterable[object],
    metrics: Mapping[str, Metric[..., object] | Stream[object]],
) -> dict[str, Any]:
    """The value of each metric over all batches of a loader, the same in every process.

    Started by `torchrun`, and after `torch.distributed.init_process_group`, each process predicts
    its share of the batches, and torchmetrics joins what the processes have summed up.

    Args:
        sure: The model, the same in every process.
        loader: Batches of (inputs, targets), the same in every process and not shuffled.
        metrics: By name a metric of `howsure.metrics`, or `metric.stream(**options)`. Their
            arguments are filled by name: `mean`, `var`, `target`, `error`, `uncertainty`, and for
            classes `probabilities` or `scores`.

    Examples:
        >>> sure = hs.Uncertain(nn.Linear(3, 1).eval(), noise=0.01)
        >>> loader = [(torch.zeros(4, 3), torch.zeros(4, 1))]
        >>> list(hs.distributed.evaluate(sure, loader, {"rmse": hs.metrics.rmse}))
        ['rmse']
    """
    is_group = distributed.is_available() and distributed.is_initialized()
    rank, size = (distributed.get_rank(), distributed.get_world_size()) if is_group else (0, 1)
    streams = {
        name: metric.stream() if isinstance(metric, Metric) else metric.clone()
        for name, metric in metrics.items()
    }
    is_empty = True
    for batch in share_of(batched(loader), rank, size):
        is_empty = False
        ((inputs, target),) = pairs_of([batch])
        args, kwargs = as_call(inputs)
        prediction = sure(*args, **kwargs)
        for stream in streams.values():
            stream.update(*_arguments(stream.metric, prediction, target))
    if size == 1 and is_empty:
        raise ValueError("The loader is empty; there is nothing to evaluate.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method")  # a process without a batch
        return {name: stream.compute() for name, stream in streams.items()}


def share_of(loader: Iterable[object], rank: int, size: int) -> Iterable[object]:
    """The batches `rank`, `rank + size`, ... of a loader, one process's share of them.

    They are the batches that one process would have: nothing is padded, dropped or counted twice.
    Of a `DataLoader` the others' batches are not even read.

    Examples:
        >>> [list(hs.distributed.share_of([1, 2, 3, 4], rank, 2)) for rank in (0, 1)]
        [[1, 3], [2, 4]]
    """
    if size == 1:
        return loader
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return islice(iter(loader), rank, None, size)
    if loader.batch_sampler is None or not isinstance(loader.sampler, SequentialSampler):
        order = type(loader.sampler).__name__ if loader.batch_sampler else "no batches"
        raise ValueError(
            f"The loader has {order}; processes would not agree on its batches. Use "
            "`DataLoader(data, batch_size=..., shuffle=False)`, the same in every process; "
            "howsure shares out the batches itself."
        )
    return DataLoader(
        loader.dataset,
        batch_sampler=list(loader.batch_sampler)[rank::size],  # pyright: ignore[reportArgumentType]
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
    )


def _arguments(metric: Any, prediction: Prediction, target: Tensor) -> list[Tensor]:
    mean = only_tensor(prediction.mean, "mean")
    available = {
        "mean": lambda: mean,
        "probabilities": lambda: mean,
        "scores": lambda: mean,
        "var": lambda: only_tensor(prediction.total_var, "total_var"),
        "target": lambda: target.to(mean.device),
        "error": lambda: (mean - target.to(mean)).abs(),
        "uncertainty": lambda: only_tensor(prediction.std, "std"),
    }
    parameters = inspect.signature(metric).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if unknown := [name for name in names if name not in available]:
        raise ValueError(
            f"`{metric.__name__}` needs `{unknown[0]}`, which a prediction and its target do not "
            f"give; use metrics of {list(available)}, or `.stream()` and `update` by hand."
        )
    return [available[name]() for name in names]
