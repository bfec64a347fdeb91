"""The methods: closed forms on linear networks, identities between them, and reproducibility."""

import copy

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.methods import METHODS, Method
from howsure.setup import Setup
from nets import FunctionalResNet, TwoSensors

X = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def linear_net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double().eval()


def closed_forms(net, x, var, rate, *, correlated=False):
    """E over the masks of data and model variance of a two-layer linear network.

    Propagation takes the hidden units as independent; in truth they share the input.
    """
    c = rate / (1 - rate)
    hidden, squared = net[0](x), net[1].weight.square()
    independent = squared @ net[0].weight.square() @ torch.full_like(x[0], var)
    true = (net[1].weight @ net[0].weight).square() @ torch.full_like(x[0], var)
    data = true + c * independent if correlated else (1 + c) * independent
    return data.expand(x.shape[0], -1), c * hidden.square() @ squared.T


@pytest.mark.parametrize("method", ["sampled_adf", "noise_sampling"])
def test_linear_network_matches_the_closed_form(method):
    net, x = linear_net(), torch.randn(2, 4).double()
    sure = hs.Uncertain(net, 0.2, method, rate=0.2, samples=6000, chunk=3000)
    p = sure(x)
    data, model = closed_forms(net, x, 0.2, 0.2, correlated=method == "noise_sampling")
    torch.testing.assert_close(p.data_var, data, rtol=0.08, atol=1e-3)
    torch.testing.assert_close(p.model_var, model, rtol=0.12, atol=5e-3)
    torch.testing.assert_close(p.mean, net(x), rtol=0.05, atol=0.05)
    assert torch.equal(p.total_var, p.data_var + p.model_var)


def test_linear_network_without_dropout_is_exact():
    net, x = linear_net(), torch.randn(2, 4).double()
    inner = torch.full_like(x, 0.2) @ net[0].weight.square().T
    diagonal = inner @ net[1].weight.square().T
    jacobian = net[1].weight @ net[0].weight
    true = torch.full_like(x, 0.2) @ jacobian.square().T
    torch.testing.assert_close(hs.Uncertain(net, 0.2, "adf")(x).data_var, diagonal)
    torch.testing.assert_close(hs.Uncertain(net, 0.2, "linear")(x).data_var, true)
    sampled = hs.Uncertain(net, 0.2, "noise_sampling", samples=20000)(x)
    torch.testing.assert_close(sampled.data_var, true, rtol=0.05, atol=1e-3)


def test_mc_dropout_has_the_model_variance_and_tau():
    net, x = linear_net(), torch.randn(2, 4).double()
    p = hs.Uncertain(net, None, "mc_dropout", rate=0.2, samples=6000, chunk=3000, residual_var=0.5)(
        x
    )
    torch.testing.assert_close(p.model_var, closed_forms(net, x, 0.0, 0.2)[1], rtol=0.1, atol=5e-3)
    assert torch.equal(p.data_var, torch.full_like(p.mean, 0.5))


def test_rate_zero_is_adf_bit_for_bit():
    net = FunctionalResNet()
    one, two = (
        hs.Uncertain(net, 0.01, "sampled_adf", rate=0.0)(X),
        hs.Uncertain(net, 0.01, "adf")(X),
    )
    for name in ("mean", "data_var", "model_var"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert torch.equal(one.model_var, torch.zeros_like(one.mean))


def test_no_noise_is_mc_dropout_bit_for_bit():
    net = FunctionalResNet()
    one = hs.Uncertain(net, None, "sampled_adf", rate=0.1, seed=5)(X)
    two = hs.Uncertain(net, None, "mc_dropout", rate=0.1, seed=5, samples=20)(X)
    zero = hs.Uncertain(net, 0.0, "sampled_adf", rate=0.1, seed=5)(X)
    for name in ("mean", "data_var", "model_var"):
        assert torch.equal(getattr(one, name), getattr(two, name))
        torch.testing.assert_close(getattr(zero, name), getattr(two, name), rtol=1e-5, atol=1e-7)


def test_the_paper_by_a_plain_loop():
    """Eq. 16 written out: T propagations, one mask each."""
    from howsure.multipliers import Multiply, Placement, draw_uniforms, find_sites, masks

    net = FunctionalResNet()
    sites = find_sites(net, X, Placement())
    drawn = masks(draw_uniforms(sites, 8, seed=1), [0.1] * len(sites))
    means, variances = [], []
    for t in range(8):
        with torch.no_grad(), Multiply(net, sites, [m[t] for m in drawn]):
            out = hs.propagate(net, X, 0.01)
        means.append(out.mean)
        variances.append(out.var)
    p = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.1, samples=8, seed=1)(X)
    means = torch.stack(means)
    torch.testing.assert_close(p.mean, means.mean(0))
    torch.testing.assert_close(p.data_var, torch.stack(variances).mean(0))
    torch.testing.assert_close(p.model_var, means.var(0, correction=0))
    unbiased = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.1, samples=8, seed=1, unbiased=True)(X)
    torch.testing.assert_close(unbiased.model_var, means.var(0, correction=1))


