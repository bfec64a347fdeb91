"""Samples in chunks: what comes before the first mask is computed once, all else as before."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.errors import NoRuleError
from howsure.moments import prefix
from howsure.moments.rule import find


class Prepared(nn.Module):
    """Work before the first mask of every kind that keeps state: views, in place, a new buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        buffer = x.new_zeros(x.shape)
        buffer += 1
        offset = x.new_zeros(len(x), 2)
        offset += 1
        buffer[:, 1:] = torch.sin(x)[:, 1:]
        buffer[:, :2] += x[:, :2]
        hidden = self.first(buffer)
        hidden.mul_(0.5)
        return self.last(torch.relu_(hidden)) + offset + x[:, :2] * x[:, 2:4]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Prepared().eval()


def test_chunks_do_not_change_the_result(net):
    x, options = torch.randn(3, 6), {"rate": 0.2, "samples": 12, "method": "sampled_adf"}
    whole = hs.Uncertain(net, 0.05, chunk=12, **options)(x)
    for chunk in (1, 5):
        parts = hs.Uncertain(net, 0.05, chunk=chunk, **options)(x)
        torch.testing.assert_close(parts.mean, whole.mean)
        torch.testing.assert_close(parts.data_var, whole.data_var)
        torch.testing.assert_close(parts.model_var, whole.model_var)
        again = hs.Uncertain(net, 0.05, chunk=chunk, **options)(x)
        assert torch.equal(parts.total_var, again.total_var)


class Refused(nn.Module):
    """A comparison, which has no rule and takes the fallback, before a square layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        bent = torch.where(x > 0, x, 0.1 * x)
        return self.last(torch.relu(self.first(bent)))


class SameInput(nn.Module):
    """A result that is its input, compared with it after the mask."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        same = x.float()
        return self.last(torch.relu(self.first(x))) + (x - same)


class Written(nn.Module):
    """Plain numbers about the input, written to by the model."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        known = torch.isfinite(x)
        known.logical_not_()
        return self.last(torch.relu(self.first(x))) + known * 1.0


@pytest.mark.parametrize("kind", [Refused, SameInput, Written])
def test_what_cannot_be_kept_is_not(kind):
    torch.manual_seed(0)
    net, x = kind().eval(), torch.randn(3, 6)
    options = {"rate": 0.2, "samples": 6, "method": "sampled_adf", "fallback": "linearize"}
    whole, parts = (hs.Uncertain(net, 0.05, chunk=chunk, **options)(x) for chunk in (6, 1))
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.data_var, whole.data_var)


def test_a_rule_that_refuses_once_is_asked_again():
    """The next call of the same rule must not lend its result to the refused one."""
    plain = find(torch.abs, None)

    def fussy(x):
        if float(x.mean.max()) < 0:
            raise NoRuleError("not this one", can_fall_back=True)
        return plain.function(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            other = -3 * x
            refused = torch.abs(x)
            return self.last(torch.relu(self.first(refused + torch.abs(other))))

    torch.manual_seed(0)
    net, x = Net().eval(), -1 - torch.rand(20, 6)  # more elements than directions
    options = {"rate": 0.2, "samples": 6, "method": "sampled_adf", "fallback": "linearize"}
    found = []
    for chunk in (6, 1):
        sure = hs.Uncertain(net, 0.05, chunk=chunk, **options)
        own = replace(plain, function=fussy)
        sure.setup = sure.setup.replace(rules={torch.abs: own})
        found.append(sure(x))
    torch.testing.assert_close(found[1].mean, found[0].mean)
    torch.testing.assert_close(found[1].data_var, found[0].data_var)


def test_a_prefix_takes_no_more_than_it_may(net, monkeypatch):
    kept = []
    true_start = prefix.Prefix.start
    monkeypatch.setattr(prefix, "_MOST_ELEMENTS", 100)
    monkeypatch.setattr(prefix, "_MOST_TIMES", 1)
    monkeypatch.setattr(
        prefix.Prefix, "start", lambda self: (kept.append(len(self.results)), true_start(self))
    )
    x, options = torch.randn(3, 6), {"rate": 0.2, "samples": 4, "method": "sampled_adf"}
    whole, parts = (hs.Uncertain(net, 0.05, chunk=chunk, **options)(x) for chunk in (4, 2))
    torch.testing.assert_close(parts.total_var, whole.total_var)
    assert kept == [0, 2], "the input and one result of 36 elements each; one chunk keeps nothing"


@pytest.mark.parametrize(("place", "expected"), [("before", 1), ("after", 4)])
def test_only_what_precedes_the_masks_is_kept(place, expected):
    calls = []

    def counted(x):
        calls.append(x)
        return x

    own = replace(find(torch.abs, None), function=counted)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            if place == "before":
                return self.last(self.first(torch.abs(x)))
            return self.last(torch.abs(2 * torch.relu(self.first(x))))

    net = Net().eval()
    sure = hs.Uncertain(net, 0.1, "sampled_adf", rate=0.1, samples=8, chunk=2)
    sure.setup = sure.setup.replace(rules={torch.abs: own})
    sure(torch.randn(2, 3))
    assert len(calls) == expected
