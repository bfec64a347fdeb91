"""The temperature against scipy, with and without variances of the logits."""

import numpy as np
import pytest
import torch
from scipy import optimize
from torch.nn import functional as F

import howsure as hs
from howsure.calibrate import Temperature, class_probabilities
from howsure.moments.rule import find
from howsure.moments.value import Moments


def draws(n=300, classes=5, *, temperature=2.0, var=0.0, places=(), seed=0):
    """Logits whose labels are drawn at a known temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, *places, generator=generator).double() * 3
    p = torch.softmax(logits / temperature, 1).movedim(1, -1)
    labels = torch.multinomial(p.reshape(-1, classes), 1, generator=generator)
    spread = torch.rand(logits.shape, generator=generator).double() * var
    prediction = class_probabilities(hs.Prediction(logits, 0.6 * spread, 0.4 * spread))
    return prediction, labels.reshape(p.shape[:-1])


def categorical_nll(prediction, labels, t):
    softmax = find(F.softmax)
    logits = prediction.logits
    p = softmax(Moments(logits.mean / t, logits.total_var / t**2), 1).mean
    return float(-torch.log(p.gather(1, labels.unsqueeze(1))).mean())


@pytest.mark.parametrize(
    ("n", "var", "places"), [(300, 0.0, ()), (300, 2.0, ()), (1100, 2.0, ()), (60, 0.0, (2, 3))]
)
def test_it_is_where_scipy_finds_the_smallest_nll(n, var, places):
    prediction, labels = draws(n, var=var, places=places)
    best = optimize.minimize_scalar(
        lambda log_t: categorical_nll(prediction, labels, np.exp(log_t)),
        bounds=(-2, 3),
        options={"xatol": 1e-7},
    )
    fitted = Temperature.fit(prediction, labels)
    assert float(fitted.temperature) == pytest.approx(np.exp(best.x), rel=1e-6)
    after = fitted(prediction)
    nll = float(hs.metrics.categorical_nll(after.mean, labels))
    assert nll == pytest.approx(best.fun, abs=1e-8) and nll < categorical_nll(prediction, labels, 1)


def two_minima(n=1100, every=1):
    """Logits that want a temperature of 2, and uncertain ones, about nothing, that want 0.05.

    Every third input, of which a first guess is made, is mostly of the former kind.
    """
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(n, 4, generator=generator).double()
    labels = torch.multinomial(torch.softmax(logits / 2, 1), 1, generator=generator)[:, 0]
    number = torch.arange(n)
    is_vague = (number % 3 > 0) | (number % 5 == 0)
    logits[is_vague] = 0.1 * F.one_hot(labels[is_vague], 4).double()
    var = torch.where(is_vague[:, None], 0.01, 0.5).expand_as(logits).double()
    logits, var, labels = logits[::every], var[::every], labels[::every]
    return class_probabilities(hs.Prediction(logits, var, torch.zeros_like(var))), labels


def test_of_two_minima_the_lower_one_of_all_inputs_counts():
    assert float(Temperature.fit(*two_minima(every=3)).temperature) > 1
    prediction, labels = two_minima()
    fitted = Temperature.fit(prediction, labels)
    grid = np.logspace(-2.5, 2, 40)
    best = min(grid, key=lambda t: categorical_nll(prediction, labels, t))
    assert float(fitted.temperature) == pytest.approx(best, rel=0.3) and best < 0.1


def test_the_known_temperature_comes_back():
    assert float(Temperature.fit(*draws(20000, temperature=2.5)).temperature) == pytest.approx(
        2.5, rel=0.05
    )


def test_without_variance_it_is_the_plain_softmax():
    prediction, labels = draws()
    fitted = Temperature.fit(prediction, labels)
    after = fitted(prediction)
    plain = torch.softmax(prediction.logits.mean / fitted.temperature, 1)
    torch.testing.assert_close(after.mean, plain)
    assert not after.total_var.any() and torch.equal(after.logits.mean * 1, after.logits.mean)
    torch.testing.assert_close(after.expected_entropy, after.entropy)


def test_with_variance_logits_and_probabilities_go_together():
    prediction, labels = draws(var=1.0)
    fitted = Temperature.fit(prediction, labels)
    after, t = fitted(prediction), fitted.temperature
    torch.testing.assert_close(after.logits.total_var, prediction.logits.total_var / t.square())
    torch.testing.assert_close(
        after.total_var,
        find(F.softmax)(Moments(after.logits.mean, after.logits.total_var), 1).var,
    )
    assert bool((after.data_var > 0).all()) and bool((after.model_var > 0).all())
    assert bool((after.mutual_information >= 0).all())
    one = Temperature(torch.tensor(1.0))(prediction)
    torch.testing.assert_close(one.mean, prediction.mean)
    torch.testing.assert_close(one.data_var, prediction.data_var)


def test_moments_of_uncertain_logits_against_sampling():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator).double()
    data, model = torch.full_like(logits, 0.3), torch.full_like(logits, 0.2)
    found = class_probabilities(hs.Prediction(logits, data, model))
    weights = torch.randn(2000, 1, 6, 4, generator=generator).double() * model.sqrt()
    noise = torch.randn(2000, 50, 6, 4, generator=generator).double() * data.sqrt()
    p = torch.softmax(logits + weights + noise, -1)
    mean, by_model = p.mean((0, 1)), p.mean(1)
    torch.testing.assert_close(found.mean, mean, atol=0.02, rtol=0)
    torch.testing.assert_close(found.std, p.var((0, 1)).sqrt(), atol=0, rtol=0.15)
    torch.testing.assert_close(found.model_var.sqrt(), by_model.std(0), atol=0, rtol=0.2)
    expected = torch.special.entr(by_model).sum(-1).mean(0)
    torch.testing.assert_close(found.expected_entropy, expected, atol=0.06, rtol=0)


def test_what_is_known_about_logits_and_call_follows():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
    sure = hs.Uncertain(net, noise=0.1, method="gradients", task="classification")
    before = sure(torch.randn(5, 4))
    after = Temperature(torch.tensor(2.0))(before)
    assert after.method == before.method and after.notes == before.notes
    torch.testing.assert_close(after.logits.std, before.logits.std / 2)
    torch.testing.assert_close(after.logits.std_error, before.logits.std_error / 2)
    torch.testing.assert_close(after.budget().total, before.budget().total / 4)


def test_labels_that_have_no_best_temperature():
    prediction, labels = draws(60)
    with pytest.raises(ValueError, match="toward temperature 0"):
        Temperature.fit(prediction, prediction.mean.argmax(1))
    with pytest.raises(ValueError, match="no better than chance"):
        Temperature.fit(prediction, prediction.mean.argmin(1))
    plain = hs.Prediction(prediction.mean, prediction.data_var, prediction.model_var)
    with pytest.raises(ValueError, match="needs logits"):
        Temperature.fit(plain, labels)
    with pytest.raises(ValueError, match="run from 0 to 9, but there are 5 classes"):
        Temperature.fit(prediction, torch.where(labels == 4, 9, labels))
    with pytest.raises(TypeError, match="whole numbers"):
        Temperature.fit(prediction, labels.double())
    with pytest.raises(ValueError, match="need"):
        Temperature.fit(prediction, labels[:, None])