@pytest.mark.parametrize("method", ["sampled_adf", "mc_dropout", "noise_sampling"])
def test_same_seed_same_result_whatever_chunk_and_batch(method):
    net = FunctionalResNet()
    options = {"rate": 0.1, "samples": 7, "seed": 3}
    reference = hs.Uncertain(net, 0.01, method, **options)(X)
    again = hs.Uncertain(net, 0.01, method, **options)(X)
    assert torch.equal(reference.total_var, again.total_var)
    other = hs.Uncertain(net, 0.01, method, **{**options, "seed": 4})(X)
    assert not torch.equal(reference.total_var, other.total_var)
    for chunk in (1, 2, 7, 100):
        chunked = hs.Uncertain(net, 0.01, method, chunk=chunk, **options)(X)
        torch.testing.assert_close(chunked.total_var, reference.total_var, rtol=1e-4, atol=1e-9)
    if method != "noise_sampling":
        alone = hs.Uncertain(net, 0.01, method, **options)(X[1:2])
        torch.testing.assert_close(alone.mean, reference.mean[1:2], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(alone.total_var, reference.total_var[1:2], rtol=1e-3, atol=1e-8)


def test_masks_per_input_differ_between_inputs():
    net = FunctionalResNet()
    same = X[:1].expand(3, -1, -1, -1).contiguous()
    shared = hs.Uncertain(net, None, "mc_dropout", rate=0.2, samples=4)(same).mean
    own = hs.Uncertain(net, None, "mc_dropout", rate=0.2, samples=4, shared_masks=False)(same).mean
    torch.testing.assert_close(shared[0], shared[1])
    assert not torch.allclose(own[0], own[1])


def test_model_variance_grows_with_the_sensor_noise():
    """The paper's coupling claim, on average over inputs: model_var comes from the ADF means.

    A network whose hidden units are mostly off: noise switches them on.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1)).eval()
    with torch.no_grad():
        net[0].bias -= 1.0
    x = torch.randn(64, 20)
    variances = [
        float(hs.Uncertain(net, v, "sampled_adf", rate=0.1, samples=50)(x).model_var.mean())
        for v in (1e-4, 0.1, 1.0, 4.0)
    ]
    assert variances == sorted(variances)
    assert variances[-1] > 1.5 * variances[0]


def test_the_network_prediction_is_the_plain_mean_of_the_same_masks():
    net = FunctionalResNet()
    adf = hs.Uncertain(net, 0.05, "sampled_adf", rate=0.1, seed=2)(X)
    network = hs.Uncertain(net, 0.05, "sampled_adf", rate=0.1, seed=2, prediction="network")(X)
    plain = hs.Uncertain(net, None, "mc_dropout", rate=0.1, seed=2, samples=20)(X)
    torch.testing.assert_close(network.mean, plain.mean)
    assert torch.equal(network.total_var, adf.total_var)
    assert not torch.allclose(network.mean, adf.mean)


def test_classification_averages_probabilities_of_the_samples():
    net = FunctionalResNet(classes=4)
    sure = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.2, task="classification")
    p = sure(X)
    torch.testing.assert_close(p.mean.sum(1), torch.ones(3), rtol=1e-4, atol=1e-4)
    assert p.logits is not None and p.logits.mean.shape == (3, 4)
    assert bool((p.mutual_information >= 0).all())
    assert bool((p.entropy >= p.expected_entropy - 1e-6).all())
    plain = hs.Uncertain(net, None, "mc_dropout", rate=0.0, task="classification")(X)
    torch.testing.assert_close(plain.mean, torch.softmax(net(X), 1))
    with pytest.raises(ValueError, match="class probabilities"):
        _ = hs.Uncertain(net, 0.01, "adf")(X).entropy


def test_several_inputs_and_structured_outputs():
    net = TwoSensors().eval()
    image, motion = torch.rand(2, 1, 8, 8), torch.rand(2, 6)
    sure = hs.Uncertain(net, {"image": 0.01, "motion": hs.noise.std(0.1)}, "sampled_adf", rate=0.1)
    p = sure(image=image, motion=motion)
    assert p.mean["time"] == 2 and p.mean["pose"][0].shape == (2, 2)
    assert bool((p.std["pose"][1] > 0).all())
    low, high = p.interval(0.9)
    assert bool((low["pose"][0] < high["pose"][0]).all())
    linear = hs.Uncertain(net, (0.01, None), "linear")(image, motion)
    assert bool((linear.data_var["pose"][0] > 0).all())


def test_dense_outputs():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    p = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.1)(X)
    assert p.mean.shape == p.data_var.shape == p.model_var.shape == (3, 2, 16, 16)
    with pytest.raises(ValueError, match="noise_sampling"):
        hs.Uncertain(net, 0.01, "linear")(X)


def test_intervals_and_distributions():
    p = hs.Prediction(torch.zeros(3), torch.full((3,), 0.75), torch.full((3,), 0.25))
    low, high = p.interval(0.95)
    torch.testing.assert_close(high, torch.full((3,), 1.959964), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(low, -high)
    torch.testing.assert_close(p.distribution().stddev, torch.ones(3))
    assert torch.equal(p.aleatoric, p.data_var) and torch.equal(p.epistemic, p.model_var)
    with pytest.raises(ValueError, match="between 0 and 1"):
        p.interval(95)


@pytest.mark.parametrize("method", ["linear", "gradients", "sampled_adf", "noise_sampling"])
def test_inference_mode_around_a_prediction_does_no_harm(method):
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(3, 4)
    setup = Setup(net, 0.01, rate=0.1)
    with torch.inference_mode():
        inside = METHODS[method](setup, x.clone())
    assert torch.equal(inside.total_var, METHODS[method](setup, x).total_var)


@pytest.mark.parametrize("prediction", ["network", "mean"])
def test_class_probabilities_vary_around_the_logits_mean(prediction):
    """The noise moves this logit from 0 to 4, where the softmax is nearly flat."""

    class Shifted(nn.Module):
        def forward(self, x):
            energy = x.square().sum(1, keepdim=True)
            return torch.cat([energy, torch.zeros_like(energy)], 1)

    settings = {"noise": 4 / 200, "task": "classification", "prediction": prediction}
    x = torch.zeros(1, 200)
    p = hs.Uncertain(Shifted().eval(), method="gradients", samples=64, **settings)(x)
    sampled = hs.Uncertain(Shifted().eval(), method="noise_sampling", samples=4000, **settings)(x)
    assert p.std[0, 0] == pytest.approx(float(sampled.std[0, 0]), rel=0.2)
    expected = 0.5 if prediction == "network" else float(sampled.mean[0, 0])
    assert p.mean[0, 0] == pytest.approx(expected, rel=0.01)


def doubled(setup, x):
    mean = 2 * setup.run(x)
    return hs.Prediction(mean, torch.full_like(mean, 0.25), torch.zeros_like(mean))


def test_a_method_of_ones_own_is_a_value():
    model, x = nn.Linear(3, 2).eval(), torch.rand(4, 3)
    sure = hs.Uncertain(model, 0.1, Method("doubled", doubled))
    found = sure(x)
    torch.testing.assert_close(found.mean, 2 * model(x))
    assert found.method == sure.method == "doubled"
    sure.method = "adf"
    assert sure(x).method == "adf"


def test_a_method_of_ones_own_is_not_saved_in_silence(tmp_path):
    sure = hs.Uncertain(nn.Linear(3, 2).eval(), 0.1, Method("adf", doubled))
    with pytest.raises(TypeError, match='The method "adf" is your own and cannot be saved'):
        sure.save(tmp_path / "settings.pt")
    copy.deepcopy(hs.Uncertain(nn.Linear(3, 2).eval(), 0.1, "adf")).save(tmp_path / "other.pt")


@pytest.mark.parametrize(("name", "predict"), [("auto", doubled), ("two words", doubled), ("a", 3)])
def test_what_is_no_method_is_refused(name, predict):
    with pytest.raises((TypeError, ValueError), match="method"):
        Method(name, predict)


def test_a_module_may_be_handed_a_view_of_a_parameter():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, pair):
            x, token = pair
            return torch.tanh(self.mix(x + token))

    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.block = nn.Parameter(torch.randn(1, 4)), Block()

        def forward(self, x):
            return self.block((x, self.token.expand(len(x), -1)))

    torch.manual_seed(0)
    p = hs.Uncertain(Token().eval(), 0.01)(torch.randn(1, 4))
    assert p.method == "noise_sampling" and bool((p.std > 0).all())
