"""Samples run as one batch only where a row among them has the output that it has alone."""

import pytest
import torch
from torch import nn

import howsure as hs


class Net(nn.Module):
    def __init__(self, limit):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(40, 16), nn.Tanh(), nn.Linear(16, 2))
        self.limit = limit

    def forward(self, x):
        return self.net(self.prepared(x))


class ByBrightest(Net):
    """Gray levels or numbers up to 1? What many a network asks of the whole batch."""

    def prepared(self, x):
        return x / 255 if x.max() > self.limit else x


class ByLength(Net):
    """Another way through the network for large batches."""

    def prepared(self, x):
        return 2 * x if len(x) > 64 else x


X = 0.7 * torch.rand(3, 40, generator=torch.Generator().manual_seed(1))
CASES = {"largest": (ByBrightest, 1.0), "length": (ByLength, 0.0)}


def monte_carlo(model, x, std, samples=4000):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        calls = [model(x + std * torch.randn(x.shape, generator=generator)) for _ in range(samples)]
    return torch.stack(calls).std(0)


@pytest.mark.parametrize("case", CASES)
def test_a_branch_on_the_whole_batch_is_noticed(case):
    kind, limit = CASES[case]
    model = kind(limit).eval()
    p = hs.Uncertain(model, hs.noise.std(0.1), "noise_sampling", samples=800)(X)
    assert any("influence each other" in note for note in p.notes)
    truth = monte_carlo(model, X, 0.1)
    assert bool(((p.std - truth).abs() <= 4 * p.std_error + 0.05 * truth).all())


class Squeezed(Net):
    """Loses the batch axis of one row."""

    def forward(self, x):
        return self.net(x)[:, 0].squeeze()


@pytest.mark.parametrize("options", [{}, {"rate": 0.2}, {"chunk": 10}])
def test_rows_that_stand_alone_still_run_as_one_batch(options):
    calls = []

    class Plain(Net):
        def prepared(self, x):
            calls.append(len(x))
            return x

    sure = hs.Uncertain(Plain(0.0).eval(), 0.01, "noise_sampling", samples=40, **options)
    x = torch.randn(3, 40)
    assert not sure(x).notes
    calls.clear()
    assert not sure(x).notes
    assert len(calls) <= 6  # The check is made once.


def test_a_model_that_cannot_do_with_one_row_is_left_as_it_is():
    p = hs.Uncertain(Squeezed(0.0).eval(), 0.01, "noise_sampling")(torch.randn(3, 40))
    assert p.std.shape == (3,) and not p.notes


def test_a_model_that_writes_into_its_input_is_left_as_it_is():
    class Writes(Net):
        def prepared(self, x):
            return x.mul_(2.0)

    p = hs.Uncertain(Writes(0.0).eval(), 0.01, "noise_sampling")(torch.randn(3, 40))
    assert not p.notes
