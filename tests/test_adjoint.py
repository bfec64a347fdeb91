"""The adjoint: exact for linear networks and small noise, near brute force for others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from howsure.dropout import Placement
from howsure.methods import METHODS
from howsure.methods.analysis import analyse
from howsure.methods.setup import Setup
from nets import FunctionalResNet, TwoSensors


def adjoint(model, x, noise=None, **options):
    return METHODS["adjoint"](Setup(model, noise, **options), x)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.head = kind(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.cells(x.transpose(0, 1))[0][-1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        h = self.enter(x)
        h = self.norm(h + self.attend(h, h, h, need_weights=False)[0])
        return self.head(F.gelu(h).mean(1))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(16, 3)

    def forward(self, x):
        h = F.max_pool2d(self.conv(x), 3, 2, 1)
        return F.log_softmax(self.head(F.silu(F.group_norm(h, 2)).flatten(1)), 1)


NETWORKS = {
    "residual": (FunctionalResNet, (3, 3, 8, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 5, 4)),
    "gru": (lambda: Recurrent(nn.GRU), (3, 5, 4)),
    "attention": (Attention, (3, 5, 4)),
    "pooled": (Pooled, (3, 1, 4, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("probes", [0, 4])
def test_small_noise_is_the_linearised_network(name, probes):
    make, shape = NETWORKS[name]
    model, x = make().eval().double(), torch.randn(shape).double()
    ours = adjoint(model, x, 1e-10, probes=probes)
    linear = METHODS["linear"](Setup(model, 1e-10), x)
    torch.testing.assert_close(ours.data_var, linear.data_var, rtol=1e-3, atol=0)
    torch.testing.assert_close(ours.mean, model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["residual", "gru", "pooled"])
def test_near_brute_force(name):
    make, shape = NETWORKS[name]
    model, x = make().eval(), torch.randn(shape)
    ours = adjoint(model, x, 0.05, probes=32)
    truth = METHODS["noise_sampling"](Setup(model, 0.05, samples=1500), x)
    assert (ours.std / truth.std).log().abs().mean() < 0.1
    assert ((ours.mean - truth.mean) / truth.std).abs().mean() < 0.3


def test_linear_network_and_dropout_have_a_closed_form():
    """y = V (m * (W x)): data = (V W)**2 v, model = c sum_u (V_u h_u)**2, and c V**2 (W**2 v)."""
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).double()
    first, last = (layer.weight.detach() for layer in model)
    x, v, rate = torch.randn(6, 5).double(), torch.rand(5).double(), 0.3
    c = rate / (1 - rate)
    ours = adjoint(model.eval(), x, v, rate=rate, probes=256)
    data = ((last @ first).square() @ v).expand(6, 3)
    hidden = x @ first.T
    budget = ours.budget()
    torch.testing.assert_close(budget.variances[0], data)
    torch.testing.assert_close(budget.variances[1], c * hidden.square() @ last.square().T)
    # What sensor and mask do together needs both, and counts as the data's.
    together = c * (last.square() @ (first.square() @ v)).expand(6, 3)
    torch.testing.assert_close(ours.data_var, data + together, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.mean, model(x))


def test_a_channel_is_dropped_as_a_whole():
    """Element-wise sum of squares, channel-wise the square of the sum over positions."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(18, 1)).double().eval()
    x, rate = torch.randn(4, 1, 3, 3).double(), 0.1
    h = model[0](x).detach() * model[2].weight.detach().reshape(2, 3, 3)
    expected = {"channel": h.sum((2, 3)).square().sum(1), "element": h.square().sum((1, 2, 3))}
    for units, sums in expected.items():
        ours = adjoint(model, x, rate=rate, placement=Placement("after", units=units))
        torch.testing.assert_close(ours.model_var[:, 0], rate / (1 - rate) * sums)
        assert torch.equal(ours.data_var, torch.zeros_like(ours.data_var))


def test_dropout_agrees_with_sampling():
    model = nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    x = torch.randn(10, 4)
    ours = adjoint(model.eval(), x, 0.01, rate=0.05, probes=32)
    truth = METHODS["control_variate"](Setup(model, 0.01, rate=0.05, samples=2000), x)
    for name in ("data_var", "model_var", "total_var"):
        ratio = getattr(ours, name) / getattr(truth, name)
        assert ratio.sqrt().log().abs().mean() < 0.08, name


def test_covariance_between_outputs():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    x = torch.randn(2, 3)
    ours = adjoint(model, x, 0.1, probes=64)
    draws = x + 0.1**0.5 * torch.randn(40_000, 2, 3)
    with torch.no_grad():
        outputs = model(draws)
    for row in range(2):
        scale = float(ours.covariance[row].diagonal().max())
        torch.testing.assert_close(
            ours.covariance[row], torch.cov(outputs[:, row].T), rtol=0, atol=0.1 * scale
        )
    torch.testing.assert_close(ours.covariance.diagonal(dim1=1, dim2=2), ours.total_var)


def test_the_model_stays_as_it_is():
    model, x = FunctionalResNet(), torch.rand(2, 3, 8, 8)
    before = {name: (p.clone(), p.requires_grad) for name, p in model.named_parameters()}
    with torch.no_grad():
        first = adjoint(model, x, 0.01, rate=0.1)
    with torch.inference_mode():
        again = adjoint(model, x, 0.01, rate=0.1)
    torch.testing.assert_close(first.total_var, again.total_var)
    for name, parameter in model.named_parameters():
        value, trained = before[name]
        assert torch.equal(parameter, value) and parameter.requires_grad == trained
        assert parameter.grad is None
    assert not first.data_var.requires_grad


