"""Short ways of the adjoint give what the long ones give: windows, shares, signs, sums."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import howsure as hs
from howsure.compiling.tracing import traced
from howsure.correlated import square_sum
from howsure.methods import METHODS
from howsure.rules.windows import Window, _Taps
from howsure.signs import random_signs
from howsure.unit_tail import unit_tail

WINDOWS = [Window(3, 2, 1), Window(3, 1, 1), Window(2, 3, 2), Window(1, 2, 1)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("window", WINDOWS)
def test_gradients_of_windows_are_those_of_slices(window, axis, layout):
    x = torch.randn(2, 3, 9, 8).to(memory_format=layout).requires_grad_()
    taps = _Taps.apply(x, axis, window)
    index = (slice(None),) * axis
    slices = [x[(*index, part)] for part in window.slices(x.shape[axis])]
    weights = [torch.randn(4, *each.shape) for each in slices]  # four outputs at once

    def gradient(parts):
        return torch.autograd.grad(parts, x, weights, is_grads_batched=True)[0]

    found = gradient(taps)
    torch.testing.assert_close(found, gradient(slices))
    for tap, part in zip(taps, slices, strict=True):
        assert torch.equal(tap, part)
    one = torch.autograd.grad(_Taps.apply(x, axis, window), x, [each[0] for each in weights])[0]
    assert torch.equal(one, found[0])
    assert one.stride() == x.stride()


@pytest.mark.parametrize("kernel, stride", [((1, 3), (1, 2)), ((1, 1), (1, 1)), ((1, 2), (2, 9))])
def test_pools_of_one_element_along_an_axis(kernel, stride):
    model = nn.Sequential(nn.MaxPool2d(kernel, stride), nn.Flatten()).eval()
    x = torch.rand(2, 1, 1, 9)
    backward, forward = (hs.Uncertain(model, 0.01, m, probes=0)(x) for m in ("adjoint", "adf"))
    torch.testing.assert_close(backward.mean, forward.mean)
    torch.testing.assert_close(backward.total_var, forward.total_var)


class PooledTokens(nn.Module):
    """After the pool comes a soft-max, whose innovation is estimated by random directions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.last = nn.MaxPool2d(3, 1), nn.Linear(100, 1)

    def forward(self, x):
        return self.last(self.pool(x).flatten(1).softmax(1))


@pytest.mark.parametrize("probes", [0, 4])
def test_a_trace_draws_as_eager_does(probes):
    sure, x = hs.Uncertain(PooledTokens(), 0.01, "adjoint", probes=probes), torch.rand(1, 1, 12, 12)
    sure.eval()
    expected = sure(x).total_var
    (found,) = traced(lambda x: [METHODS["adjoint"](sure.setup, x).total_var], [x])(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_shares_that_count_for_nothing_are_zero():
    with torch.no_grad():
        tail = unit_tail(torch.tensor([-50.0, -6.0, -5.0, 0.0, 5.0, 6.0, 50.0]))
        share, other, _ = tail.shares_and_innovation
    torch.testing.assert_close(share + other, torch.ones(7))
    assert share[0] == share[1] == other[-2] == other[-1] == 0
    torch.testing.assert_close(share[2:4], torch.tensor([2.8665e-7, 0.5]), rtol=1e-4, atol=0)
    exact = unit_tail(torch.tensor([-6.0], dtype=torch.float64)).shares_and_innovation
    assert float(exact[0]) == pytest.approx(9.865876e-10, rel=1e-6) and float(exact[2]) > 0


class Subnormal(TorchDispatchMode):
    """Counts the numbers so small that some processors take thirty times as long for them."""

    def __init__(self):
        super().__init__()
        self.count = self.of = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_computed = isinstance(result, torch.Tensor) and "empty" not in str(func)
        if is_computed and result.is_floating_point():
            self.count += int(((result != 0) & (result.abs() < 1.17e-38)).sum())
            self.of += result.numel()
        return result


@pytest.mark.parametrize("probes", [0, 8])
def test_hardly_any_number_is_too_small_for_fast_arithmetic(probes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(108, 1))
    sure = hs.Uncertain(model.eval(), 1e-4, "adjoint", rate=0.1, probes=probes)
    with Subnormal() as seen:
        sure(torch.rand(1, 1, 10, 10))
    assert seen.of > 10_000 and seen.count < 1e-3 * seen.of


@pytest.mark.parametrize("count", [2, 8, 32])
def test_neighbours_have_orthogonal_signs(count):
    signs = random_signs(count, (1, 2, 5, 6), (0, 3), torch.empty(0))
    assert ((signs == 1) | (signs == -1)).all()
    row = signs[:, 0, 0, 0]  # as many neighbours as there are colours, at most
    products = row.T @ row
    neighbours = products[:, : min(count, 6)][: min(count, 6)]
    assert torch.equal(neighbours, count * torch.eye(len(neighbours)))


def test_other_draws_have_other_signs():
    first, second = (random_signs(8, (40, 50), (0, draw), torch.empty(0)) for draw in (1, 2))
    assert abs(float((first * second).mean())) < 0.05


def test_variance_of_many_directions():
    probes = torch.randn(8, 3, 60, 70)
    torch.testing.assert_close(square_sum(probes), probes.double().square().sum(0).float())
    half = probes.bfloat16()
    assert square_sum(half).dtype == torch.float32
