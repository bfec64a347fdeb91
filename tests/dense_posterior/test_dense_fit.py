"""Fits of dense outputs: their weights, folds and predictions."""

import pytest
import torch
from dense_networks import SIDE, Dense, data, images

import howsure as hs
from howsure.fit import PosteriorFit
from howsure.methods.dense import gradients_at_pixels
from howsure.posterior.pixels import PixelGram, pixel_posterior_of, pixel_variance


def test_fit_says_what_it_found(sure):
    fit = sure.last_fit
    assert isinstance(fit, PosteriorFit)
    assert (fit.count, fit.known, fit.cross_fitted) == (30, 60, False)
    assert 0.9 < fit.coverage < 0.99
    assert f"posterior over {5 + 8} multipliers" in str(fit)


def test_the_weights_are_at_least_as_good_as_a_constant(net):
    plain = {"growth": False, "cap": False, "show_progress": False}
    fit = hs.Uncertain(net).fit([data(20, 1)], **plain)
    assert fit.nll <= fit.constant_nll + 1e-6
    # With noise the factor has a prior around 1: no worse than with the sensor as it was told.
    free, told = (
        hs.Uncertain(net, 0.001, samples=20).fit([data(20, 1)], noise_factor=factor, **plain)
        for factor in (None, 1.0)
    )
    assert free.nll <= told.nll + 1e-6


