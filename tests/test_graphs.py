"""Batches of graphs: a row for each graph, whatever stands beside it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import howsure as hs

NOISE = 0.1


class GraphNet(nn.Module):
    """Two rounds of messages and a mean over the nodes of each graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x, edge_index, batch, edge_attr=None):
        weight = 1.0 if edge_attr is None else edge_attr
        for layer in (self.first, self.second):
            x = layer(x)
            messages = x.new_zeros(x.shape).index_add(0, edge_index[1], weight * x[edge_index[0]])
            x = torch.tanh(x + messages)
        count = int(batch.max()) + 1
        total = x.new_zeros(count, 8).index_add(0, batch, x)
        return self.head(total / batch.bincount(minlength=count)[:, None])


class OfData(GraphNet):
    """The same network, which takes a batch object."""

    def forward(self, data):
        return super().forward(data.x, data.edge_index, data.batch, data.edge_attr)


def graph(nodes, seed, *, attributes=False):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
    attr = torch.rand(2 * nodes, 1, generator=generator) if attributes else None
    x = torch.randn(nodes, 3, generator=generator)
    return SimpleNamespace(x=x, edge_index=edges, edge_attr=attr, batch=torch.zeros(nodes).long())


def collate(graphs):
    """What `Batch.from_data_list` of PyTorch Geometric makes, with edges in mixed order."""
    first, parts = 0, []
    for number, one in enumerate(graphs):
        parts.append((one.x, one.edge_index + first, one.edge_attr, one.batch + number))
        first += len(one.x)
    x, edges, attr, batch = zip(*parts, strict=True)
    count = sum(e.shape[1] for e in edges)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(9))
    return SimpleNamespace(
        x=torch.cat(x),
        edge_index=torch.cat(edges, 1)[:, order],
        edge_attr=None if attr[0] is None else torch.cat(attr)[order],
        batch=torch.cat(batch),
        num_graphs=len(graphs),
    )


SIZES = (4, 9, 6, 5)


@pytest.mark.parametrize("attributes", [False, True])
@pytest.mark.parametrize("network", [GraphNet, OfData])
def test_rows_are_graphs_with_the_networks_outputs(network, attributes):
    data = collate([graph(n, n, attributes=attributes) for n in SIZES])
    model = network().eval()
    graphs = hs.Graphs(model, nodes=10, edges=20)
    with torch.no_grad():
        plain = GraphNet.forward(model, data.x, data.edge_index, data.batch, data.edge_attr)
        torch.testing.assert_close(graphs(**graphs.rows(data)), plain)


def test_the_std_of_a_graph_is_that_of_monte_carlo_and_no_matter_of_its_neighbors():
    several = [graph(n, n) for n in SIZES]
    model, data = GraphNet().eval(), collate(several)
    graphs = hs.Graphs(model, nodes=10, edges=20)
    sure = hs.Uncertain(graphs, noise={"x": hs.noise.std(NOISE)})
    p = sure(**graphs.rows(data))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        noisy = data.x + NOISE * torch.randn(4000, *data.x.shape, generator=generator)
        draws = torch.stack([model(x, data.edge_index, data.batch) for x in noisy])
    assert p.std.shape == (len(SIZES), 2)
    assert float((p.std / draws.std(0) - 1).abs().max()) < 0.1
    for number, one in enumerate(several):
        alone = sure(**graphs.rows(one))
        torch.testing.assert_close(alone.std[0], p.std[number], rtol=1e-3, atol=1e-6)


def test_fit_takes_batches_of_graphs():
    graphs = hs.Graphs(GraphNet().eval(), nodes=10, edges=20)
    held_out = []
    for start in (0, 100):
        data = collate([graph(4 + seed % 6, start + seed) for seed in range(60)])
        rows = graphs.rows(data)
        noise = torch.randn(60, 2, generator=torch.Generator().manual_seed(start))
        held_out.append((rows, graphs(**rows).detach() + 0.2 * noise))
    sure = hs.Uncertain(graphs, noise={"x": hs.noise.std(0.02)})
    sure.fit(held_out, show_progress=False)
    rows, targets = held_out[0]
    p = sure(**rows)
    assert (p.model_var > 0).all() and any("no posterior" in note for note in p.notes)
    coverage = hs.metrics.coverage(p.mean, p.total_var, targets, level=0.95)
    assert abs(float(coverage) - 0.95) < 0.05


def test_a_batch_object_given_to_the_wrapper_itself_is_refused_with_the_remedy():
    data = collate([graph(n, n) for n in SIZES])
    with pytest.raises(TypeError, match=r"hs.Graphs\(model, nodes="):
        hs.Uncertain(OfData().eval(), 0.01)(data)


def test_what_is_no_batch_of_graphs_is_refused():
    model, data = GraphNet().eval(), collate([graph(n, n) for n in SIZES])
    with pytest.raises(ValueError, match="A graph has 9 nodes, more than the 5"):
        hs.Graphs(model, nodes=5, edges=20).rows(data)
    with pytest.raises(ValueError, match="18 edges, more than the 10"):
        hs.Graphs(model, nodes=10, edges=10).rows(data)
    graphs = hs.Graphs(model, nodes=10, edges=20)
    joined = SimpleNamespace(**{**vars(data), "edge_index": torch.tensor([[0], [10]])})
    with pytest.raises(ValueError, match="joins two graphs"):
        graphs.rows(joined)
    mixed = SimpleNamespace(**{**vars(data), "batch": data.batch.flip(0)})
    with pytest.raises(ValueError, match="side by side"):
        graphs.rows(mixed)

    class OfNodes(GraphNet):
        def forward(self, x, edge_index, batch):
            return self.first(x)

    of_nodes = hs.Graphs(OfNodes().eval(), nodes=10, edges=20)
    with pytest.raises(ValueError, match="batch_dim=None"):
        of_nodes(**of_nodes.rows(data))
