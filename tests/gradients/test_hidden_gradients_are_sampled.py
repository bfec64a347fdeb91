"""Gradients that are hidden, wrong or random are found, and the model is sampled."""

import pytest
import torch
from sampled import Network, WithOut, agrees, monte_carlo
from torch import nn
from torch.utils.checkpoint import checkpoint

import howsure as hs


class Doubled(torch.autograd.Function):
    """Its backward pass is wrong."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 5 * gradient


def frozen(h):
    with torch.no_grad():
        return h.clone()


HIDING = {
    "no_grad": frozen,
    "detach": lambda h: h.detach(),
    "data": lambda h: h.data,
    "numpy": lambda h: torch.from_numpy(h.detach().numpy().copy()),
    "own backward pass": Doubled.apply,
    "fine steps": lambda h: torch.round(100 * h) / 100,
    "coarse steps": lambda h: torch.round(2 * h),
    "sign": torch.sign,
    "half hidden": lambda h: h + h.flip(1).detach(),
}


@pytest.mark.parametrize("how", HIDING)
def test_a_hidden_gradient_is_sampled(how):
    net, x = Network(HIDING[how]).eval(), torch.randn(3, 70)
    p = hs.Uncertain(net, 0.09, "gradients")(x)
    assert p.method == "noise_sampling"
    assert "do not explain" in p.notes[0] or "steps" in p.notes[0]
    assert agrees(p, net, x)


@pytest.mark.parametrize("how", [torch.relu, torch.tanh, lambda h: h.abs(), lambda h: h * h])
def test_an_honest_gradient_is_used(how):
    net, x = Network(how).eval(), torch.randn(3, 70)
    p = hs.Uncertain(net, 0.09, "gradients")(x)
    assert p.method == "gradients" and p.notes == () and agrees(p, net, x)


@pytest.mark.parametrize("seed", range(6))
def test_the_rounding_of_few_bits_is_no_step(seed):
    """Masks of 1 % move outputs of bfloat16 by half of their last bit."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).bfloat16().eval()
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    sure = hs.Uncertain(net, None, "gradients", rate=1e-4, seed=seed, placement="after")
    assert sure(x).method == "gradients"


def test_a_backward_pass_that_fails_is_sampled():
    body = nn.Sequential(nn.Linear(70, 8), nn.Tanh())
    net = Network(lambda h: h).eval()
    net.forward = lambda x: net.last(net.first(x)) + checkpoint(body, x, use_reentrant=True)[:, :2]
    with pytest.warns(UserWarning, match="None of the inputs"):
        p = hs.Uncertain(net, 0.09, "gradients")(torch.randn(2, 70))
    assert p.method == "noise_sampling" and "backward pass failed" in p.notes[0]


def test_random_models_are_sampled_and_reproducible():
    class Random(nn.Module):
        def forward(self, x):
            return x[:, :2] + torch.randn_like(x[:, :2])

    x, before = torch.zeros(4, 5), torch.get_rng_state()
    one, two = (hs.Uncertain(Random().eval(), 0.01, seed=3)(x) for _ in range(2))
    assert torch.equal(one.std, two.std) and torch.equal(one.mean, two.mean)
    assert torch.equal(torch.get_rng_state(), before)
    assert "random numbers" in " ".join(one.notes) and 0.8 < float(one.std.mean()) < 1.2


class WithNumpy(WithOut):
    def forward(self, x):
        return self.last(torch.from_numpy(2 * x.numpy()))


@pytest.mark.parametrize("net", [WithOut(), WithNumpy()], ids=["out", "numpy"])
@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "auto"])
def test_a_model_that_runs_without_gradients_only_is_sampled(net, method):
    x = torch.randn(3, 5)
    p = hs.Uncertain(net.eval(), 0.01, method)(x.clone())
    assert p.method == "noise_sampling"
    true = 0.1 * 2 * net.last.weight.square().sum(1).sqrt()
    assert ((p.std - true).abs() < 5 * p.std_error).all()


class Rounded(nn.Module):
    """A straight-through estimator on the sensor's way, and dropout that drowns it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.drop(x + (torch.round(2 * x) / 2 - x).detach()))


def test_masks_do_not_drown_a_hidden_gradient_of_the_sensor():
    x = torch.tensor([[0.26, 1.0, -0.24, 2.0]])
    net = Rounded().eval()
    p = hs.Uncertain(net, 0.03**2, "gradients", placement="existing")(x)
    assert p.method == "noise_sampling"
    assert abs(float(p.data_var.sqrt() / monte_carlo(net, x, 0.03)) - 1) < 0.3


class Stairs(nn.Module):
    """Logits of which one is flat, with a step that only some inputs reach."""

    def forward(self, x):
        return torch.stack([3 * (x[:, 0] > 0).float(), x[:, 1]], 1)


def test_rows_with_a_step_have_the_probabilities_of_their_samples():
    x = torch.tensor([[-3.0, 0.0]]).repeat(8, 1)
    x = torch.cat([x, torch.tensor([[0.0, 0.0]])])
    p = hs.Uncertain(Stairs().eval(), 0.04, "gradients", task="classification")(x)
    assert "sampled" in "".join(p.notes)
    assert abs(float(p.logits.std[-1, 0]) - 1.5) < 0.2
    assert float(p.std[-1, 0]) > 0.1


class Quarters(nn.Module):
    def forward(self, x):
        return torch.round(4 * x).sum(1, keepdim=True) / 4


@pytest.mark.parametrize("seed", range(10))
def test_a_step_that_few_samples_cross_is_found(seed):
    x = torch.tensor([[0.111, 0.5, -0.5, 0.75]])  # 1.4 std below the step at 0.125
    p = hs.Uncertain(Quarters().eval(), 1e-4, "gradients", seed=seed)(x)
    assert p.method == "noise_sampling"
    assert abs(float(p.std) - 0.068) < 5 * float(p.std_error)


def test_one_output_of_many_that_hides_its_gradient_is_found_on_long_lines():
    """Outputs that agree on short lines are left out of the long ones; the others are not lost."""

    class Hides(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(80, 32), nn.Linear(32, 6)

        def forward(self, x):
            out = self.last(torch.relu(self.first(x)))
            own = 0.5 * out[:, 4:5] + 0.5 * out[:, 4:5].detach()
            return torch.cat([out[:, :4], own, out[:, 5:]], 1)

    x = torch.randn(4, 80)
    p = hs.Uncertain(Hides().eval(), 0.01, "gradients")(x)
    assert p.method == "noise_sampling" and "gradients do not explain" in p.notes[0]
    honest = nn.Sequential(nn.Linear(80, 32), nn.ReLU(), nn.Linear(32, 6)).eval()
    assert hs.Uncertain(honest, 0.01, "gradients")(x).method == "gradients"
