"""The constant temperature, the distances, and what is kept of the known inputs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize
from three_classes import FAR, blobs, fitted, labels_of
from torch import nn
from torch.nn import functional as F

from howsure.fit import TemperatureFit, known
from howsure.methods.activations import read
from howsure.posterior import distances as layer_distances
from howsure.posterior.temperature import best_temperature


def test_the_constant_is_that_of_an_independent_optimizer(net):
    x, y = blobs(300, 1)
    logits = net(x).double()
    found = optimize.minimize_scalar(
        lambda log_t: float(F.cross_entropy(logits / math.exp(log_t), y)),
        bounds=(-3, 5),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert best_temperature(logits, y) == pytest.approx(math.exp(found.x), rel=1e-5)


def test_fit_takes_the_constant_and_reports_it(net, sure):
    x, y = blobs(200, 1)
    fit = sure.last_fit
    assert isinstance(fit, TemperatureFit)
    assert fit.model.temperature == pytest.approx(best_temperature(net(x), y), rel=1e-6)
    assert fit.constant_nll == pytest.approx(
        float(F.cross_entropy(net(x).double() / fit.model.temperature, y)), rel=1e-6
    )
    assert fit.plain_nll == pytest.approx(float(F.cross_entropy(net(x).double(), y)), rel=1e-6)
    assert f"temperature {fit.model.temperature:.4g}" in sure.describe()
    assert "unlabeled inputs" in sure.describe() and "3 layers" in sure.describe()
    assert fit.to_dict()["temperature"] == fit.model.temperature


def inputs_by_hooks(model, x):
    """What goes into the linear layers, read in another way."""
    seen, handles = [], []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            handles.append(
                module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
            )
    model(x)
    for handle in handles:
        handle.remove()
    return [each.double().numpy() for each in seen]


def log_distances(model, known, x, ridge=0.01):
    """Neighbors by comparing all pairs, Mahalanobis distances by numpy."""
    ours, theirs = inputs_by_hooks(model, x), inputs_by_hooks(model, known)
    a, b = (e[-1] / np.linalg.norm(e[-1], axis=1, keepdims=True) for e in (ours, theirs))
    squared = np.sort(((a[:, None] - b[None]) ** 2).sum(2), axis=1)[:, 5]
    layers = []
    for new, old in zip(ours, theirs, strict=True):
        covariance = np.cov(old.T, bias=True)
        covariance = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(
            len(covariance)
        )
        away = new - old.mean(0)
        layers.append(
            np.einsum("ij,jk,ik->i", away, np.linalg.inv(covariance), away) / away.shape[1]
        )
    return np.stack([np.log(squared), np.log(np.mean(layers, 0))], 1)


def test_temperature_and_novelty_are_their_formulas(net, sure):
    known, held_out = blobs(200, 0)[0], blobs(200, 1)[0]
    new = torch.cat([blobs(20, 2)[0], FAR])
    logs = log_distances(net, known, held_out)
    model = sure.setup.temperature_model
    np.testing.assert_allclose(model.thresholds, np.quantile(logs, 0.75, axis=0), rtol=1e-4)
    at = log_distances(net, known, new)
    beyond = np.maximum(at - np.quantile(logs, 0.75, axis=0), 0)
    p = sure(new)
    wanted = model.temperature * np.exp(beyond @ [0.5, 1.0])
    np.testing.assert_allclose(p.temperature, wanted, rtol=1e-3)
    energy, known_energy = (net(each).double().logsumexp(1).numpy() for each in (new, held_out))
    ranges = [np.subtract(*np.quantile(e, [0.75, 0.25])) for e in (logs @ [0.5, 1.0], known_energy)]
    level = np.quantile(known_energy, 0.75)
    lack, known_lack = (np.maximum(level - e, 0) for e in (energy, known_energy))
    weight = 2 * ranges[0] / ranges[1]
    np.testing.assert_allclose(model.energy, (weight, level), rtol=1e-4)
    known = np.quantile(logs @ [0.5, 1.0] + weight * known_lack, 0.75)
    np.testing.assert_allclose(
        p.novelty, np.exp(at @ [0.5, 1.0] + weight * lack - known), rtol=1e-3
    )
    torch.testing.assert_close(p.mean, (net(new) / p.temperature[:, None]).softmax(1))
    torch.testing.assert_close(p.entropy, torch.special.entr(p.mean).sum(1))


def test_a_quarter_of_the_held_out_inputs_is_new_and_as_many_by_either_distance_less_sure(sure):
    p = sure(blobs(200, 1)[0])
    assert int((p.novelty > 1).sum()) == 50
    assert (
        50 <= int((p.temperature > sure.setup.temperature_model.temperature * 1.0001).sum()) <= 100
    )
    assert float(sure(FAR).novelty.min()) > 10 * float(p.novelty.median())


def test_held_out_inputs_are_judged_by_folds_that_have_not_seen_them(net):
    x, y = blobs(100, 1)
    found = fitted(net, held_out=[(x[:60], y[:60]), (x[60:], y[60:])], options={"stress": None})
    fold = np.concatenate([np.arange(60) % 5, (np.arange(40) + 1) % 5])
    logs = np.zeros((100, 2))
    for k in range(5):
        logs[fold == k] = log_distances(net, x[fold != k], x[fold == k], ridge=0.1)
    model = found.setup.temperature_model
    np.testing.assert_allclose(model.thresholds, np.quantile(logs, 0.75, axis=0), rtol=1e-4)
    assert found.last_fit.cross_fitted and found.last_fit.known == 100
    np.testing.assert_allclose(
        model.distances.logs(read(found.setup, FAR).inputs, len(FAR)),
        log_distances(net, x, FAR, ridge=0.1),
        rtol=1e-4,
    )


def test_stress_fits_the_growth_by_half_of_the_weight_on_clean_data(net):
    x, y = blobs(200, 1)
    wider = lambda x: 2.5 * x  # noqa: E731
    found = fitted(net, options={"train_inputs": blobs(200, 0)[0], "stress": [wider]})
    model = found.setup.temperature_model
    cost = {}
    logs = [torch.tensor(log_distances(net, blobs(200, 0)[0], each)) for each in (x, wider(x))]
    logits = [net(each).double() for each in (x, wider(x))]
    rates = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    for one in rates:
        for two in rates:
            beyond = [(each - model.thresholds).clamp(min=0) for each in logs]
            t = [model.temperature * (b @ b.new_tensor([one, two])).exp() for b in beyond]
            nll = [F.cross_entropy(z / s[:, None], y) for z, s in zip(logits, t, strict=True)]
            cost[one, two] = float(sum(nll))
    assert cost[model.growth] == pytest.approx(min(cost.values()), abs=1e-5)
    assert found.last_fit.stressed_nll < found.last_fit.constant_stressed_nll


def test_a_report_says_by_which_distances_the_temperature_grows(sure):
    fit = sure.last_fit
    assert "and 1 (Mahalanobis, 3 layers)" in str(fit)
    without = replace(fit, model=replace(fit.model, growth=(0.0, 0.0)))
    assert "does not depend on the distance from" in str(without)
    assert max(map(len, str(fit).splitlines())) <= 110


def small_pictures():
    """A network of four convolutions, and pictures of which it knows two in three."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Conv2d(6, 6, 3, padding=1), nn.Tanh()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)).eval()
    x = torch.rand(120, 3, 8, 8)
    return net, x, labels_of(net, x)


