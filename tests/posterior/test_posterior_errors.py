"""No posterior: what is refused, and where distances stand in its place."""

import math

import pytest
import torch
from torch import nn
from waves import data

import howsure as hs


def with_nan(count, seed):
    x, y = data(count, seed)
    return torch.where(torch.arange(count)[:, None] == count - 1, math.nan, x), y


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"held_out": [with_nan(60, 1)]}, "predictions of held-out inputs are NaN"),
        ({"held_out": [data(60, 1), with_nan(60, 2)]}, "predictions of held-out inputs are NaN"),
        ({"train_inputs": with_nan(100, 0)[0]}, "gradients at training inputs are NaN"),
        ({"train_inputs": torch.rand(100, 3)}, "preprocess both in the same way"),
        ({"train_inputs": torch.rand(20, 2)}, "at least 50"),
        ({"held_out": [data(15, 1)]}, "at least 20, better 50"),
        ({"held_out": [data(100, 0)], "train_inputs": data(100, 0)[0]}, "also among"),
        ({"held_out": [(data(60, 1)[0], torch.full((60, 1), math.nan))]}, "NaN"),
        ({"held_out": [(data(60, 1)[0], torch.ones(60, 2))]}, "targets have shape"),
        ({"stress": "images"}, "axes"),
        ({"stress": "fog"}, "must be one of"),
        ({"model": "bayes"}, "must be"),
        ({"residual_var": -1.0}, "0 or more"),
        ({"floor": 0.1, "model": "posterior"}, 'model="dropout"'),
        ({"train_inputs": torch.rand(60, 2), "model": "dropout"}, 'model="posterior"'),
    ],
)
def test_wrong_use_is_answered(net, changes, words):
    given = {"held_out": [data(60, 1)], **changes}
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net, 0.001).fit(given.pop("held_out"), **given)


def test_inputs_that_are_not_finite_are_taken_if_the_model_takes_them(net):
    class Tolerant(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x.nan_to_num())

    fit = hs.Uncertain(Tolerant().eval(), 0.001).fit([with_nan(60, 1)], show_progress=False)
    assert fit.count == 60 and math.isfinite(fit.nll)


def test_what_has_no_posterior_says_so(net, sure):
    with pytest.raises(ValueError, match="no posterior over multipliers"):
        hs.Uncertain(net, 0.001, "adf").fit([data(60, 1)], model="posterior")
    with pytest.raises(TypeError, match="unexpected keyword argument 'train_input'"):
        hs.Uncertain(net, 0.001).fit([data(60, 1)], train_input=1)
    other = hs.Uncertain(net, 0.001)
    other.setup = sure.setup
    other.method = "adf"
    with pytest.raises(ValueError, match="cannot use"):
        other(data(3, 1)[0])
    hidden = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), Rounded(), nn.Linear(8, 1)).eval()
    with pytest.raises(ValueError, match='model="dropout"'):
        hs.Uncertain(hidden, 0.1).fit([data(60, 1)], model="posterior")


class Rounded(nn.Module):
    def forward(self, x):
        return (4 * x).round()


class Centered(nn.Module):
    """A network whose rows influence each other."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(h - h.mean(0))


def many():
    """A vector of 144 outputs, which is no map."""
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1), nn.Flatten()
    return nn.Sequential(*layers).eval()


NO_POSTERIOR = {
    "many outputs": (many, torch.rand(50, 1, 12, 12), "144 outputs"),
    "steps": (
        lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), Rounded(), nn.Linear(8, 1)).eval(),
        data(60, 1)[0],
        "steps",
    ),
    "rows": (lambda: Centered().eval(), data(60, 1)[0], "influence each other"),
}


class Random(nn.Module):
    """A network that draws random numbers itself."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x + 0.1 * torch.randn_like(x))


class Kriging(nn.Module):
    """A Gaussian process: it has no layers to multiply."""

    def __init__(self):
        super().__init__()
        x, y = data(30, 4)
        self.register_buffer("x", x)
        self.register_buffer("y", y)

    def forward(self, x):
        def k(a, b):
            return (-(a[:, None] - b).square().sum(2)).exp()

        gram = k(self.x, self.x) + 0.1 * torch.eye(30)
        return k(x, self.x) @ torch.linalg.solve(gram, self.y)


NO_POSTERIOR |= {
    "random": (lambda: Random().eval(), data(60, 1)[0], "random"),
    "no layers": (lambda: Kriging().eval(), data(60, 1)[0], "no layers"),
}


@pytest.mark.parametrize("noise", [None, 1e-4])
@pytest.mark.parametrize("kind", NO_POSTERIOR)
def test_where_there_can_be_no_posterior_there_is_a_residual_variance_and_a_novelty(kind, noise):
    make, x, words = NO_POSTERIOR[kind]
    torch.manual_seed(0)
    model = make()
    y = model(x).detach() + 0.05 * torch.randn(model(x).shape)
    wrapped = hs.Uncertain(model, noise)
    fit = wrapped.fit(iter([(x, y)]), show_progress=False)
    assert words in fit.notes[0] and fit.notes[0] in str(fit)
    p = wrapped(x)
    assert any(words in note for note in p.notes)
    covered = ((p.mean - y).abs() <= 1.96 * p.std).double().mean()
    assert float(covered) > 0.85 and p.novelty.shape == p.mean.shape
    assert p.budget().names == ("noise", "residual", "model", "growth")
    torch.testing.assert_close(p.budget().total, p.total_var.flatten(1))
    far = wrapped(100 * x)
    assert float(far.novelty.min()) > 3
    assert bool((far.std.amin(0) > p.std.median(0).values).all())  # for every output
    again = hs.Uncertain(model)
    again.load_state_dict(wrapped.state_dict())
    torch.testing.assert_close(again(x).novelty, p.novelty)
    if kind != "random":
        with pytest.raises(ValueError, match="model="):
            hs.Uncertain(model, 1e-4).fit([(x, y)], model="posterior")


def test_a_call_whose_rows_influence_each_other_has_no_posterior_to_use(sure):
    other = hs.Uncertain(Centered().eval(), 0.001, "gradients")
    other.setup = other.setup.replace(variance_model=sure.setup.variance_model)
    with pytest.raises(ValueError, match="influence each other"):
        other(data(4, 1)[0])


def test_without_a_posterior_an_error_of_the_sensors_std_counts_with_the_factor_on_its_variance():
    model, (x, _) = Kriging().eval(), data(120, 1)
    torch.manual_seed(0)
    y = model(x + 0.2 * torch.randn_like(x))
    wrapped = hs.Uncertain(model, hs.noise.std(0.05), samples=64)
    factor = wrapped.fit([(x, y)], noise_factor=None).model.weight("noise_factor")
    assert float(factor) > 4
    sensor = hs.Uncertain(model, hs.noise.std(0.05), "noise_sampling", samples=64)(x)
    p = wrapped(x)
    expected = factor * sensor.std * sensor.std_error / p.std
    torch.testing.assert_close(p.std_error, expected.float(), rtol=1e-4, atol=1e-8)
