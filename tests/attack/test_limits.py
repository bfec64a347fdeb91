"""What the methods assume is found out, and said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import howsure as hs

FIXED = [
    ("adf", {}),
    ("sampled_adf", {"rate": 0.1}),
    ("mc_dropout", {"rate": 0.1}),
    ("constant", {"residual_var": 0.1}),
]


class Net(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(5, 6), nn.Linear(6, 2), between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


@pytest.mark.parametrize(("method", "options"), FIXED, ids=str)
def test_random_models_are_refused_by_methods_that_take_them_for_fixed(method, options):
    net, x = Net(lambda h: h + torch.randn(h.shape)).eval(), torch.rand(3, 5)
    sure, state = hs.Uncertain(net, 0.01, method, **options), torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(ValueError, match=f'"{method}" needs a deterministic model'):
            sure(x)
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("method", ["gradients", "linear", "noise_sampling"])
def test_random_models_are_sampled_by_the_others(method):
    net, x = Net(lambda h: h + torch.randn(h.shape)).eval(), torch.rand(3, 5)
    found = hs.Uncertain(net, 1e-6, method)(x)
    true = net.last.weight.detach().square().sum(1).sqrt().expand(3, 2)
    # 200 samples know a std to 5 %.
    torch.testing.assert_close(found.std, true, rtol=0.25, atol=0)
    assert any("random numbers" in note for note in found.notes)


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_linear_takes_the_axis_that_it_is_told(batch_dim):
    layer = nn.Linear(4, 4).double()
    x = torch.rand(4, 4).double()

    def model(x):
        return layer(x.movedim(batch_dim, 0)).movedim(0, batch_dim)

    found = hs.Uncertain(Wrapped(model).eval(), 0.04, "linear", batch_dim=batch_dim)(x)
    true = 0.2 * layer.weight.detach().square().sum(1).sqrt().expand(4, 4)
    torch.testing.assert_close(found.std, true if batch_dim == 0 else true.T)
    assert found.std_error is None and found.notes == ()


class Wrapped(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("noise", [0.25, 1e-4])
def test_linear_says_what_its_tangent_misses(noise):
    net = Wrapped(lambda x: x + x.square())
    found = hs.Uncertain(net.eval(), noise, "linear")(torch.zeros(1, 1).double())
    assert float(found.std) == pytest.approx(noise**0.5)
    # The rms of x**2 is 3**0.5 of the variance.
    notes = [note for note in found.notes if "not linear" in note]
    assert len(notes) == (noise == 0.25)
    if notes:
        missed = int(notes[0].split("%")[0].split()[-1])
        assert missed == pytest.approx(100 * (3 * noise) ** 0.5, rel=0.6)


@pytest.mark.parametrize("hidden", [lambda h: h.detach(), lambda h: h.data, torch.round])
def test_linear_samples_where_the_gradient_is_hidden(hidden):
    net, x = Net(lambda h: hidden(4 * h)).eval(), torch.rand(3, 5)
    found, sampled = (hs.Uncertain(net, 0.1, name)(x) for name in ("linear", "noise_sampling"))
    assert found.method == "noise_sampling" and '"linear" cannot be used' in found.notes[0]
    assert torch.equal(found.std, sampled.std)


def test_rules_take_the_part_of_the_output_that_was_asked_for():
    net = Wrapped(lambda x: {"a": 2 * x, "b": x}).eval()
    found = hs.Uncertain(net, 1.0, "adf", output="a")(torch.zeros(2, 3))
    assert torch.equal(found.std, torch.full((2, 3), 2.0))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        (Doubled.apply, lambda h: 2 * h),
        (lambda h: h * (2 if float(h.sum()) < 1e9 else 3), lambda h: 2 * h),
        (lambda h: 2 * torch.from_numpy(h.numpy()), lambda h: 2 * h),
    ],
)
def test_masks_of_models_that_vmap_cannot_run(odd, plain):
    x = torch.rand(3, 5)
    one, two = (
        hs.Uncertain(
            Net(each).eval().requires_grad_(False),
            method="mc_dropout",
            rate=0.2,
            placement="before",
        )(x)
        for each in (odd, plain)
    )
    torch.testing.assert_close(one.mean, two.mean)
    torch.testing.assert_close(one.model_var, two.model_var)
