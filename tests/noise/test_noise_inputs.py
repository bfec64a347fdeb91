"""Noises of several inputs, and what `propagate` makes of them."""

import json
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure import noise
from howsure.noise import roots_of

Pair = namedtuple("Pair", ["image", "imu"])


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "spec",
    [
        0.04,
        torch.tensor(0.04),
        np.float32(0.04),
        noise.std(0.2),
        lambda x: 0.04 * torch.ones_like(x),
        noise.Identified(noise.variance(0.04), 0.001),
    ],
    ids=["number", "tensor", "numpy number", "noise", "function", "identified"],
)
def test_every_spelling_of_a_variance(spec):
    x = torch.zeros(2, 3)
    torch.testing.assert_close(
        noise.variance_of(spec, x).expand(2, 3), torch.full((2, 3), 0.04), atol=0, rtol=1e-6
    )


def test_a_tensor_is_a_variance_for_each_element():
    x, var = torch.zeros(2, 3), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(noise.variance_of(var, x), var)


def test_no_noise_is_none():
    x = torch.zeros(2)
    assert noise.variance_of(None, x) is None
    assert noise.sample_of(None, x, generator()) is x


def test_a_dict_may_leave_out_inputs():
    x = {"image": torch.ones(2, 3), "imu": torch.ones(2, 6), "mode": 3}
    var = noise.variance_of({"image": noise.poisson_gaussian(0.5, 0)}, x)
    assert torch.equal(var["image"], torch.full((2, 3), 0.5))
    assert var["imu"] is None
    assert var["mode"] is None


def test_structures_are_kept():
    x = (torch.ones(2), [torch.ones(3), Pair(torch.ones(1), torch.ones(1))])
    var = noise.variance_of((1.0, [None, Pair(noise.std(2), None)]), x)
    assert isinstance(var, tuple)
    assert isinstance(var[1][1], Pair)
    assert (float(var[0]), var[1][0], float(var[1][1].image)) == (1.0, None, 4.0)


def test_samples_of_several_inputs():
    x = {"image": torch.zeros(50_000), "imu": torch.zeros(50_000), "mode": 3}
    drawn = noise.sample_of({"image": 4.0, "imu": noise.std(3)}, x, generator())
    # Relative standard error of a std from 50,000 draws: 0.3 %; 5 of them.
    assert float(drawn["image"].std()) == pytest.approx(2, rel=0.016)
    assert float(drawn["imu"].std()) == pytest.approx(3, rel=0.016)
    assert drawn["mode"] == 3
    again = noise.sample_of({"image": 4.0, "imu": noise.std(3)}, x, generator())
    assert torch.equal(drawn["imu"], again["imu"])


class Fusion(nn.Module):
    def forward(self, image, imu):
        return 2 * image.flatten(1).sum(1) + 3 * imu.sum(1)


def test_propagate_takes_what_variance_of_gives():
    """Camera and inertial sensor: the variance of a linear model in closed form."""
    image, imu = torch.rand(2, 1, 4, 4), torch.randn(2, 6)
    noises = (noise.poisson_gaussian(0.1, 0.2), noise.imu(0.01, 100))
    out = hs.propagate(Fusion(), (image, imu), noise.variance_of(noises, (image, imu)))
    expected = 4 * (0.1 * image + 0.04).sum((1, 2, 3)) + 9 * 6 * 0.01
    torch.testing.assert_close(out.var, expected)
    x, named = {"image": image, "imu": imu}, {"image": noises[0]}
    out = hs.propagate(Fusion(), x, noise.variance_of(named, x))
    torch.testing.assert_close(out.var, 4 * (0.1 * image + 0.04).sum((1, 2, 3)))


def test_preprocessing_may_be_in_the_model_or_in_the_noise():
    """Normalizing inside the model and noise pushed through it are the same."""
    raw, mean, std = torch.rand(2, 3, 4, 4) * 255, torch.tensor([0.4, 0.5, 0.6]), [0.2, 0.3, 0.4]
    net = nn.Conv2d(3, 2, 3).eval()
    camera = noise.poisson_gaussian(0.2, 1.5)
    shape = (3, 1, 1)

    def whole(raw):
        return net((raw / 255 - mean.reshape(shape)) / torch.tensor(std).reshape(shape))

    x = (raw / 255 - mean.reshape(shape)) / torch.tensor(std).reshape(shape)
    pushed = camera.through_normalize(0, 255).through_normalize(mean, std)
    with torch.no_grad():
        inside = hs.propagate(whole, raw, noise.variance_of(camera, raw))
        outside = hs.propagate(net, x, noise.variance_of(pushed, x))
    torch.testing.assert_close(inside.var, outside.var)
    torch.testing.assert_close(inside.mean, outside.mean)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        0.25,
        torch.tensor([0.1, 0.2], dtype=torch.float64),
        noise.std(0.1),
        (noise.std(0.1), None, 3.0),
        {"image": noise.gray_levels(2, normalize_std=[0.2, 0.3]), "imu": None},
    ],
    ids=["none", "number", "tensor", "noise", "tuple", "dict"],
)
def test_specifications_are_saved(spec):
    config = json.loads(json.dumps(noise.to_config(spec), allow_nan=False))
    again = noise.from_config(config)
    assert type(again) is type(spec)
    assert noise.to_config(again) == config


def test_a_tensor_comes_back_bit_for_bit():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        var = torch.rand(5, generator=generator(), dtype=torch.float64).to(dtype)
        again = noise.from_config(json.loads(json.dumps(noise.variance(var).to_config()))).var
        assert again.dtype == dtype
        assert torch.equal(again, var)


def test_names_of_a_budget_are_the_keys_of_the_inputs():
    t = torch.ones(2, 3)
    x = {"image": t, "imu": {"gyro": t, "still": t}, "pair": (t, t)}
    noise = {"image": 0.1, "imu": {"gyro": 0.1}, "pair": (0.1, None)}
    assert [name for _, name, _ in roots_of(noise, x)] == ["image", "imu.gyro", "pair[0]"]
    assert [name for _, name, _ in roots_of((0.1, 0.2), (t, t))] == ["x[0]", "x[1]"]
    assert [name for _, name, _ in roots_of(0.1, t)] == ["x"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("batch_dim", [0, 1, None])
def test_the_root_of_a_number_is_one_multiplication(dtype, batch_dim):
    """It holds a Python float and no tensor, and gives what a tensor of variances gives."""
    x, var = torch.zeros(2, 3, 4, dtype=dtype), 0.2
    root = noise.variance(var).root(x, batch_dim)
    assert [type(cell.cell_contents) for cell in root.apply.__closure__] == [float]
    expected = noise.variance(torch.tensor(var, dtype=torch.float64)).root(x, batch_dim)
    assert (root.shape, root.is_diagonal) == (expected.shape, expected.is_diagonal)
    for z_dtype in (torch.float32, torch.float64):
        batch = 1 if batch_dim is None else x.shape[batch_dim]
        z = torch.randn(5, batch, *root.shape, generator=generator(), dtype=z_dtype)
        drawn = root.apply(z, slice(None))
        torch.testing.assert_close(drawn, expected.apply(z, slice(None)), rtol=0, atol=0)
