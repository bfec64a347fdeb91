"""Predictions at their temperature: noise, sets, gates, files and exports."""

import copy
import dataclasses

import pytest
import torch
from three_classes import FAR, blobs, fitted, with_model_share
from torch import nn
from torch.nn import functional as F

import howsure as hs


@pytest.mark.parametrize("prediction", ["network", "mean"])
@pytest.mark.parametrize("noise, rate", [(0.01, None), (0.01, 0.1), (None, 0.1)])
def test_noise_and_dropout_are_those_of_a_network_with_cooler_logits(net, noise, rate, prediction):
    options = {"method": "gradients", "rate": rate, "prediction": prediction, "samples": 16}
    own = fitted(net, noise, options={"growth": False}, **options)
    cooler = copy.deepcopy(net)
    for each in cooler[4].parameters():
        each.div_(own.setup.temperature_model.temperature)
    x = blobs(8, 2)[0]
    found, wanted = own(x), hs.Uncertain(cooler, noise, task="classification", **options)(x)
    for name, value in with_model_share(wanted, 1 - 1 / found.temperature).items():
        torch.testing.assert_close(getattr(found, name), value, rtol=2e-3, atol=1e-6, msg=name)
    torch.testing.assert_close(
        found.logits.covariance, wanted.logits.covariance, rtol=2e-3, atol=1e-7
    )
    torch.testing.assert_close(found.budget().total, wanted.budget().total, rtol=2e-3, atol=1e-7)


def test_each_row_is_at_its_own_temperature(net):
    own = fitted(net, 0.01, method="gradients")
    new = torch.cat([blobs(3, 2)[0], FAR])
    whole = own(new)
    for k in range(5):
        cooler = copy.deepcopy(net)
        for each in cooler[4].parameters():
            each.div_(whole.temperature[k])
        alone = hs.Uncertain(cooler, 0.01, "gradients", task="classification")(new[k : k + 1])
        torch.testing.assert_close(whole.data_var[k : k + 1], alone.data_var, rtol=2e-3, atol=1e-7)


class Steps(nn.Module):
    def forward(self, x):
        return (20 * x).round() / 20


def test_where_gradients_say_nothing_samples_are_at_their_temperature(net):
    stairs = nn.Sequential(Steps(), net).eval()
    own = fitted(stairs, 0.04, options={"growth": False}, prediction="network")
    x = blobs(6, 2)[0]
    p = own(x)
    assert p.method == "noise_sampling"
    t = own.setup.temperature_model.temperature
    torch.testing.assert_close(p.mean, (stairs(x) / t).softmax(1))
    cooler = copy.deepcopy(net)
    for each in cooler[4].parameters():
        each.div_(t)
    truth = hs.Uncertain(
        nn.Sequential(Steps(), cooler).eval(),
        0.04,
        "noise_sampling",
        task="classification",
        samples=400,
    )(x)
    truth = dataclasses.replace(truth, mean=p.mean)
    expected = with_model_share(truth, 1 - 1 / p.temperature)
    for name in ("data_var", "model_var", "std_error"):
        torch.testing.assert_close(getattr(p, name), expected[name], rtol=1e-3, atol=1e-6)


def test_batches_of_a_loader_are_joined(sure):
    x = blobs(10, 2)[0]
    p = sure.predict(x.split(4), show_progress=False)
    assert p.temperature.shape == p.novelty.shape == p.joint_novelty.shape == (10,)


def test_a_gate_rejects_what_is_newer_than_the_held_out_inputs(sure):
    gate = hs.Gate.on_novelty(sure.setup.temperature_model, level=0.95)
    trusted = gate(sure(blobs(200, 1)[0]).joint_novelty)
    assert 0.94 <= float(trusted.float().mean()) <= 0.96
    assert not bool(gate(sure(FAR).joint_novelty).any())


def test_prediction_sets_and_a_further_temperature_come_on_top(net):
    own = fitted(net)
    more = [blobs(300, 5)]
    first = own(FAR)
    found = own.calibrate(more, "temperature")
    again = own(FAR)
    torch.testing.assert_close(again.temperature, first.temperature * found.temperature.float())
    torch.testing.assert_close(again.novelty, first.novelty)
    own.calibrators = ()
    own.calibrate(more, "conformal_classes")
    x, y = blobs(400, 6)
    sets = own(x).sets(0.9)
    covered = sets.gather(1, y[:, None]).float().mean()
    assert 0.85 < float(covered) < 0.95
    assert own(FAR).novelty is not None