def test_pieces_of_a_batch_give_the_same():
    model, x = FunctionalResNet(), torch.rand(5, 3, 8, 8)
    whole, pieces = (adjoint(model, x, 0.01, rate=0.1, chunk=chunk) for chunk in (5, 2))
    torch.testing.assert_close(whole.total_var, pieces.total_var, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(whole.covariance, pieces.covariance, rtol=1e-2, atol=1e-6)


def test_several_inputs_and_outputs():
    x = {"image": torch.rand(3, 1, 8, 8), "motion": torch.randn(3, 6)}
    ours = adjoint(TwoSensors().eval(), x, {"image": 0.01, "motion": 0.1})
    assert [part.shape for part in ours.data_var["pose"]] == [(3, 2), (3, 1)]
    assert ours.budget().names == ("image", "motion", "nonlinear remainder")
    assert ours.budget().heatmap("image").shape == (3, 3, 1, 8, 8)


def test_many_outputs_need_a_choice():
    model, x = nn.Sequential(nn.Linear(4, 100), nn.ReLU()).eval(), torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"100 outputs.*outputs=\(0, 5.*noise_sampling"):
        adjoint(model, x, 0.1)
    some = adjoint(model, x, 0.1, outputs=(3, -1), probes=512)
    alone = adjoint(model, x, 0.1, outputs=(), probes=512)
    assert some.covariance.shape == (3, 2, 2)
    torch.testing.assert_close(some.data_var, alone.data_var, rtol=0.3, atol=1e-3)
    with pytest.raises(ValueError, match="names 100, but there are 100"):
        adjoint(model, x, 0.1, outputs=(100,))


def test_rows_merged_with_another_axis_are_taken_one_by_one():
    class Merged(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):  # (batch, time, 4)
            return torch.tanh(self.layer(x.reshape(-1, 4))).reshape(x.shape[0], -1)

    model, x = Merged().eval(), torch.randn(3, 7, 4)
    whole = adjoint(model, x, 0.3)
    alone = torch.cat([adjoint(model, row[None], 0.3).data_var for row in x])
    torch.testing.assert_close(whole.data_var, alone, rtol=1e-4, atol=1e-6)


def test_trust_falls_with_the_noise():
    model, x = FunctionalResNet(), torch.rand(4, 3, 8, 8)
    quiet, loud = (adjoint(model, x, var) for var in (1e-6, 30.0))
    assert (quiet.trust > 0.95).all() and not quiet.notes
    assert loud.trust.mean() < quiet.trust.mean()
    assert any("noise_sampling" in note for note in loud.notes) == bool((loud.trust < 0.5).any())


def test_first_order_variance_is_linear_in_the_odds():
    """Var_model = sum_l c_l M_l(x) with M_l that does not depend on the rates, to first order."""
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)).eval(), torch.randn(5, 3)
    low, high = (
        analyse(Setup(model, None, rate=rate), x).reading.by_source[0] for rate in (0.01, 0.2)
    )
    torch.testing.assert_close(high / low, torch.full_like(low, (0.2 / 0.8) / (0.01 / 0.99)))


def test_control_variates_need_fewer_samples():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x = torch.randn(50, 4)
    truth = METHODS["noise_sampling"](Setup(model, 0.01, samples=3000, seed=9), x)
    errors = [
        (METHODS[name](Setup(model, 0.01, samples=20), x).std / truth.std).log().abs().mean()
        for name in ("noise_sampling", "control_variate")
    ]
    assert errors[1] < errors[0] / 2


def test_classification_has_probabilities_and_logits():
    model, x = nn.Linear(4, 3).eval(), torch.randn(5, 4)
    ours = adjoint(model, x, 0.1, task="classification")
    assert ours.logits is not None
    expected = 0.1 * model.weight.square().sum(1).expand(5, 3)
    torch.testing.assert_close(ours.logits.data_var, expected)
    torch.testing.assert_close(ours.mean.sum(1), torch.ones(5))


def test_mutual_information_of_the_adjoint_is_near_that_of_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 3)).eval()
    x = torch.randn(20, 4)
    options = {"rate": 0.05, "task": "classification"}
    ours = adjoint(model, x, None, **options)
    sampled = METHODS["mc_dropout"](Setup(model, None, samples=2000, **options), x)
    assert float(sampled.mutual_information.min()) > 0
    torch.testing.assert_close(
        ours.mutual_information, sampled.mutual_information, rtol=0.15, atol=2e-4
    )


@pytest.mark.parametrize("inputs", [2, 3])
def test_noise_per_feature_is_not_taken_for_noise_per_row(inputs):
    """As many rows as features: the shape alone must not decide."""
    net = nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x, noise = torch.randn(inputs, inputs), torch.linspace(0.01, 0.5, inputs)
    together = adjoint(net, x, noise)
    alone = [adjoint(net, row[None], noise).total_var for row in x]
    torch.testing.assert_close(together.total_var, torch.cat(alone))
    pair = adjoint(Sum(net), (x, x), (noise, None))
    torch.testing.assert_close(pair.total_var, together.total_var)


class Sum(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, first, second):
        return self.net(first) + second[:, :2]
