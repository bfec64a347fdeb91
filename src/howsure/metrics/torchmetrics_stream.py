"""Metrics batch by batch, as `torchmetrics.Metric`; imported when a stream begins.

torchmetrics joins every state by itself, over batches and over processes, by a sum or by
concatenation. Neither joins scatters, and a process without data does not know the shape of a sum.
So the state is one list of numbers, in which each batch adds its summary: for every tensor its
number of dimensions, its shape and its entries. `compute` reads and joins the summaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Generic

import torch
from torch import Tensor

from howsure.metrics.streaming import Metric, Result

try:
    import torchmetrics  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise ImportError(
        f"Streams of metrics need torchmetrics ({missing}); run `pip install 'howsure[metrics]'`, "
        "or give the metric all data at once."
    ) from missing
except Exception as broken:  # a torchvision that does not match torch raises RuntimeError here
    raise ImportError(
        f"torchmetrics is installed but does not import ({broken}); install the torchvision that "
        "matches torch or remove it, or give the metric all data at once."
    ) from broken


class Stream(torchmetrics.Metric, Generic[Result]):
    """A metric of data that arrive in batches, in one process or in several.

    The result does not depend on how the data were split, up to rounding.
    """

    full_state_update = False
    is_differentiable = False
    rows: list[Tensor] | Tensor

    def __init__(self, metric: Metric[..., Result], options: Mapping[str, object]) -> None:
        super().__init__()
        self.metric, self.options = metric, dict(options)
        # A process without data contributes an empty tensor of this dtype.
        self.set_dtype(torch.float64)
        self.add_state("rows", [], dist_reduce_fx="cat", persistent=True)

    @torch.no_grad()
    def update(self, *data: Tensor, **selection: Tensor | None) -> None:
        """Adds a batch: the metric's tensors, and its `mask` or `weight`."""
        parts = []
        for tensor in self.metric.summarize(*data, **self.options, **selection):
            header = torch.tensor([tensor.dim(), *tensor.shape], dtype=torch.float64)
            parts += [header.to(tensor.device), tensor.flatten().to(torch.float64)]
        assert isinstance(self.rows, list), "rows were still synchronized, please report this"
        self.rows.append(torch.cat(parts).to(self.device))

    @torch.no_grad()
    def compute(self) -> Result:
        """The metric of all batches, of all processes."""
        rows = self.rows if isinstance(self.rows, list) else [self.rows]
        tensors = [tensor for row in rows for tensor in _read(row)]
        if not tensors:
            raise ValueError(
                f"`{self.metric.__name__}` has seen no data yet; call `update` before `compute`."
            )
        width = self.metric.width
        batches = [tensors[k : k + width] for k in range(0, len(tensors), width)]
        return self.metric.finish(self.options, batches)

    def merge_state(self, incoming_state: dict[str, Any] | torchmetrics.Metric) -> None:
        """Adds what another stream of the same metric and options has seen, or its state."""
        if isinstance(incoming_state, Stream):
            other = incoming_state
            if (other.metric, other.options) != (self.metric, self.options):
                raise ValueError(
                    f"`{self.metric.__name__}` with options {self.options} cannot be merged with "
                    f"`{other.metric.__name__}` with options {other.options}; make them equal."
                )
        super().merge_state(incoming_state)


def _read(row: Tensor) -> Iterator[Tensor]:
    """The tensors of a row, or of several rows that were joined."""
    while len(row):
        dims = int(row[0])
        shape = [int(size) for size in row[1 : 1 + dims]]
        start, end = 1 + dims, 1 + dims + math.prod(shape)
        yield row[start:end].reshape(shape)
        row = row[end:]