def test_an_ensemble_of_temperatures(net):
    both = hs.Ensemble([net, copy.deepcopy(net)], task="classification")
    both.fit([blobs(100, 1)], train_inputs=iter(blobs(100, 0)[0].split(50)))
    p = both(FAR)
    single = both.members[0](FAR)
    torch.testing.assert_close(p.mean, single.mean)
    torch.testing.assert_close(p.novelty, single.novelty)


def test_settings_survive_a_file_a_copy_and_a_change(net, sure, tmp_path):
    sure.save(tmp_path / "settings.pt")
    again = hs.Uncertain.load(tmp_path / "settings.pt", net)
    changed = hs.Uncertain(net)
    changed.setup = sure.setup.replace(seed=3)
    for other in (again, copy.deepcopy(sure), changed):
        assert torch.equal(other(FAR).mean, sure(FAR).mean)
        assert torch.equal(other(FAR).novelty, sure(FAR).novelty)


def test_other_models_are_refused_by_the_layer(net, sure):
    other = hs.Uncertain(nn.Sequential(nn.Linear(2, 3)).eval(), task="classification")
    other.setup = other.setup.replace(temperature_model=sure.setup.temperature_model)
    with pytest.raises(ValueError, match=r"`4`.*was not reached"):
        other(FAR)
    wide = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    other.model = wide.eval()
    with pytest.raises(ValueError, match="has another width"):
        other(FAR)
    other.model = nn.Sequential(*net[:4], nn.Linear(16, 5)).eval()
    with pytest.raises(ValueError, match="fitted for 3 classes"):
        other(FAR)


def test_fitting_again_drops_what_was_found(net):
    own = fitted(net, 0.01)
    own.fit([blobs(60, 1)], model="dropout", rates=(0.0, 0.1), samples=4, show_progress=False)
    assert own.setup.temperature_model is None and own.setup.rate is not None
    rate = own.setup.rate
    own.fit([blobs(60, 1)])
    assert own.setup.temperature_model is not None and own.setup.rate == rate


