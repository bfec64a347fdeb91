"""Plots along a line: their numbers are those of the metrics and of the predictions."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import howsure as hs
from howsure import metrics, plots
from howsure.fit import Fit
from plots.reading import drawn, gaussians, legend_texts, line, lines


def prediction(mean, data, model):
    return hs.Prediction(*(torch.as_tensor(t, dtype=torch.float32) for t in (mean, data, model)))


def band(ax, label):
    """The corner points of the band of a label."""
    (found,) = [c for c in ax.collections if c.get_label() == label]
    return found.get_paths()[0].vertices


def test_bands_split_data_and_model(ax):
    p = prediction([[1.0], [2.0], [0.0]], [[1.0], [4.0], [0.0]], [[3.0], [5.0], [0.0]])
    plots.bands(torch.tensor([2.0, 0.0, 1.0]), p, truth=[1, 2, 3], level=0.9, ax=ax)
    z = stats.norm.ppf(0.95)
    inner = band(ax, "sensor's noise (data)")
    at_zero = inner[inner[:, 0] == 0]
    assert at_zero[:, 1].min() == pytest.approx(2 - z * 2)
    assert at_zero[:, 1].max() == pytest.approx(2 + z * 2)
    outer = band(ax, "added by the model")
    assert outer[outer[:, 0] == 0][:, 1].max() == pytest.approx(2 + z * 3)
    np.testing.assert_array_equal(line(ax, "mean"), [[0, 1, 2], [2, 0, 1]])
    np.testing.assert_array_equal(line(ax, "truth"), [[2, 0, 1], [1, 2, 3]])
    assert len(legend_texts(drawn(ax))) == 4
    assert ax.get_legend().get_title().get_text() == "90 % bands"


def test_bands_of_moments_have_one_band(ax):
    moments = hs.Moments(torch.zeros(2, 3), torch.ones(2, 3))
    plots.bands([0, 1], moments, output=1, truth=([5.0], [[0.0, 7.0, 0.0]]), ax=ax)
    assert len(ax.collections) == 1 and "total" in legend_texts(ax)
    np.testing.assert_array_equal(line(ax, "truth"), [[5], [7]])


def test_bands_take_a_batch_of_one_and_gradients():
    mean = torch.zeros(1, requires_grad=True)
    drawn(plots.bands([0.0], (mean, torch.zeros(1))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_every_kind_of_number_is_taken(ax, dtype):
    values = torch.tensor([3, 1, 2], dtype=dtype)
    backwards = np.array([2.0, 1.0, 3.0])[::-1]  # torch refuses such an array
    plots.bands(backwards, (values, values), ax=ax)
    np.testing.assert_array_equal(line(ax, "mean"), [[1, 2, 3], [1, 2, 3]])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([0, 1], (torch.zeros(2, 3), torch.ones(2, 3))), {}, "3 outputs for each position"),
        (([0, 1], (torch.zeros(2, 3), torch.ones(2, 3))), {"output": 3}, "from 0 to 2"),
        (([0, 1, 2], ([0, 1], [1, 1])), {}, "`x` has 3 entries and `mean` has 2"),
        (([[0, 1]], ([0, 1], [1, 1])), {}, r"`x` has shape \(1, 2\); give \(n,\)"),
        (([], ([], [])), {}, r"`x` has shape \(0,\)"),
        (([0, 1], ([0, 1], [1, -1])), {}, "`var` is negative"),
        (([0, 1], ([0, math.nan], [1, 1])), {}, "`mean` is NaN or infinite in 1 of 2"),
        (([0, 1], ([0, 1], [1, 1])), {"level": 1}, "`level` is 1"),
        (([0, 1], ([0, 1], [1, 1])), {"truth": [1]}, "`truth` has 1"),
        (([0, 1], ([0, 1], [1])), {}, "make them equal"),
    ],
)
def test_bands_refuse(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        plots.bands(*arguments, **options)


def test_what_is_no_prediction_is_refused():
    with pytest.raises(TypeError, match="A prediction was given as Tensor"):
        plots.bands([0, 1], torch.zeros(2))
    outputs = hs.Prediction({"a": torch.zeros(2)}, {"a": torch.ones(2)}, {"a": torch.ones(2)})
    with pytest.raises(TypeError, match=r"`mean` is a dict with the keys \['a'\]; choose one"):
        plots.bands([0, 1], outputs)
    with pytest.raises(TypeError, match="does not become numbers"):
        plots.bands(["a", "b"], ([0, 1], [1, 1]))
    with pytest.raises(ValueError, match="the dict is empty"):
        plots.reliability({}, [0.0])


def test_reliability_shows_the_metrics(ax):
    mean, var, target = gaussians()
    methods = {"good": (mean, var), "too sure": hs.Moments(mean, var / 9)}
    drawn(plots.reliability(methods, target.numpy(), ax=ax))
    for name, v in {"good": var, "too sure": var / 9}.items():
        expected = metrics.calibration_curve(mean, v, target)
        np.testing.assert_allclose(line(ax, name), torch.stack(expected))
        area = metrics.miscalibration_area(mean, v, target)
        assert f"{name}: area {float(area):.3f}" in legend_texts(ax)
    np.testing.assert_array_equal(line(ax, "calibrated"), [[0, 1], [0, 1]])
    assert not ax.collections  # the area is filled for one method only


def test_reliability_of_one_method_fills_its_area(ax):
    mean, var, target = gaussians()
    plots.reliability((mean, var), target, levels=(0.1, 0.5, 0.9), ax=ax)
    assert len(ax.collections) == 1
    assert line(ax, "area").shape == (2, 3)
    with pytest.raises(ValueError, match="`var` is 0 in 400"):
        plots.reliability((mean, 0 * var), target)
    with pytest.raises(ValueError, match="has shape"):
        plots.reliability((mean, var), target[:-1])


def test_confidence_shows_the_metrics(ax):
    logits = 2 * torch.randn(300, 4)
    p, target = logits.softmax(1), torch.distributions.Categorical(logits=logits).sample()
    drawn(plots.confidence({"a": p, "b": p.square() / p.square().sum(1, True)}, target, ax=ax))
    curve = metrics.reliability_curve(p, target)
    full = curve.fraction > 0
    np.testing.assert_allclose(line(ax, "a:"), torch.stack(curve[:2])[:, full])
    assert f"a: ECE {float(metrics.ece(p, target)):.3f}" in legend_texts(ax)
    with pytest.raises(ValueError, match="does not sum to 1"):
        plots.confidence(logits, target)


def test_sparsification_shows_the_metrics(ax):
    mean, var, target = gaussians()
    error = (target - mean).abs()
    drawn(plots.sparsification(error, {"a": var, "b": -var}, ax=ax))
    for name, u in {"a": var, "b": -var}.items():
        curve = metrics.sparsification_curve(error, u)
        np.testing.assert_allclose(line(ax, f"{name}:"), torch.stack(curve[:2]))
        assert f"{name}: AUSE {float(metrics.ause(error, u)):.3g}" in legend_texts(ax)
        np.testing.assert_allclose(line(ax, "oracle")[1], curve.oracle)
    assert len(ax.lines) == 3  # one oracle, for the error is the same


def test_sparsification_with_an_error_for_each_method(ax):
    error = {"a": torch.rand(50), "b": torch.rand(50)}
    uncertainty = {"a": torch.rand(50), "b": torch.rand(50)}
    plots.sparsification(error, uncertainty, normalize=False, ax=ax)
    curve = metrics.sparsification_curve(error["b"], uncertainty["b"], normalize=False)
    np.testing.assert_allclose(line(ax, "b:")[1], curve.error)
    area = metrics.ause(error["b"], uncertainty["b"], normalize=False)
    assert f"b: AUSE {float(area):.3g}" in legend_texts(ax)
    assert len(ax.lines) == 4 and legend_texts(ax).count("oracle") == 1
    with pytest.raises(ValueError, match=r"`error` has the names \['a', 'b'\]"):
        plots.sparsification(error, {"a": torch.rand(50)})
    with pytest.raises(ValueError, match="`error` is negative"):
        plots.sparsification(torch.tensor([-1.0, 1.0]), torch.ones(2))


def test_long_curves_are_thinned_to_their_true_points(ax):
    error, uncertainty = torch.rand(100_000), torch.rand(100_000)
    plots.sparsification(error, uncertainty, ax=ax)
    x, y = line(ax, "AUSE")
    curve = metrics.sparsification_curve(error, uncertainty)
    places = (x * 100_000).round().astype(int)
    assert len(x) == 1000 and x[0] == 0 and places[-1] == 99_999
    np.testing.assert_allclose(y, curve.error[places])


def test_std_vs_error_shows_the_metric_and_the_counts(ax):
    mean, var, target = gaussians()
    drawn(plots.std_vs_error({"one": (mean, var), "two": (mean, 4 * var)}, target, bins=7, ax=ax))
    for name, v in {"one": var, "two": 4 * var}.items():
        expected = metrics.spread_curve(mean, v, target, bins=7)
        np.testing.assert_allclose(line(ax, name), torch.stack(expected))
    assert ax.get_legend().get_title().get_text() == "7 bins of 57 or 58 predictions"
    low, high = ax.get_xlim()
    np.testing.assert_array_equal(line(ax, "as sure"), [[low, high], [low, high]])
    assert ax.get_ylim() == (low, high) and low == 0


def test_std_vs_error_is_logarithmic_over_a_wide_range_and_takes_variance_zero():
    mean, var, target = gaussians()
    wide = var * torch.logspace(-4, 0, 400)
    assert drawn(plots.std_vs_error((mean, wide), target)).get_xscale() == "log"
    flat = drawn(plots.std_vs_error((mean, 0 * var), target))
    assert flat.get_xscale() == "linear"


def test_noise_sweep(ax):
    true = [0.2, 0.1, 0.4]
    drawn(plots.noise_sweep([2, 1, 4], {"one": [0.3, 0.2, 0.5], "two": true}, true, ax=ax))
    np.testing.assert_allclose(line(ax, "one"), [[0.1, 0.2, 0.4], [0.2, 0.3, 0.5]])
    (top,) = ax.child_axes
    ticks = dict(zip(top.get_xticks(), [t.get_text() for t in top.get_xticklabels()], strict=True))
    assert ticks == {0.2: "2", 0.1: "1", 0.4: "4"}
    assert ax.get_xscale() == "log"
    assert drawn(plots.noise_sweep([0, 1], [0, 1], [0, 1])).get_xscale() == "linear"
    with pytest.raises(ValueError, match="`predicted_std` has 1"):
        plots.noise_sweep([1, 2], [1], [1, 2])
    with pytest.raises(ValueError, match="negative"):
        plots.noise_sweep([1, 2], [1, -1], [1, 2])


def test_nll_vs_samples(ax):
    repeats = torch.tensor([[1.0, 3.0], [0.5, 0.5]])
    curves = {"sampled": repeats, "other": [4.0, 5.0]}
    drawn(plots.nll_vs_samples([50, 5], curves, single_pass={"gradients": 0.25}, ax=ax))
    np.testing.assert_array_equal(line(ax, "sampled"), [[5, 50], [0.5, 2.0]])
    corners = ax.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 50][:, 1].min() == pytest.approx(1.0)
    assert set(lines(ax)["gradients"][1]) == {0.25}
    assert ax.get_xscale() == "log" and len(ax.collections) == 1
    with pytest.raises(ValueError, match=r"give \(2,\) or \(2, repeats\)"):
        plots.nll_vs_samples([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="must be positive"):
        plots.nll_vs_samples([0, 2], [1, 2])


def fit(rates, nll, rate, error=None):
    return Fit(rates, nll, error or (0.1,) * len(rates), rate, 0.0, "gaussian", 20, 100)


def test_rate_search(ax):
    found = fit((0.0, 0.1, 0.01, 0.5), (math.inf, 1.0, 2.0, 3.0), 0.1, (math.nan, 0.1, 0.2, 0.3))
    drawn(plots.rate_search(found, ax=ax))
    np.testing.assert_array_equal(line(ax, "NLL"), [[0.01, 0.1, 0.5], [2, 1, 3]])
    np.testing.assert_array_equal(line(ax, "best rate 0.1"), [[0.1], [1.0]])
    corners = ax.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 0.5][:, 1].max() == pytest.approx(3.3)
    assert ax.get_xscale() == "log" and "1 not finite" in ax.get_xlabel()


def test_rate_search_shows_rate_zero_and_a_wide_range():
    rates = (0.0, 0.001, 0.01, 0.1, 0.3, 0.5)
    ax = drawn(plots.rate_search(fit(rates, (1e6, 5.0, 1.0, 0.5, 0.4, 0.6), 0.3)))
    assert (ax.get_xscale(), ax.get_yscale()) == ("symlog", "symlog")
    single = drawn(plots.rate_search(fit((0.0,), (1.0,), 0.0, (math.inf,))))
    assert single.get_xscale() == "linear"


def test_rate_search_of_a_real_fit_and_without_one():
    net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).eval()
    sure = hs.Uncertain(net, noise=0.01, method="sampled_adf")
    x = torch.randn(20, 1)
    with torch.no_grad():
        y = net(x) + 0.1 * torch.randn(20, 1)
    options = {"rates": (0.001, 0.05, 0.1, 0.2), "samples": 5, "show_progress": False}
    found = sure.fit([(x, y)], fit_residual_var=True, **options)
    ax = plots.rate_search(found)
    np.testing.assert_allclose(line(ax, "NLL"), [found.rates, found.nll])
    with pytest.raises(TypeError, match="`fit` is a NoneType"):
        plots.rate_search(None)
    with pytest.raises(ValueError, match="has no rate"):
        plots.rate_search(fit((math.nan,), (1.0,), None))
