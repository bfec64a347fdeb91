"""Gradients with respect to the masks at every pixel, and the posterior that they give."""

import numpy as np
import pytest
import torch
from dense_networks import SIDE, Dense, TwoHeads, images
from torch.nn import functional as F

import howsure as hs
from howsure.methods.dense import DIRECTIONS, by_pixel, directions, gradients_at_pixels
from howsure.posterior.laplace import Gram, output_scale, posterior_of
from howsure.posterior.pixels import PixelGram, pixel_posterior_of, pixel_variance


@pytest.mark.parametrize("finish", [None, F.softplus, lambda out: out[:, 0]])
def test_directions_are_sums_of_finite_differences_of_multipliers(finish):
    net, x = Dense(1 if finish else 2, finish).double(), images(3, 5).double()
    setup, step = hs.Uncertain(net).setup, 1e-6
    seen = gradients_at_pixels(setup, x)
    signs = torch.cat(
        [each.flatten(1) for each in directions(setup.with_unit_multipliers(x).sites(x))], 1
    )
    places = [(net.trunk, k) for k in range(5)] + [(net.wide, k) for k in range(6)]
    assert seen.masks == signs.shape[1] == len(places)
    slopes = []
    for place, k in places:
        ends = []
        for sign in (1, -1):
            factor = torch.ones(6 if place is net.wide else 5, 1, 1, dtype=torch.float64)
            factor[k] += sign * step
            handle = place.register_forward_hook(lambda m, i, o, factor=factor: o * factor)
            with torch.no_grad():
                ends.append(net(x))
            handle.remove()
        slopes.append(by_pixel((ends[0] - ends[1]) / (2 * step)))
    expected = torch.stack(slopes, 3) @ signs.double().mT
    torch.testing.assert_close(seen.z, expected, rtol=1e-3, atol=1e-4)
    assert seen.z.shape[3] == DIRECTIONS
    torch.testing.assert_close(seen.shaped(by_pixel(seen.output)), seen.output)


@pytest.mark.parametrize(("name", "head"), [("depth", "head"), ("height", "other")])
def test_one_of_two_outputs_has_its_own_gradients(name, head):
    both, x = TwoHeads(), images(3, 5)
    one = Dense()
    one.load_state_dict({n: v for n, v in both.state_dict().items() if not n.startswith("other")})
    one.head = both.get_submodule(head)
    of_one = gradients_at_pixels(hs.Uncertain(one).setup, x)
    of_both = gradients_at_pixels(hs.Uncertain(both, output=name).setup, x)
    assert of_one.masks == of_both.masks
    torch.testing.assert_close(of_both.z, of_one.z)


def test_directions_run_in_chunks(net):
    x = images(3, 5)
    whole, parts = (gradients_at_pixels(hs.Uncertain(net, chunk=c).setup, x).z for c in (None, 5))
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-3)


def pixels_of(net, x):
    pixels = gradients_at_pixels(hs.Uncertain(net).setup, x)
    return pixels.z, pixels.masks


def test_m_is_the_formula():
    net, gram = Dense(2, F.softplus).double(), PixelGram()
    known = [pixels_of(net, images(8, seed).double()) for seed in (1, 2)]
    for z, masks in known:
        gram.add(z, masks)
    new, masks = pixels_of(net, 2 * images(3, 9).double())
    m = pixel_variance(pixel_posterior_of([gram], 0.01), new, masks).numpy()
    z, d = torch.cat([z.flatten(0, 1) for z, _ in known]).numpy(), DIRECTIONS
    size = np.sqrt((z**2).mean((0, 2)))
    c = np.einsum("poi,poj->ij", z / size[:, None], z / size[:, None]) / (2 * len(z))
    inverse = np.linalg.inv(c + 0.01 * np.trace(c) / d * np.eye(d))
    scaled = new.numpy() / size[:, None]
    expected = np.einsum("npoi,ij,npoj->npo", scaled, inverse, scaled) / d
    np.testing.assert_allclose(m, expected, rtol=1e-8)
    assert gram.inputs == 16 and gram.pixels == 16 * SIDE**2


def test_one_output_has_the_posterior_of_all_pixels_as_rows():
    z, masks = pixels_of(Dense(), images(10, 1))
    gram, rows = PixelGram(), z.flatten(0, 1)
    gram.add(z, masks)
    plain = Gram(output_scale(rows))
    plain.add(rows)
    expected = posterior_of([plain], 0.1).predictive_variance(rows)
    m = pixel_variance(pixel_posterior_of([gram], 0.1), z, masks)
    torch.testing.assert_close(m.flatten(0, 1), expected)


def test_sums_of_parts_are_those_of_the_whole():
    z, masks = pixels_of(Dense(2), images(9, 1))
    whole, parts = PixelGram(), [PixelGram(), PixelGram()]
    whole.add(z, masks)
    parts[0].add(z[:4], masks)
    parts[1].add(z[4:], masks)
    found, expected = pixel_posterior_of(parts, 0.1), pixel_posterior_of([whole], 0.1)
    torch.testing.assert_close(found.whitening, expected.whitening)
    torch.testing.assert_close(found.scale, expected.scale)
    assert found.count == expected.count == 9 * SIDE**2


def test_an_output_that_no_channel_moves_has_no_model_variance():
    net = Dense(2)
    net.head.weight.data[1] = 0
    gram = PixelGram()
    z, masks = pixels_of(net, images(4, 1))
    gram.add(z, masks)
    m = pixel_variance(pixel_posterior_of([gram], 0.01), z, masks)
    assert bool((m[..., 1] == 0).all()) and float(m[..., 0].mean()) > 0
