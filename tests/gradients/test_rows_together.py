"""Rows that influence each other, that a model writes into, or that are kept elsewhere."""

import pytest
import torch
from sampled import WithOut, monte_carlo
from torch import nn

import howsure as hs


class Graph(nn.Module):
    """Rows are nodes: they see their neighbors."""

    def __init__(self, nodes):
        super().__init__()
        torch.manual_seed(1)
        self.register_buffer("near", torch.softmax(torch.randn(nodes, nodes), 1))
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.near @ torch.tanh(self.first(x)))


class Statistics(nn.Module):
    def __init__(self, detached):
        super().__init__()
        self.layer, self.detached = nn.Linear(6, 2), detached

    def forward(self, x):
        seen = x.detach() if self.detached else x
        return self.layer((x - seen.mean(0)) / seen.std(0))


class OverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x):
        rows = x[:, None]
        return self.attention(rows, rows, rows, need_weights=False)[0][:, 0, :2]


TOGETHER = [Graph(8), Statistics(False), Statistics(True), OverTheBatch()]


@pytest.mark.parametrize("net", TOGETHER, ids=lambda net: type(net).__name__)
def test_rows_that_influence_each_other_are_one_input(net):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    p = hs.Uncertain(net.eval(), 0.01, "gradients")(x)
    assert any("influence each other" in note for note in p.notes)
    assert float((p.std / monte_carlo(net, x, 0.1) - 1).abs().max()) < 0.2
    said = hs.Uncertain(net, 0.01, "gradients", batch_dim=None)(x)
    torch.testing.assert_close(said.std, p.std)


def test_too_many_rows_together_are_sampled():
    p = hs.Uncertain(Graph(70).eval(), 0.01, "gradients")(torch.randn(70, 6))
    assert p.method == "noise_sampling" and "too many outputs for a backward pass" in p.notes[0]


class InPlace(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.in_place = nn.Linear(70, 2), in_place

    def forward(self, x):
        if self.in_place:
            x[:, 0] = 3 * x[:, 0]
            x.sub_(0.5)
        else:
            x = torch.cat([3 * x[:, :1], x[:, 1:]], 1) - 0.5
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "mc_dropout", "linear"])
def test_a_model_may_write_into_its_input(method):
    x = torch.randn(3, 70)
    kept = x.clone()
    options = {"rate": 0.1, "placement": "before"} if method == "mc_dropout" else {}
    one, two = (
        hs.Uncertain(InPlace(in_place).eval(), 0.01, method, **options)(x)
        for in_place in (True, False)
    )
    assert torch.equal(x, kept)
    torch.testing.assert_close(one.mean, two.mean)
    torch.testing.assert_close(one.std, two.std, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_policy_with_a_hidden_state(batch):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.GRU(70, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x, state):
            y, state = self.cells(x[:, None], state)
            return self.head(y[:, 0]), state

    net, x, state = Policy().eval(), torch.randn(batch, 70), torch.zeros(1, batch, 8)
    p = hs.Uncertain(net, (0.01, None), "gradients")(x, state)
    assert p.method == "gradients" and p.std[0].shape == (batch, 3)
    assert p.std[1].shape == (1, batch, 8)
    alone = [
        hs.Uncertain(net, (0.01, None), "gradients")(x[i : i + 1], state[:, i : i + 1])
        for i in range(batch)
    ]
    torch.testing.assert_close(
        torch.cat([each.std[0] for each in alone]), p.std[0], rtol=1e-3, atol=1e-6
    )


class ReadsTheFirstRow(WithOut):
    """A plain number of the first row, which has no gradient, moves all."""

    def forward(self, x):
        return self.last(x + float(x[0, 0].detach()))


class ReadsTheLastRow(WithOut):
    def forward(self, x):
        return self.last(x + float(x[-1, 0].detach()))


@pytest.mark.parametrize("net", [ReadsTheFirstRow(), ReadsTheLastRow()], ids=["first", "last"])
@pytest.mark.parametrize("method", ["gradients", "noise_sampling"])
def test_rows_that_share_a_plain_number_are_one_input(net, method):
    x = torch.randn(3, 5)
    p = hs.Uncertain(net.eval(), 0.09, method, samples=None)(x)
    assert any("influence each other" in note for note in p.notes)
    assert ((p.std - monte_carlo(net, x, 0.3)).abs() < 5 * p.std_error).all()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.last = nn.GRUCell(4, 6), nn.Linear(6, 2)

    def forward(self, x, state):
        state = self.cell(x, state[0])
        return self.last(state), state[None]


def test_a_hidden_state_in_fit_calibrate_predict_and_audit():
    x, state = torch.randn(8, 4), torch.zeros(1, 8, 6)
    net, noise = Recurrent().eval(), (0.01, None)
    y = net(x, state)[0].detach() + 0.1 * torch.randn(8, 2)
    sure = hs.Uncertain(net, noise, output=0)
    batches = [((x, state), y)]
    assert sure.fit(batches, model="dropout", show_progress=False).rate is not None
    sure.calibrate(batches)
    assert sure.predict(batches, show_progress=False).std.shape == (8, 2)
    with pytest.raises(TypeError, match="output="):
        hs.Uncertain(net, noise).fit([((x, state), (y, state))], show_progress=False)
    with pytest.raises(ValueError, match="inside a batch"):
        hs.audit(net, (x, state), noise=noise, time_limit=5, show_progress=False)


def test_rows_that_need_no_more_points_keep_their_shares():
    """Where no row can be left out, further passes count for the rows that asked for them alone."""

    class Four(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(80, 32), nn.Tanh(), nn.Linear(32, 2))

        def forward(self, x):
            assert len(x) == 4
            return self.layers(x)

    p = hs.Uncertain(Four().eval(), 0.01, "gradients", tolerance=0.01)(torch.randn(4, 80))
    (shares,) = p.budget().elements.values()
    torch.testing.assert_close(shares.sum(2), p.data_var)
