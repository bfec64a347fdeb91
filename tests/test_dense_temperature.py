"""The temperature of classes at every pixel: one for each image, and what `fit` makes of it."""

import pytest
import torch
from scipy import optimize
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.fit import TemperatureFit
from howsure.fit import labeled as labels_of_fit
from howsure.methods.classified import class_scores

SIDE = 8


def scenes(count, seed, shift=0.0):
    """Images whose pixels tell their class but for noise; (count, 2, 8, 8) and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count, SIDE, SIDE), generator=generator)
    centers = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    clean = centers[labels].movedim(3, 1)
    return clean + torch.randn(clean.shape, generator=generator) + shift, labels


@pytest.fixture(scope="module")
def net():
    """Trained on few images for far too long, so that it is too sure."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.ReLU(),
        nn.Conv2d(16, 3, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x, y = scenes(6, 0)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def fitted(model, noise=None, held_out=None, model_part="auto", **options):
    sure = hs.Uncertain(model, noise, task="classification", samples=60)
    x, y = held_out or scenes(60, 1)
    fit = sure.fit(
        list(zip(x.split(20), y.split(20), strict=True)),
        model=model_part,
        show_progress=False,
        **options,
    )
    return sure, fit


@pytest.fixture(scope="module")
def sure(net):
    return fitted(net)[0]


def nll(probabilities, labels):
    return float(F.nll_loss(probabilities.clamp(min=1e-12).log(), labels))


def test_the_constant_is_that_of_an_independent_optimizer(net):
    x, y = scenes(60, 1)
    fit = fitted(net, model_part=None)[1]
    logits = net(x).double()
    best = optimize.minimize_scalar(
        lambda t: float(F.cross_entropy(logits / t, y)), bounds=(0.1, 20), method="bounded"
    )
    assert isinstance(fit, TemperatureFit) and fit.count == 60
    assert fit.model.temperature == pytest.approx(best.x, rel=1e-3)
    assert fit.constant_nll == pytest.approx(best.fun, rel=1e-5)


def test_predictions_are_the_network_at_the_temperature_of_the_image(sure, net):
    x, _ = scenes(5, 2)
    p = sure(x)
    t = class_scores(sure.setup, x).temperature
    torch.testing.assert_close(p.temperature, t)
    torch.testing.assert_close(p.mean, (net(x) / t[:, None, None, None]).softmax(1))
    assert p.entropy.shape == p.mutual_information.shape == (5, SIDE, SIDE)
    share = (1 - 1 / t)[:, None, None]
    torch.testing.assert_close(p.model_var, share[:, None] * p.mean * (1 - p.mean))
    torch.testing.assert_close(p.mutual_information, share * p.entropy, rtol=1e-4, atol=1e-6)
    assert float(p.data_var.max()) == 0


def test_images_unlike_the_known_ones_are_less_sure(sure):
    (x, y), (other, labels) = scenes(30, 3), scenes(30, 3, shift=3.0)
    known, new = sure(x), sure(other)
    assert float(new.joint_novelty.median()) > 3 * float(known.joint_novelty.median())
    assert float(new.temperature.median()) > 1.5 * float(known.temperature.median())
    constant = sure.setup.temperature_model.temperature
    assert nll(new.mean, labels) < nll((sure.model(other) / constant).softmax(1), labels)
    assert nll(known.mean, y) < nll(sure.model(x).softmax(1), y)


def test_variances_are_those_of_the_cooled_probabilities(net):
    own, _ = fitted(net, hs.noise.std(0.3))
    x = scenes(2, 4)[0]
    p = own(x)
    t = p.temperature[:, None, None, None]
    torch.manual_seed(0)
    draws = torch.stack([(net(x + 0.3 * torch.randn_like(x)) / t).softmax(1) for _ in range(3000)])
    expected = draws.std(0)
    ratio = (p.data_var.sqrt() / expected)[expected > 0.02]
    assert float(ratio.log().mean().exp()) == pytest.approx(1, abs=0.08)  # 200 samples
    torch.testing.assert_close(p.mean, draws.mean(0), rtol=0, atol=0.1)


@pytest.mark.parametrize("noise", [None, 0.09])
def test_an_image_does_not_depend_on_its_batch(net, noise):
    own, _ = fitted(net, noise)
    x = scenes(4, 5)[0]
    whole = own(x)
    alone = [own(x[row : row + 1]) for row in range(4)]
    for name in ("mean", "std", "temperature", "joint_novelty"):
        each = torch.cat([getattr(one, name) for one in alone])
        torch.testing.assert_close(getattr(whole, name), each, rtol=1e-4, atol=1e-6)


def test_settings_are_saved_with_it(sure, net, tmp_path):
    sure.save(tmp_path / "s.pt")
    x = scenes(3, 6)[0]
    torch.testing.assert_close(hs.Uncertain.load(tmp_path / "s.pt", net)(x).mean, sure(x).mean)


def test_pixels_without_a_label_do_not_count(net):
    x, y = scenes(60, 1)
    wrong = (net(x).argmax(1) + 1) % 3
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    fits = [
        fitted(net, held_out=(x, torch.where(hidden, none, y)), model_part=None)[1]
        for none in (-100, 255)
    ]
    seen = fitted(net, held_out=(x, torch.where(hidden, wrong, y)), model_part=None)[1]
    assert fits[0].nll == fits[1].nll < seen.nll
    with pytest.raises(ValueError, match="No held-out pixel has a label"):
        fitted(net, held_out=(x, torch.full_like(y, 255)))


def test_a_choice_of_pixels_finds_the_same(net, monkeypatch):
    whole = fitted(net, model_part=None)[1]
    monkeypatch.setattr("howsure.fit.temperature.PIXELS", 60 * 32)
    half = fitted(net, model_part=None)[1]
    assert half.model.temperature != whole.model.temperature
    assert half.model.temperature == pytest.approx(whole.model.temperature, rel=0.1)
    assert labels_of_fit.PIXELS > 60 * SIDE**2


def test_wrong_labels_are_refused(net):
    x, y = scenes(60, 1)
    with pytest.raises(ValueError, match=r"one class index for each pixel, \(20, 8, 8\)"):
        fitted(net, held_out=(x, y[:, 0]))
    with pytest.raises(ValueError, match="from 1 to 7, but there are 3 classes"):
        fitted(net, held_out=(x, torch.where(y == 0, 7, y)))


class Jittering(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.filterwarnings("ignore:The best rate")
def test_a_random_network_has_no_temperature(net):
    fit = fitted(nn.Sequential(Jittering(), net).eval(), 0.01)[1]
    assert not isinstance(fit, TemperatureFit) and "draws random numbers" in fit.notes[0]


def test_methods_without_room_say_so(sure, net):
    other = hs.Uncertain(net, 0.01, "gradients", task="classification")
    other.setup = other.setup.replace(temperature_model=sure.setup.temperature_model)
    with pytest.raises(ValueError, match="cannot use what `fit` found"):
        other(scenes(2, 7)[0])


def test_the_gate_and_the_words(sure):
    gate = hs.Gate.on_novelty(sure.setup.temperature_model)
    assert not bool(gate(sure(scenes(4, 8, shift=6.0)[0]).joint_novelty).any())
    assert "(Mahalanobis, " in sure.describe()
    assert "neighbors" not in sure.describe()