def test_exported_files_have_the_temperature(net, tmp_path):
    own = fitted(net)
    x = torch.cat([blobs(2, 2)[0], FAR])
    hs.export(own, x, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for some in (x, x[1:]):
        torch.testing.assert_close(program(some)["mean"], own(some).mean, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_compiled_predictions_have_the_temperature(net):
    own, compiled = fitted(net, 0.01, method="gradients"), fitted(net, 0.01, method="gradients")
    compiled.compile()
    x = torch.cat([blobs(2, 2)[0], FAR])
    one, two = own(x), compiled(x)
    for name in ("mean", "data_var", "temperature", "novelty"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("noise", [None, 0.0])
@pytest.mark.parametrize("rate", [None, 0.0])
def test_without_anything_random_the_network_itself_is_predicted(net, noise, rate):
    p = hs.Uncertain(net, noise, "gradients", task="classification", rate=rate)(FAR)
    torch.testing.assert_close(p.mean, net(FAR).softmax(1))
    assert float(p.total_var.max()) == 0 and p.temperature is None


def test_double_precision_stays(net):
    wide = copy.deepcopy(net).double()
    x, y = blobs(100, 1)
    own = fitted(wide, held_out=[(x.double(), y)], options={"growth": True})
    assert own(FAR.double()).mean.dtype == own(FAR.double()).temperature.dtype == torch.float64


@pytest.mark.parametrize("method", ["auto", "gradients", "noise_sampling"])
@pytest.mark.parametrize("is_fitted", [False, True])
def test_probabilities_are_averaged_over_the_stated_noise(net, method, is_fitted):
    std = 0.8
    own = hs.Uncertain(net, hs.noise.std(std), method, task="classification", samples=400)
    if is_fitted:
        x, y = blobs(400, 1)
        noise = std * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
        own.fit([(x + noise, y)], show_progress=False)
    x = blobs(30, 2)[0]
    p = own(x)
    assert p.method == ("gradients" if method == "gradients" else "noise_sampling")
    t = p.temperature[:, None] if is_fitted else 1.0
    torch.manual_seed(0)
    draws = torch.stack([(net(x + std * torch.randn_like(x)) / t).softmax(1) for _ in range(4000)])
    plain = (net(x) / t).softmax(1)
    error = float((p.mean - draws.mean(0)).abs().mean())
    # Logits of two noisy numbers are far from Gaussian, as gradients take them to be.
    most, scale = (0.4, 0.25) if method == "gradients" else (0.12, 0.1)
    assert error < most * float((plain - draws.mean(0)).abs().mean())
    ratio = (p.data_var.sqrt() / draws.std(0))[draws.std(0) > 0.05]
    assert float(ratio.log().mean().exp()) == pytest.approx(1, abs=scale)


def test_the_temperature_is_that_of_averaged_probabilities(net):
    std, (x, y) = 0.8, blobs(600, 1)
    noisy = x + std * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    own = fitted(net, hs.noise.std(std), [(noisy, y)], {"growth": False, "inputs": "noisy"})
    torch.manual_seed(1)
    logits = torch.stack([net(noisy + std * torch.randn_like(x)) for _ in range(200)]).double()

    def nll(t):
        return float(F.nll_loss((logits / t).softmax(2).mean(0).log(), y))

    best = min((0.1 * 1.05**k for k in range(100)), key=nll)
    constant = own.setup.temperature_model.temperature
    # The noise is known from 16 draws, whose likelihood is a little too small.
    assert nll(constant) < nll(best) + 0.01
    alone = fitted(net, None, [(noisy, y)], {"growth": False}).setup.temperature_model.temperature
    assert constant < 0.9 * alone and nll(alone) > nll(constant) + 0.01


class Forward(torch.autograd.Function):
    """The identity, with a backward pass that must not be made."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError("a gradient was computed")


class NoBackward(nn.Module):
    def forward(self, x):
        return Forward.apply(x)


def test_without_noise_no_gradient_is_computed(net):
    own = fitted(nn.Sequential(NoBackward(), net).eval())
    p = own(torch.cat([blobs(5, 2)[0], FAR]))
    assert p.method == "gradients" and not any("sampl" in note for note in p.notes)


def test_the_model_variance_is_that_of_gaussian_logits(net, sure):
    new = torch.cat([blobs(20, 2)[0], FAR])
    p = sure(new)
    share = 1 - 1 / p.temperature
    torch.testing.assert_close(p.model_var, share[:, None] * p.mean * (1 - p.mean))
    torch.testing.assert_close(p.mutual_information, share * p.entropy, rtol=1e-4, atol=1e-6)
    assert float(p.model_var[20:].sum(1).min()) > 1.5 * float(p.model_var[:20].sum(1).median())
    # Gaussian logits around the network's whose mean probabilities have the same entropy.
    torch.manual_seed(0)
    normals = torch.randn(20000, 3)
    for row in range(len(new)):
        low, high = 0.0, 2000.0
        for _ in range(30):
            draws = (net(new[row]) + (low + high) / 2 * normals).softmax(1)
            is_low = float(torch.special.entr(draws.mean(0)).sum()) < float(p.entropy[row])
            low, high = ((low + high) / 2, high) if is_low else (low, (low + high) / 2)
        expected = float(draws.var(0).sum())
        assert float(p.model_var[row].sum()) == pytest.approx(expected, rel=0.25, abs=0.03)


def test_far_inputs_stay_new_however_sure_the_network_is(net, sure):
    directions = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    known = sure(blobs(200, 1)[0])
    for scale in (20, 100, 1000, 1e5):
        p = sure(scale * directions / directions.norm(dim=1, keepdim=True))
        assert float(p.novelty.min()) > 3
        assert float(p.model_var.sum(1).min()) > float(known.model_var.sum(1).median())
        assert float(p.mutual_information.min()) > float(known.mutual_information.median())


class Fragile(nn.Module):
    """Right about readings as they are, and sure of the first class under further noise."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        rough = (10 * x - (10 * x).round()).abs().amax(1, keepdim=True) > 0.01
        return torch.where(rough, torch.tensor([20.0, 0.0, 0.0]), self.net(x))


def test_a_note_says_where_the_network_itself_is_more_likely(net):
    x, y = blobs(200, 1)
    held_out = [((10 * x).round() / 10, y)]
    with_note = fitted(Fragile(net).eval(), hs.noise.std(0.1), held_out, {"growth": False})
    assert any('prediction="network"' in note for note in with_note.last_fit.model.notes)
    without = fitted(
        Fragile(net).eval(), hs.noise.std(0.1), held_out, {"growth": False}, prediction="network"
    )
    assert without.last_fit.model.notes == ()
    assert without.last_fit.nll < with_note.last_fit.nll


def test_noise_that_explains_all_mistakes_leaves_no_class_certain():
    torch.manual_seed(0)
    x = torch.rand(300, 1) * 2 - 1
    labels = (x[:, 0] > 0).long()
    labels[(x[:, 0] - 0.05).abs().argmin()] = 0  # The one mistake, where noise changes the class.
    model = nn.Sequential(nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-8.0], [8.0]]))
        model[0].bias.zero_()
    sure = hs.Uncertain(model, hs.noise.std(0.1), task="classification")
    fit = sure.fit([(x, labels)], growth=False, show_progress=False)
    print(fit)
    assert fit.model.temperature > 0.1
    assert bool((sure(torch.tensor([[-0.3], [0.3]])).std > 0).all())