def test_the_prediction_is_the_formula(sure, net):
    x, model = images(3, 7), sure.setup.variance_model
    p = sure(x)
    noise = hs.Uncertain(net, 0.001, "noise_sampling", samples=20)(x).data_var.double()
    pixels = gradients_at_pixels(sure.setup, x)
    m = pixel_variance(model.posterior, pixels.z, pixels.masks)
    m, f = m.reshape(x.shape), net(x).double()
    m = m.clamp(min=float(model.floor))
    ratio = m / model.known
    growth = model.squared_error * (ratio**1.5 - 1).clamp(min=0)
    deviation = (f - model.center) ** 2
    mask_var, deviation_var = model.weight("mask_var"), model.weight("deviation_var")
    v = model.weight("residual_var") + noise + mask_var * m + deviation_var * deviation + growth
    most = model.spread + deviation
    expected = (v**-4 + most**-4) ** -0.25
    novelty = ratio / model.novelty_scale
    torch.testing.assert_close(p.total_var.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(p.novelty.double(), novelty, rtol=1e-5, atol=0)
    torch.testing.assert_close(p.mean, net(x))
    torch.testing.assert_close(p.budget().total, p.total_var.flatten(1))
    joint = novelty.mean((1, 2, 3)) / model.joint_known
    torch.testing.assert_close(p.joint_novelty.double(), joint, rtol=1e-5, atol=0)
    assert p.method == "noise_sampling" and "every pixel" in p.notes[0]


def test_dense_classes_have_a_map_of_entropy():
    p = hs.Uncertain(Dense(3), 0.01, task="classification", samples=8)(images(2, 0))
    expected = -(p.mean * p.mean.log()).sum(1)
    torch.testing.assert_close(p.entropy, expected)
    assert p.mutual_information.shape == (2, SIDE, SIDE)
    torch.testing.assert_close(p.mutual_information, (expected - p.expected_entropy).clamp(min=0))


def test_intervals_cover_the_pixels_of_other_images(sure):
    x, y = data(20, 33)
    low, high = sure(x).interval(0.95)
    assert 0.92 < float(((low < y) & (y < high)).double().mean()) < 0.98


def test_a_strange_patch_is_new_where_it_is(sure):
    x = images(4, 8)
    x[:, :, 2:7, 2:7] = 6.0
    novelty = sure(x).novelty[:, 0]
    assert float(novelty[:, 3:6, 3:6].mean()) > 3 * float(novelty[:, 9:, 9:].mean())


def test_a_row_does_not_depend_on_its_batch(sure):
    x = images(4, 3)
    whole = sure(x)
    for i in range(4):
        alone = sure(x[i : i + 1])
        for name in ("mean", "data_var", "model_var", "novelty", "joint_novelty"):
            found, own = getattr(alone, name)[0], getattr(whole, name)[i]
            torch.testing.assert_close(found, own, rtol=1e-3, atol=1e-5)
    assert sure(x[:0]).std.shape == (0, 1, SIDE, SIDE)


def test_settings_come_back(sure, net, tmp_path):
    sure.save(tmp_path / "settings.pt")
    loaded, x = hs.Uncertain.load(tmp_path / "settings.pt", net), images(2, 4)
    assert torch.equal(loaded(x).total_var, sure(x).total_var)
    assert torch.equal(loaded(x).novelty, sure(x).novelty)


def test_without_noise_nothing_is_sampled(net):
    wrapped = hs.Uncertain(net)
    wrapped.fit([data(20, 1)], show_progress=False)
    p = wrapped(images(2, 4))
    assert wrapped.last_fit.cross_fitted
    noise, *others = p.budget().variances
    assert bool((noise == 0).all()) and bool((sum(others) > 0).all())
    assert bool((p.std_error == 0).all())


def test_the_mean_over_noise_is_predicted_if_asked_for(net):
    wrapped = hs.Uncertain(net, 0.3, prediction="mean", samples=50)
    wrapped.fit([data(12, 1)], train_inputs=images(20, 0), show_progress=False)
    x = images(2, 4)
    expected = hs.Uncertain(net, 0.3, "noise_sampling", prediction="mean", samples=50)(x).mean
    torch.testing.assert_close(wrapped(x).mean, expected)
    assert not torch.allclose(wrapped(x).mean, net(x), atol=1e-3)


@pytest.mark.filterwarnings("ignore:1 of 20 held-out rows:howsure.HowsureWarning")
def test_folds_are_images_that_have_not_been_seen(net):
    x, y = data(20, 1)
    x[7] = 9.0  # So far from all others that it is new unless the posterior has seen it.
    crossed, seen = hs.Uncertain(net), PixelGram()
    with pytest.warns(UserWarning, match="1 of 20 held-out rows"):
        crossed.fit([(x, y)], show_progress=False)
    pixels = gradients_at_pixels(crossed.setup, x)
    z, masks = pixels.z, pixels.masks
    model = crossed.setup.variance_model
    seen.add(z, masks)
    torch.testing.assert_close(pixel_posterior_of([seen], 0.1).whitening, model.posterior.whitening)
    means = []
    for k in range(5):  # The folds are every fifth image.
        rest = PixelGram()
        rest.add(z[torch.arange(20) % 5 != k], masks)
        means.append(pixel_variance(pixel_posterior_of([rest], 0.1), z, masks).mean((1, 2)))
    novelty = torch.stack([means[i % 5][i] for i in range(20)]) / model.known
    assert float(novelty[7]) > 1.5 * float(
        pixel_variance(model.posterior, z, masks)[7].mean() / model.known
    )
    torch.testing.assert_close(novelty.quantile(0.75), torch.tensor(model.joint_known).double())
    torch.testing.assert_close(
        novelty.quantile(0.99) / model.joint_known, model.joint_quantiles[99]
    )


def test_a_gate_rejects_new_images(sure):
    gate = hs.Gate.on_novelty(sure.setup.variance_model, level=0.95)
    known, new = sure(images(20, 40)).joint_novelty, sure(5 * images(20, 41)).joint_novelty
    assert float(gate(known).double().mean()) > 0.8 and not bool(gate(new).any())


def test_stress_fits_the_exponent(net):
    found = [
        hs.Uncertain(net).fit(
            [data(20, 1)], train_inputs=images(40, 0), stress=[change], show_progress=False
        )
        for change in (lambda x: 1.3 * x, lambda x: 6 * x)
    ]
    assert all(fit.stressed_nll is not None for fit in found)
    assert found[0].model.exponent != found[1].model.exponent
