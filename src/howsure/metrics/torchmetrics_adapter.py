"""Any howsure metric as a `torchmetrics.Metric`. Import this module only if you want that.

    from howsure.metrics.torchmetrics_adapter import StreamedMetric

    metric = StreamedMetric(hs.metrics.nll.stream(include_constant=True))

torchmetrics reduces every state tensor by itself, which cannot merge means or scatters. So each
update is written as one self-describing row of numbers, rows are concatenated over updates and
processes, and `compute` reads and merges them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Generic

import torch
from torch import Tensor

from howsure.metrics.streaming import Accumulator, Result

try:
    import torchmetrics  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise ImportError(
        f"The adapter needs torchmetrics ({missing}); run `pip install howsure[metrics]`, or use "
        "`metric.stream()`, which needs nothing."
    ) from missing
except Exception as broken:  # a torchvision that does not match torch raises RuntimeError here
    raise ImportError(
        f"torchmetrics is installed but does not import ({broken}); install the torchvision that "
        "matches torch or remove it, or use `metric.stream()`, which needs neither."
    ) from broken


class StreamedMetric(torchmetrics.Metric, Generic[Result]):
    """A howsure metric with the interface of torchmetrics.

    Args:
        accumulator: The metric and its options, as `metric.stream(**options)`; stays unchanged.
        **kwargs: For `torchmetrics.Metric`, such as `dist_sync_on_step`.
    """

    full_state_update = False
    is_differentiable = False
    rows: list[Tensor] | Tensor

    def __init__(self, accumulator: Accumulator[Result], **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.metric = accumulator.metric
        self.options = accumulator.options
        # A process without data contributes an empty tensor of this dtype.
        self.set_dtype(torch.float64)
        self.add_state("rows", [], dist_reduce_fx="cat", persistent=True)

    def update(self, *data: Tensor, **selection: Tensor | None) -> None:
        """Adds a batch: the metric's tensors, and its `mask` or `weight`."""
        state = self.metric.stream(**self.options).update(*data, **selection).state()
        assert isinstance(self.rows, list), "rows were still synchronised, please report this"
        self.rows.append(_write([state[name] for name in self.metric.steps.names]))

    def compute(self) -> Result:
        """The metric of all batches, of all processes."""
        running = self.metric.stream(**self.options)
        rows = self.rows if isinstance(self.rows, list) else [self.rows]
        tensors = itertools.chain.from_iterable(map(_read, rows))
        names = self.metric.steps.names
        # The same iterator once per name: tensors are taken in groups, one for each name.
        for state in zip(*[tensors] * len(names), strict=True):
            part = dict(zip(names, state, strict=True))
            running.merge(self.metric.from_state(part, **self.options))
        return running.compute()


def _write(tensors: list[Tensor]) -> Tensor:
    """One row: for every tensor its number of dimensions, its shape and its entries."""
    parts = []
    for tensor in tensors:
        header = torch.tensor([tensor.dim(), *tensor.shape], dtype=torch.float64)
        parts += [header.to(tensor.device), tensor.flatten().to(torch.float64)]
    return torch.cat(parts)


def _read(row: Tensor) -> Iterator[Tensor]:
    """The tensors of a row, or of several rows that were joined."""
    while len(row):
        dims = int(row[0])
        shape = [int(size) for size in row[1 : 1 + dims]]
        start, end = 1 + dims, 1 + dims + math.prod(shape)
        yield row[start:end].reshape(shape)
        row = row[end:]
