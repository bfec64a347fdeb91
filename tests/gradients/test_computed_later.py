"""What a prediction computes when it is read is what it would have computed at once."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.estimators import gradients

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
X = torch.randn(4, 20, generator=torch.Generator().manual_seed(1))
FIELDS = ("covariance", "linear_share")


def predicted(**options):
    return hs.Uncertain(NET, hs.noise.std(0.1), "gradients", **options)(X)


def assert_same(found, wanted):
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=0, atol=0)
    mine, other = found.budget(), wanted.budget()
    torch.testing.assert_close(mine.variances, other.variances, rtol=0, atol=0)
    torch.testing.assert_close(mine.heatmap(), other.heatmap(), rtol=0, atol=0)


def test_nothing_is_computed_before_it_is_read_and_then_once():
    p = predicted()
    assert callable(p.details)
    other = replace(p, method="other")
    assert p.covariance is other.covariance and p.budget() is other.budget()


@pytest.mark.parametrize("options", [{}, {"rate": 0.1}, {"residual_var": 0.01}])
def test_copies_have_the_values(options):
    for copied in (copy.deepcopy, copy.copy, lambda p: pickle.loads(pickle.dumps(p))):
        assert_same(copied(predicted(**options)), predicted(**options))


@pytest.mark.parametrize("options", [{}, {"rate": 0.1}])
def test_what_is_written_into_a_prediction_does_not_reach_what_is_read_later(options):
    p = predicted(**options)
    for own in (p.mean, p.data_var, p.model_var, p.std_error):
        own.mul_(100.0)
    assert_same(p, predicted(**options))


def test_a_residual_variance_that_is_changed_later_does_not_count():
    residual = torch.tensor([0.1, 0.2, 0.3])
    p = predicted(residual_var=residual)
    residual.zero_()
    assert_same(p, predicted(residual_var=torch.tensor([0.1, 0.2, 0.3])))


def test_large_gradients_are_not_kept(monkeypatch):
    wanted = predicted(rate=0.1)
    monkeypatch.setattr(gradients, "_KEPT", 0)
    assert_same(predicted(rate=0.1), wanted)


def test_what_is_read_in_inference_mode_serves_elsewhere():
    p = predicted()
    with torch.inference_mode():
        covariance, share = p.covariance, p.linear_share
    assert not covariance.is_inference() and not share.is_inference()


def test_the_parts_of_a_budget_add_up_to_the_variance():
    p = predicted(rate=0.1)
    torch.testing.assert_close(p.budget().total, p.total_var)
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), p.total_var)


class Finished(nn.Module):
    """The network and what is made of its output."""

    def __init__(self, finish):
        super().__init__()
        self.net, self.finish = copy.deepcopy(NET), finish

    def forward(self, x):
        return self.finish(self.net(x))


@pytest.mark.parametrize(
    ("finish", "options", "passes"),
    [
        (lambda y: y, {}, [80]),
        (lambda y: y, {"prediction": "network"}, [80, 4]),
        (lambda y: {"y": y, "best": y.argmax(1)}, {}, [80, 4]),
    ],
    ids=["one tensor", "what the network says", "an index besides"],
)
def test_samples_take_a_plain_pass_only_if_it_tells_something(finish, options, passes):
    rows = []
    model = Finished(finish).eval()
    model.net.register_forward_hook(lambda module, args, y: rows.append(len(y)))
    sure = hs.Uncertain(model, hs.noise.std(0.1), "noise_sampling", samples=20, **options)
    sure(X)
    rows.clear()
    mean = sure(X).mean
    assert rows == passes
    if isinstance(mean, dict):
        assert torch.equal(mean["best"], NET(X).argmax(1))


def fitted(dtype):
    net, known = copy.deepcopy(NET).to(dtype), torch.randn(60, 20, dtype=dtype)
    sure = hs.Uncertain(net, hs.noise.std(0.1), "gradients")
    sure.fit([(known, net(known).detach() + 0.1 * torch.randn(60, 3, dtype=dtype))])
    return sure


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_writing_into_a_fitted_prediction_does_not_reach_what_is_read_later(dtype):
    sure = fitted(dtype)
    p, wanted = sure(X.to(dtype)), sure(X.to(dtype)).covariance
    p.model_var.zero_()
    p.data_var.zero_()
    torch.testing.assert_close(p.covariance, wanted, rtol=0, atol=0)


def test_the_reader_s_precision_does_not_count():
    p, wanted = predicted(), predicted().covariance
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = p.covariance
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_threads_may_read_one_prediction():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                p = predicted()
                found = list(pool.map(lambda _, p=p: p.covariance, range(8)))
                assert all(torch.equal(found[0], each) for each in found)
    finally:
        sys.setswitchinterval(before)