def test_images_are_corrupted_by_default_and_early_averages_left_out():
    net, x, y = small_pictures()
    sure = fitted(net, held_out=[(x, y)], options={"train_inputs": torch.rand(80, 3, 8, 8)})
    asked = fitted(
        net, held_out=[(x, y)], options={"train_inputs": torch.rand(80, 3, 8, 8), "stress": None}
    )
    # Two of four convolutions; what enters the linear layer is no average.
    assert [each.name for each in sure.setup.temperature_model.distances.layers] == ["4", "6", "10"]
    assert sure.last_fit.stressed_nll is not None and asked.last_fit.stressed_nll is None
    assert asked.setup.temperature_model.growth == (0.5, 1.0)
    assert "beyond its 75 % quantile" in sure.describe()


def test_other_inputs_are_not_corrupted_unless_asked(sure):
    assert sure.last_fit.stressed_nll is None
    assert sure.setup.temperature_model.growth == (0.5, 1.0)
    assert len(sure.setup.temperature_model.distances.layers) == 3


def test_neighbors_layers_and_widths_are_capped(net, monkeypatch):
    monkeypatch.setattr(known, "MOST_LAYERS", 2)
    for name, most in (("MOST_NEIGHBORS", 70), ("MOST_NUMBERS", 8), ("MOST_FEATURES", 8)):
        monkeypatch.setattr(layer_distances, name, most)
    frames = blobs(200, 0)[0]
    own = fitted(net, options={"train_inputs": frames})
    distances = own.setup.temperature_model.distances
    assert distances.count == 200 and distances.neighbors.shape == (70, 8)
    assert [layer.name for layer in distances.layers] == ["0", "4"]
    assert [len(layer.mean) for layer in distances.layers] == [2, 8]
    every = layer_distances.direction(read(own.setup, frames).inputs["4"])
    nearest = torch.cdist(distances.neighbors, every).min(1).values
    assert float(nearest.max()) < 1e-3
    assert float(own(FAR).novelty.min()) > 3


def test_sums_over_batches_are_those_of_all_inputs(net):
    known = blobs(200, 0)[0]
    options = {"train_inputs": iter(known.split(30))}
    one, two = fitted(net), fitted(net, options=options)
    for a, b in zip(
        one.setup.temperature_model.distances.layers,
        two.setup.temperature_model.distances.layers,
        strict=True,
    ):
        torch.testing.assert_close(a.mean, b.mean)
        torch.testing.assert_close(a.whitening, b.whitening, rtol=1e-6, atol=1e-9)
