"""The posterior over masks and the variance model are their formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn
from waves import data, trained

import howsure as hs
from howsure.methods.gradients import examine_at_input
from howsure.posterior import laplace
from howsure.posterior.distances import InputRange
from howsure.posterior.laplace import Gram, output_scale, posterior_of
from howsure.posterior.local_error import Kernel
from howsure.posterior.scores import Scores
from howsure.posterior.variance_model import VarianceModel
from howsure.posterior.weights import best_weights


def gram_of(batches):
    gram = Gram(output_scale(batches[0]))
    for z in batches:
        gram.add(z)
    return gram


def conv_net():
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    "make, x",
    [(lambda: trained(outputs=2), data(5, 0)[0]), (conv_net, torch.rand(3, 1, 8, 8))],
)
def test_mask_gradients_are_finite_differences_of_multipliers(make, x):
    model = make()
    z = examine_at_input(hs.Uncertain(model.double(), 0.01).setup, x.double()).slopes
    layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)][:-1]
    number, step = 0, 1e-6
    for layer in layers:
        after = {nn.Linear: nn.Tanh, nn.Conv2d: nn.ReLU}[type(layer)]
        own = list(model).index(layer)
        place = next(m for m in list(model)[own:] if isinstance(m, after))
        for unit in range(layer.weight.shape[0]):

            def scaled(module, inputs, output, unit=unit, sign=1):
                factor = torch.ones(output.shape[1], dtype=output.dtype)
                factor[unit] += sign * step
                return output * factor.reshape(-1, *(1,) * (output.dim() - 2))

            ends = []
            for sign in (1, -1):
                hook = place.register_forward_hook(
                    lambda m, i, o, sign=sign, scaled=scaled: scaled(m, i, o, sign=sign)
                )
                with torch.no_grad():
                    ends.append(model(x.double()))
                hook.remove()
            slope = (ends[0] - ends[1]) / (2 * step)
            torch.testing.assert_close(z[:, :, number], slope, rtol=1e-4, atol=1e-6)
            number += 1
    assert number == z.shape[2]
    model.float()


def test_m_is_the_formula():
    z = torch.randn(70, 1, 9, dtype=torch.float64) * torch.rand(9, dtype=torch.float64)
    new = torch.randn(4, 1, 9, dtype=torch.float64)
    found = posterior_of([gram_of(z.split(20))], 0.01).predictive_variance(new)[:, 0].numpy()
    c = (z[:, 0].mT @ z[:, 0] / 70).numpy()
    inverse = np.linalg.inv(c + 0.01 * np.trace(c) / 9 * np.eye(9))
    expected = [row @ inverse @ row / 9 for row in new[:, 0].numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_outputs_of_any_scale_share_a_posterior():
    z = torch.randn(80, 2, 6, dtype=torch.float64)
    plain = posterior_of([gram_of([z])], 0.01)
    scaled = posterior_of([gram_of([z * torch.tensor([1.0, 1e4])[:, None]])], 0.01)
    new = torch.randn(3, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(
        plain.predictive_variance(new),
        scaled.predictive_variance(new * torch.tensor([1.0, 1e4])[:, None]),
    )
    covariance = plain.covariance(new)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-12


def test_an_output_that_no_mask_moves_has_no_model_variance():
    z = torch.randn(60, 2, 5, dtype=torch.float64)
    z[:, 1] = 0
    found = posterior_of([gram_of([z])], 0.01).predictive_variance(z)
    assert bool((found[:, 1] == 0).all()) and bool((found[:, 0] > 0).all())


def test_many_masks_are_sketched_and_rank_alike(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(30, 600, generator=generator, dtype=torch.float64)
    known = torch.randn(500, 1, 30, generator=generator, dtype=torch.float64) @ mixing
    size = torch.rand(40, 1, 1, generator=generator, dtype=torch.float64)
    off = torch.randn(40, 1, 600, generator=generator, dtype=torch.float64)
    new = torch.randn(40, 1, 30, generator=generator, dtype=torch.float64) @ mixing + 3 * size * off
    exact = posterior_of([gram_of([known])], 0.01).predictive_variance(new).flatten()
    monkeypatch.setattr(laplace, "EXACT", 500)
    monkeypatch.setattr(laplace, "SKETCHED", 200)
    gram = gram_of([known])
    assert gram.total.shape == (200, 200)
    rough = posterior_of([gram], 0.01).predictive_variance(new).flatten()
    assert float(hs.metrics.rank_correlation(exact, rough)) > 0.9


def test_grams_add_up():
    z = torch.randn(60, 2, 4, dtype=torch.float64)
    whole = gram_of([z])
    one, two = Gram(whole.scale), Gram(whole.scale)
    one.add(z[:25])
    two.add(z[25:])
    found, expected = posterior_of([one, two], 0.1), posterior_of([whole], 0.1)
    torch.testing.assert_close(found.whitening, expected.whitening)
    torch.testing.assert_close(found.scale, expected.scale)
    assert found.count == 60


def test_weights_are_those_of_scipy():
    generator = torch.Generator().manual_seed(2)
    terms = torch.rand(400, 3, generator=generator, dtype=torch.float64)
    terms[:, 0] = 1
    true = torch.tensor([0.2, 0.0, 2.0], dtype=torch.float64)
    noise = torch.randn(400, generator=generator, dtype=torch.float64)
    error = noise.square() * (terms @ true)
    nothing = torch.full((3,), math.nan, dtype=torch.float64)
    found = best_weights(error, terms, nothing)

    def cost(weights):
        v = terms.numpy() @ weights
        return float(np.mean(0.5 * np.log(v) + error.numpy() / (2 * v)))

    bounds = [(1e-12, None)] * 3
    best = optimize.minimize(cost, [0.3, 0.3, 0.3], bounds=bounds, method="L-BFGS-B")
    assert cost(found.numpy() + 1e-15) <= best.fun + 1e-6
    fixed = best_weights(error, terms, torch.tensor([0.5, math.nan, 0.0], dtype=torch.float64))
    assert float(fixed[0]) == 0.5 and float(fixed[2]) == 0


def test_a_weight_that_is_known_to_be_about_one_is_the_most_probable():
    generator = torch.Generator().manual_seed(3)
    terms = torch.rand(60, 2, generator=generator, dtype=torch.float64) / 100
    terms[:, 0] = 1
    error = torch.randn(60, generator=generator, dtype=torch.float64).square() * (
        1 + 200 * terms[:, 1]
    )
    nothing = torch.full((2,), math.nan, dtype=torch.float64)
    log_std = torch.tensor([math.inf, 2.0], dtype=torch.float64)
    found = best_weights(error, terms, nothing, log_std)

    def cost(logs):
        v = terms.numpy() @ np.exp(logs)
        return float(np.sum(0.5 * np.log(v) + error.numpy() / (2 * v)) + 0.5 * (logs[1] / 2) ** 2)

    starts = ([0.0, 0.0], [0.0, 5.0])
    best = min(optimize.minimize(cost, start).fun for start in starts)
    assert cost(found.log().numpy()) <= best + 1e-5
    assert abs(float(found[1].log())) < abs(float(best_weights(error, terms, nothing)[1].log()))


def variance_model(**changes):
    one = torch.ones(1, dtype=torch.float64)
    values = {
        "posterior": None,
        "distances": None,
        "input_range": None,
        "weights": torch.tensor([[0.1, 1, 0.5, 0.2, 0.3, 0, 0.25]], dtype=torch.float64),
        "floor": 0.4 * one,
        "known": one,
        "known_distances": torch.tensor([0.1, 2.0], dtype=torch.float64),
        "farthest": torch.tensor([1.0, 8.0], dtype=torch.float64),
        "growth": torch.tensor([[0.0, 0.7]], dtype=torch.float64),
        "novelty_scale": 2 * one,
        "joint_known": 1.0,
        "squared_error": 0.3 * one,
        "exponent": 1.5,
        "degrees_of_freedom": math.inf,
        "center": 1 * one,
        "spread": math.inf * one,
        "quantiles": torch.ones(101, 1),
        "joint_quantiles": torch.ones(101),
    }
    return VarianceModel(**{**values, **changes})


def test_the_variance_model_is_its_formula():
    m, data, f = (torch.rand(40, 1, dtype=torch.float64) * k for k in (4, 0.1, 3))
    distances = torch.rand(40, 2, dtype=torch.float64) * torch.tensor([0.5, 20.0])
    beyond, kernel = (torch.rand(40, dtype=torch.float64) * k for k in (9, 1))
    scores = replace(Scores.of(f, data), m=m, distances=distances, beyond=beyond, kernel=kernel)
    parts = variance_model().parts(scores)
    m, layers = m.clamp(min=0.4), distances[:, 1:]
    deviation = (f - 1) ** 2
    inside = 0.1 + data + 0.5 * m + 0.2 * layers + 0.3 * deviation + 0.25 * kernel[:, None]
    far = torch.maximum(distances[:, 0], torch.maximum(layers[:, 0] / 8, beyond))[:, None]

    def grown(n):
        return (n**1.5 - 1).clamp(min=0)

    expected = inside + 0.3 * (grown(m) + grown(far) + 0.7 * grown(layers / 2))
    torch.testing.assert_close(parts.total, expected)
    novelty = torch.maximum(torch.maximum(m, layers / 2), far) / 2
    torch.testing.assert_close(parts.novelty, novelty)
    capped = variance_model(spread=torch.tensor([0.5], dtype=torch.float64)).parts(scores)
    most = 0.5 + deviation
    torch.testing.assert_close(capped.total, (expected**-4 + most**-4) ** -0.25)
    torch.testing.assert_close(capped.data, data)  # The sensor's own is never capped.


def test_numbers_that_overflow_leave_the_cap():
    huge = torch.full((1, 1), 1e200, dtype=torch.float64)
    plain = Scores.of(torch.ones(1, 1), torch.zeros(1, 1))
    scores = replace(plain, m=huge, distances=huge.expand(1, 2), beyond=huge[0])
    capped = variance_model(spread=torch.tensor([0.5], dtype=torch.float64)).parts(scores)
    assert float(capped.total) == pytest.approx(0.5)


def test_the_kernel_is_that_of_a_gaussian_process():
    rows, new = torch.randn(15, 3), torch.randn(6, 3)
    kernel = Kernel.of(rows)

    def k(a, b):
        gaps = np.square(a.numpy().astype(float)[:, None] - b.numpy().astype(float)).sum(2)
        return np.exp(-0.5 * gaps / kernel.width**2)

    inverse = np.linalg.inv(k(rows, rows) + 1e-3 * np.eye(15))
    expected = [1 - row @ inverse @ row for row in k(new, rows)]
    np.testing.assert_allclose(kernel.variance(new), expected, rtol=1e-5, atol=1e-9)
    assert float(kernel.variance(rows).max()) < 0.01
    assert float(kernel.variance(rows + 1e3).min()) == pytest.approx(1)


def test_the_range_is_1_at_twice_what_is_known():
    inputs = torch.tensor([[0.0, 5.0, 0.0], [2.0, 5.0, 0.0]], dtype=torch.float64)
    known = InputRange.of(inputs.amin(0), inputs.amax(0))
    new = torch.tensor([[3.0, 5.0, 0.0], [1.0, 15.0, 0.0], [1.0, 5.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(known.distance(new), torch.tensor([1.0, 1.0, 4.0]).double())
