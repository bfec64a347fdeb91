"""Batches of graphs: a row, with a variance, for every graph."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

# What PyTorch Geometric calls the parts of a graph.
_PARTS = ("x", "edge_index", "edge_attr", "batch")


class Graphs(nn.Module):
    """A graph network whose rows are graphs: `forward` returns one row for each.

    Examples:
        >>> class Sum(nn.Module):
        ...     def forward(self, x, batch):  # features of nodes, and their graphs
        ...         return x.new_zeros(2, 3).index_add(0, batch, x)
        ...
        >>> from types import SimpleNamespace as Batch  # in use, that of PyG
        >>> data = Batch(x=torch.ones(5, 3), batch=torch.tensor([0, 0, 0, 1, 1]))
        >>> data.edge_index = torch.zeros(2, 0, dtype=torch.long)
        >>> graphs = hs.Graphs(Sum().eval(), nodes=4, edges=4)
        >>> sure = hs.Uncertain(graphs, noise={"x": hs.noise.std(0.1)})
        >>> sure(**graphs.rows(data)).std.shape
        torch.Size([2, 3])

    A batch has `x` (nodes, features), `edge_index` (2, edges), `batch` (the graph of every node)
    and perhaps `edge_attr`, as a `Batch` of PyTorch Geometric. Rows have a fixed number of nodes
    and edges, of which a graph fills as many as it has, so that its result does not depend on the
    graphs beside it.

    Args:
        model: The trained network, in eval mode, with one output row for each graph. It takes a
            batch, or some of `x`, `edge_index`, `edge_attr` and `batch` as arguments of that name.
        nodes: How many nodes the largest graph may have.
        edges: How many edges the largest graph may have.
    """

    def __init__(self, model: nn.Module, *, nodes: int, edges: int) -> None:
        super().__init__()
        self.model, self.nodes, self.edges = model, nodes, edges
        names = list(inspect.signature(model.forward).parameters)
        self.names = [name for name in names if name in _PARTS] if "x" in names else None
        self.train(model.training)

    def rows(self, data: Any) -> dict[str, Tensor]:
        """A batch with a row for each graph, to be given to the model by keyword.

        `x` is (graphs, nodes, features), `edges` (graphs, edges, 2) with the numbers of nodes in
        their graph and -1 where there is no edge, `sizes` (graphs,) the number of nodes; and
        `edge_attr`, (graphs, edges, features), if the batch has it.
        """
        batch = getattr(data, "batch", None)
        if batch is None:
            batch = torch.zeros(len(data.x), dtype=torch.long, device=data.x.device)
        if bool((batch.diff() < 0).any()):
            raise ValueError("The nodes of a graph are not side by side: sort them by `batch`.")
        count = int(getattr(data, "num_graphs", None) or batch.max() + 1)
        sizes = batch.bincount(minlength=count)
        first = sizes.cumsum(0) - sizes
        sources, targets = data.edge_index
        if bool((batch[sources] != batch[targets]).any()):
            raise ValueError("An edge joins two graphs, so they are not independent rows.")
        lengths = batch[sources].bincount(minlength=count)
        for kind, most, present in (("nodes", self.nodes, sizes), ("edges", self.edges, lengths)):
            if len(present) and int(present.max()) > most:
                raise ValueError(
                    f"A graph has {int(present.max())} {kind}, more than the {most} of "
                    f"`hs.Graphs(model, {kind}={most})`; give a larger number."
                )
        x = data.x.new_zeros(count, self.nodes, *data.x.shape[1:])
        x[batch, torch.arange(len(batch), device=batch.device) - first[batch]] = data.x
        order = batch[sources].argsort(stable=True)
        owner = batch[sources][order]
        slot = torch.arange(len(order), device=order.device) - (lengths.cumsum(0) - lengths)[owner]
        edges = batch.new_full((count, self.edges, 2), -1)
        edges[owner, slot] = (data.edge_index[:, order] - first[owner]).mT
        rows = {"x": x, "edges": edges, "sizes": sizes}
        attributes = getattr(data, "edge_attr", None)
        if attributes is not None:
            rows["edge_attr"] = attributes.new_zeros(count, self.edges, *attributes.shape[1:])
            rows["edge_attr"][owner, slot] = attributes[order]
        return rows

    def forward(
        self, x: Tensor, edges: Tensor, sizes: Tensor, edge_attr: Tensor | None = None
    ) -> Any:
        """What the network returns for the graphs as one batch."""
        is_node = torch.arange(self.nodes, device=x.device) < sizes[:, None]
        is_edge = edges[..., 0] >= 0
        first = sizes.cumsum(0) - sizes
        parts = {
            "x": x[is_node],
            "edge_index": (edges + first[:, None, None])[is_edge].mT,
            "edge_attr": None if edge_attr is None else edge_attr[is_edge],
            "batch": is_node.nonzero()[:, 0],
        }
        if self.names is not None:
            output = self.model(**{name: parts[name] for name in self.names})
        else:
            ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
            output = self.model(SimpleNamespace(**parts, num_graphs=len(x), ptr=ptr))
        if isinstance(output, Tensor) and len(output) != len(x):
            raise ValueError(
                f"The network returns {len(output)} rows for {len(x)} graphs; its outputs are not "
                "one row for each graph. For outputs of nodes, wrap the network itself with "
                "`batch_dim=None`."
            )
        return output
