"""Every noise against numpy, and the laws that hold for all of them."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy import stats

from howsure import noise

PIXELS = np.random.default_rng(0).uniform(0.5, 1.5, (3, 5, 4))
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CHANNELS = np.s_[:, None, None]

# Name, noise, and its variance for images (B, 3, 5, 4) in numpy.
CASES = [
    ("variance", noise.variance(0.2), lambda x: 0.2),
    ("std", noise.std(0.2), lambda x: 0.04),
    ("per pixel", noise.variance(PIXELS), lambda x: PIXELS),
    ("per sample", noise.std(np.array([1.0, 2.0]).reshape(2, 1, 1, 1)), lambda x: _samples(1, 4)),
    ("variances", noise.per_channel(variances=[1.0, 2.0, 4.0]), lambda x: _channels(1, 2, 4)),
    ("stds", noise.per_channel(stds=(1.0, 2.0, 4.0), dim=-3), lambda x: _channels(1, 4, 16)),
    ("gray levels", noise.gray_levels(2), lambda x: (2 / 255) ** 2),
    ("gray variance", noise.gray_levels(2, kind="variance"), lambda x: 2 / 255**2),
    ("raw gray levels", noise.gray_levels(2, scale=1), lambda x: 4.0),
    (
        "normalized gray levels",
        noise.gray_levels(2, normalize_std=STD),
        lambda x: (2 / 255 / STD[CHANNELS]) ** 2,
    ),
    ("quantization", noise.quantization(0.3), lambda x: 0.3**2 / 12),
    ("imu", noise.imu([0.1, 0.2, 0.3, 0.4], 200), lambda x: np.array([2.0, 8.0, 18.0, 32.0])),
    ("camera", noise.poisson_gaussian(0.3, 0.5), lambda x: 0.3 * np.maximum(x, 0) + 0.25),
    (
        "camera with black level",
        noise.poisson_gaussian(torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1), 0.5, black_level=1),
        lambda x: np.array([1, 2, 3])[CHANNELS] * np.maximum(x - 1, 0) + 0.25,
    ),
    (
        "range",
        noise.range_dependent(0.01, 0.1, 0.02),
        lambda x: (0.01 + 0.1 * np.maximum(x, 0) + 0.02 * np.maximum(x, 0) ** 2) ** 2,
    ),
    ("function", noise.custom(lambda x: x.square() + 1), lambda x: x**2 + 1),
    ("scaled", noise.poisson_gaussian(0.3, 0.5).scaled(4), lambda x: 1.2 * np.maximum(x, 0) + 1),
    ("sum", noise.std(0.3) + noise.quantization(1), lambda x: 0.09 + 1 / 12),
    (
        "camera through two steps",
        noise.poisson_gaussian(0.3, 2).through_normalize(0, 255).through_normalize(MEAN, STD),
        lambda x: (
            (0.3 * np.maximum(255 * (x * STD[CHANNELS] + MEAN[CHANNELS]), 0) + 4)
            / (255 * STD[CHANNELS]) ** 2
        ),
    ),
]


def _channels(*values):
    return np.array(values)[CHANNELS]


def _samples(*values):
    return np.array(values).reshape(-1, 1, 1, 1)


def each(cases=CASES):
    named = [pytest.param(*case[1:], id=case[0]) for case in cases]
    return pytest.mark.parametrize(("value", "oracle"), named)


def images(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64).to(dtype)


def test_most_cases_are_here():
    assert len(CASES) == 19


@each()
def test_variance_agrees_with_numpy(value, oracle):
    x = images()
    expected = np.broadcast_to(oracle(x.numpy()), x.shape)
    np.testing.assert_allclose(value(x).expand(x.shape).numpy(), expected, rtol=1e-12)


@each()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_variance_keeps_the_dtype_but_not_half_precision(value, oracle, dtype):
    x = images(dtype)
    var = value(x)
    assert var.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = np.broadcast_to(oracle(x.double().numpy()), x.shape)
    np.testing.assert_allclose(var.expand(x.shape).double().numpy(), expected, rtol=1e-4, atol=1e-9)


@each([case for case in CASES if case[0] != "per sample"])  # which belongs to one batch size
def test_samples_have_the_variance(value, oracle):
    """A chi-square test over 20,000 draws of each element, false alarm 1e-6 for the whole."""
    x, n = images()[:1], 20_000
    drawn = value.sample(x.expand(n, -1, -1, -1), torch.Generator().manual_seed(2))
    var = np.broadcast_to(oracle(x.numpy()), x.shape)
    statistic = ((drawn - x).square().sum(0).numpy() / var[0]).ravel()
    tail = 0.5e-6 / statistic.size
    low, high = stats.chi2(n).ppf([tail, 1 - tail])
    assert (statistic > low).all()
    assert (statistic < high).all()


@each()
def test_samples_depend_on_the_generator_alone(value, oracle):
    x = images(torch.float32)
    before = x.clone()
    first, second = (value.sample(x, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(x, before)
    assert first.dtype == x.dtype
    assert not torch.equal(first, value.sample(x, torch.Generator().manual_seed(4)))


@each([case for case in CASES if case[0] != "function"])
def test_config_is_json_and_reads_back(value, oracle):
    config = json.loads(json.dumps(value.to_config(), allow_nan=False))
    again = noise.from_config(config)
    assert again.to_config() == value.to_config()
    x = images()
    assert torch.equal(again(x), value(x))


@each()
def test_scaling_is_of_the_variance(value, oracle):
    x = images()
    torch.testing.assert_close(value.scaled(9.0)(x), 9 * value(x))
    assert not value.scaled(0)(x).any()


@each()
def test_normalizing_is_that_of_the_noisy_input(value, oracle):
    """var((x - m) / s) = var(x) / s**2 when the normalized input comes from x."""
    x, mean, std = images(), torch.tensor(MEAN)[CHANNELS], torch.tensor(STD)[CHANNELS]
    normalized = value.through_normalize(MEAN, STD)((x - mean) / std)
    torch.testing.assert_close(
        normalized.expand(x.shape), (value(x) / std.square()).expand(x.shape), rtol=1e-9, atol=0
    )


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # torch 2.6, about its own export
def test_works_inside_compile_and_export():
    camera = noise.poisson_gaussian(0.3, 2).through_normalize(MEAN, STD)
    value = camera + noise.per_channel(stds=STD) + noise.custom(lambda x: x.square()).scaled(2)
    x = images(torch.float32)

    class Model(torch.nn.Module):
        def forward(self, x):
            return value(x)

    expected = value(x)
    compiled = torch.compile(Model(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    exported = torch.export.export(Model(), (x,), strict=False).module()
    torch.testing.assert_close(exported(x), expected)


def test_works_inside_vmap_with_and_without_a_generator():
    value, x = noise.poisson_gaussian(0.3, 2), torch.ones(4)
    generator = torch.Generator().manual_seed(0)

    def draw(i, given):
        return value.sample(x, given)

    for given in (generator, None):
        one_each = torch.vmap(lambda i, given=given: draw(i, given), randomness="different")
        drawn = one_each(torch.arange(3))
        assert len(drawn.unique()) == 12
    torch.testing.assert_close(torch.vmap(value)(torch.ones(3, 4)), value(torch.ones(3, 4)))


@each()
def test_to_moves_and_keeps_the_value(value, oracle):
    x = images()
    assert torch.equal(value.to("cpu")(x), value(x))
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.kind = "other"


def test_gray_levels_have_both_readings_of_the_paper():
    """PAPER item 2: 6.2e-5 and 3.1e-5 on [0, 1]."""
    x = torch.zeros(1, dtype=torch.float64)
    assert float(noise.gray_levels(2)(x)) == pytest.approx(6.2e-5, rel=0.01)
    assert float(noise.gray_levels(2, kind="variance")(x)) == pytest.approx(3.1e-5, rel=0.01)
    assert float(noise.gray_levels(2)(x)) == pytest.approx(0.0078**2, rel=0.02)


def test_a_noise_is_not_changed_from_outside():
    var = torch.ones(4)
    value = noise.variance(var)
    var.fill_(7)
    assert torch.equal(value(torch.zeros(2, 4)), torch.ones(4))


def test_a_variance_can_be_learned():
    var = torch.tensor(0.5, requires_grad=True)
    value = noise.variance(var).scaled(2.0).through_normalize(0, 2)
    for _ in range(2):  # each call makes its own graph
        (gradient,) = torch.autograd.grad(value(torch.zeros(3)).sum(), var)
        assert float(gradient) == pytest.approx(0.5)


def test_quantization_is_the_variance_of_rounding():
    rng = np.random.default_rng(5)
    x, step = rng.normal(0, 3, 200_000), 0.25
    error = np.round(x / step) * step - x
    # Relative standard error of the variance of a uniform: sqrt((9/5 - 1) / n) = 0.2 %; 5 of them.
    assert float(noise.quantization(step).var) == pytest.approx(error.var(), rel=0.01)


def test_a_single_image_has_its_channels_first():
    x = torch.zeros(3, 8, 8)
    var = noise.per_channel(variances=[1.0, 2.0, 3.0], dim=0)(x)
    assert var.shape == (3, 1, 1)
