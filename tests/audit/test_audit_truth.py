"""The audit as a whole: its truth against closed forms."""

import json

import pytest
import torch
from quick_audits import quick
from torch import nn

import howsure as hs
from howsure.auditing.case import Truth
from howsure.auditing.layers import OUTPUT
from nets import FunctionalResNet

NOISE = 0.04


def linear_network():
    """Two linear layers with correlated hidden units: diagonal ADF is wrong in a known way."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double().eval()
    first, second = (layer.weight.detach().abs_() for layer in model)
    true = ((second @ first) ** 2).sum(1) * NOISE
    diagonal = (second**2) @ (first**2).sum(1) * NOISE
    return model, true.sqrt(), diagonal.sqrt()


@pytest.fixture(scope="module")
def of_linear():
    torch.manual_seed(0)
    model, true, diagonal = linear_network()
    x = torch.randn(40, 5, dtype=torch.float64)
    return quick(model, x, NOISE, samples=800), (true, diagonal)


def test_linear_network_methods_that_know_correlations_are_right(of_linear):
    result, _ = of_linear
    for label in ("linear", "gradients", "gradients (samples=32)"):
        row = result.row(label)
        assert row.total.ratio.low <= 1 <= row.total.ratio.high
        assert row.total.ratio.value == pytest.approx(1, abs=0.01)
        assert row.total.log_error.value < 0.01  # freed of the truth's noise, which is 0.02
        assert row.mean_shift.value < 0.02
    assert result.row("gradients").std_error < 1e-6  # gradients are the same at every point
    assert result.row("noise_sampling").std_error == pytest.approx(40**-0.5, rel=0.25)
    assert result.row("adf").std_error is None


def test_linear_network_diagonal_error_is_the_known_one(of_linear):
    result, (true, diagonal) = of_linear
    ratios = (diagonal / true).log()
    row = result.row("adf")
    assert row.total.ratio.value == pytest.approx(float(ratios.median().exp()), rel=0.02)
    assert row.total.log_error.value == pytest.approx(float(ratios.abs().mean()), abs=0.02)
    assert result.layers[-1].ratio == pytest.approx(float(ratios.median().exp()), rel=0.1)


def test_first_layer_of_a_linear_network_is_right_and_the_second_departs(of_linear):
    result, (true, diagonal) = of_linear
    names = [row.name for row in result.layers]
    assert names == ["0", "1", OUTPUT]
    assert result.layers[0].ratio == pytest.approx(1, abs=0.02)
    assert all(row.mean_error < 0.05 for row in result.layers)
    assert float((diagonal / true).max()) < 0.8  # positive weights: all hidden units move together
    assert result.departure.name == "1"


def test_linear_network_verdict(of_linear):
    result, _ = of_linear
    assert result.recommended.method in ("linear", "gradients")
    text = " ".join(result.verdict)
    assert "`adf`) is not usable" in text and "at `1`" in text
    assert "either mean will do" in text
    assert str(result.recommended) in text


def test_truth_of_a_linear_network_lies_in_its_own_intervals():
    model, true, _ = linear_network()
    generator = torch.Generator().manual_seed(3)
    x = torch.zeros(200, 5, dtype=torch.float64)
    draws = torch.stack(
        [model(x + NOISE**0.5 * torch.randn(x.shape, generator=generator)) for _ in range(300)]
    )
    truth = Truth.of(draws.detach()[:, None])
    z = (truth.total.var.sqrt() / true).log() / truth.total.error
    assert 0.92 < (z.abs() < 1.96).double().mean() < 0.98
    center = model(x).detach()
    z = (truth.mean - center) / truth.mean_error
    assert 0.92 < (z.abs() < 1.96).double().mean() < 0.98


def test_paired_truth_splits_data_and_model_without_bias():
    # Few rounds, so that a bias of 1 / rounds would show.
    masks = 2 * torch.randn(6, 1, 20_000, 1, dtype=torch.float64)
    truth = Truth.of(masks + torch.randn(6, 2, 20_000, 1, dtype=torch.float64))
    assert float(truth.data.var.mean()) == pytest.approx(1, rel=0.03)
    assert float(truth.model.var.mean()) == pytest.approx(4, rel=0.03)
    assert float(truth.total.var.mean()) == pytest.approx(5, rel=0.03)
    torch.testing.assert_close(truth.total.var, truth.data.var + truth.model.var)
    assert truth.samples == 12


def test_data_and_model_part_of_a_linear_network():
    """Masks before a linear layer: all variances in closed form."""
    model = nn.Sequential(nn.Linear(5, 30), nn.Linear(30, 2)).eval()
    x = torch.randn(24, 5)
    first, second = model
    rate, c = 0.1, 0.1 / 0.9
    with torch.no_grad():
        hidden = first(x)
        model_var = (second.weight**2) @ (c * hidden**2).T
        scale = second.weight[:, :, None] * first.weight[None]
        # Var = E over masks of the squared weights: (sum)^2 + c sum of squares.
        data_var = NOISE * (scale.sum(1).square() + c * scale.square().sum(1)).sum(1)
    # Many points: inner products over 5 noisy numbers average little by themselves.
    methods = [("gradients", {"samples": 512})]
    result = quick(model, x, NOISE, rate, samples=1200, methods=methods)
    row = result.row("gradients")
    assert row.model.ratio.value == pytest.approx(1, abs=0.06)
    assert row.data.ratio.value == pytest.approx(1, abs=0.06)
    share = float((model_var / (model_var + data_var[:, None])).mean())
    assert 0.1 < share < 0.95  # both parts matter, so that a swap would show
    assert row.model.log_error.value < 0.08 and row.data.log_error.value < 0.08


def test_residual_network_with_noise_and_dropout():
    model = FunctionalResNet().eval()
    x = torch.randn(6, 3, 8, 8)
    result = quick(model, x, 1e-3, 0.05, samples=120)
    labels = [row.label for row in result.rows]
    assert labels == [
        "adf",
        "linear",
        "gradients",
        "gradients (samples=32)",
        "mc_dropout (samples=20)",
        "noise_sampling (samples=20)",
        "sampled_adf (samples=20)",
    ]
    assert result.row("adf").model is None and result.row("adf").data is not None
    assert result.row("mc_dropout").data is None
    best = result.row("gradients (samples=32)")
    assert best.total.log_error.value < result.row("adf").total.log_error.value
    assert best.total.rank.value > 0.8
    assert result.layers[0].name == "stem"
    assert result.layers[0].ratio == pytest.approx(1, abs=0.1)
    assert str(result).count("data part") >= 4


def test_result_is_json_without_nan_and_prints(of_linear):
    result, _ = of_linear
    back = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert back["rows"][0]["label"] == "adf" and back["departure"] == "1"
    assert back["rows"][0]["total"]["ratio"]["low"] > 0
    text = str(result)
    for row in result.rows:
        assert row.label in text
    assert max(len(line) for line in text.splitlines()) < 140


def test_correlated_noise_is_sampled_as_it_is():
    """Five readings that move together: their sum has 25 times the variance of one, not 5."""
    model = nn.Linear(5, 1).double().eval()
    with torch.no_grad():
        model.weight.fill_(1.0)
    covariance = 0.01 * (0.999 * torch.ones(5, 5) + 0.001 * torch.eye(5))
    x = torch.randn(20, 5, dtype=torch.float64)
    result = quick(
        model, x, hs.noise.correlated(covariance=covariance), methods=["gradients", "adf"]
    )
    assert result.row("gradients").total.ratio.value == pytest.approx(1, abs=0.05)
    assert result.row("adf").total.ratio.value == pytest.approx(5**-0.5, rel=0.05)
