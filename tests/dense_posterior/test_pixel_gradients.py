"""Gradients with respect to the masks at every pixel, and the posterior that they give."""

import numpy as np
import pytest
import torch
from dense_networks import SIDE, ChannelsLast, Dense, TwoHeads, images
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.methods.pixel_directions import DIRECTIONS, along_directions, directions
from howsure.methods.pixel_head import at_pixels, head_of
from howsure.posterior.laplace import Gram
from howsure.posterior.pixels import PixelGram


def written_into(out):
    return out.sub_(0.1).exp_()


NETS = {
    "plain": (Dense(), {}),
    "three outputs": (Dense(3), {}),
    "exp in place": (Dense(2, written_into), {}),
    "softplus": (Dense(1, F.softplus), {}),
    "no channel axis": (Dense(1, lambda out: out[:, 0]), {}),
    "as many channels as columns": (Dense(SIDE), {}),
    "channels last": (Dense(SIDE, lambda out: out.movedim(1, -1)), {}),
    "linear": (ChannelsLast(), {}),
    "linear on flat pixels": (ChannelsLast(flat=True), {}),
    "first of two": (TwoHeads(), {"output": "depth"}),
    "second of two": (TwoHeads(), {"output": "height"}),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_finite_differences_of_multipliers(name):
    net, options = NETS[name]
    net, x = net.double(), images(3, 5).double()
    setup = hs.Uncertain(net, **options).setup
    head = head_of(setup, x)
    assert head == ("other" if name == "second of two" else "head")
    seen = at_pixels(setup, x, head)
    layer, step = net.get_submodule(head), 1e-6
    for k in range(seen.masks):
        ends = []
        for sign in (1, -1):

            def scaled(module, inputs, k=k, sign=sign):
                axis = -1 if isinstance(module, nn.Linear) else 1
                factor = torch.ones(inputs[0].shape[axis], dtype=torch.float64)
                factor[k] += sign * step
                return (inputs[0] * factor.reshape(-1, *(1, 1) if axis == 1 else ()),)

            handle = layer.register_forward_pre_hook(scaled)
            with torch.no_grad():
                ends.append(setup.run(x.clone()))
            handle.remove()
        slope = seen.by_pixel((ends[0] - ends[1]) / (2 * step))
        torch.testing.assert_close(seen.z[..., k], slope, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(seen.shaped(seen.by_pixel(seen.output)), seen.output)
    net.float()


@pytest.mark.parametrize("finish", [None, F.softplus, lambda out: out[:, 0]])
def test_directions_are_sums_of_finite_differences_of_multipliers(finish):
    net, x = Dense(1 if finish else 2, finish).double(), images(3, 5).double()
    setup, step = hs.Uncertain(net).setup, 1e-6
    seen = along_directions(setup, x)
    signs = torch.cat([each.flatten(1) for each in directions(setup.watching(x).sites(x))], 1)
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
        slopes.append(seen.by_pixel((ends[0] - ends[1]) / (2 * step)))
    expected = torch.stack(slopes, 3) @ signs.double().mT
    torch.testing.assert_close(seen.z, expected, rtol=1e-3, atol=1e-4)
    assert seen.z.shape[3] == DIRECTIONS


def test_directions_run_in_chunks(net):
    x = images(3, 5)
    whole, parts = (along_directions(hs.Uncertain(net, chunk=c).setup, x).z for c in (None, 5))
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-3)


def test_m_is_the_formula():
    setup = hs.Uncertain(Dense(2, F.softplus).double()).setup
    gram = PixelGram()
    known = [at_pixels(setup, images(8, seed).double(), "head") for seed in (1, 2)]
    for seen in known:
        gram.add(seen)
    new = at_pixels(setup, 2 * images(3, 9).double(), "head")
    found = new.predictive_variance(gram.posterior(0.01)).numpy()
    z = torch.cat([seen.z.flatten(0, 1) for seen in known]).numpy()
    size = np.sqrt((z**2).mean((0, 2)))
    c = np.einsum("poi,poj->ij", z / size[:, None], z / size[:, None]) / (2 * len(z))
    inverse = np.linalg.inv(c + 0.01 * np.trace(c) / 6 * np.eye(6)) * np.trace(c) / 6
    own = new.z.numpy() / size[:, None] / np.sqrt(np.trace(c) / 6)
    expected = np.einsum("npoi,ij,npoj->npo", own, inverse * 6 / np.trace(c), own) / 6
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert gram.inputs == 16 and gram.pixels == 16 * SIDE**2


def test_one_output_has_the_posterior_of_all_pixels_as_rows():
    setup, x = hs.Uncertain(Dense()).setup, images(10, 1)
    seen = at_pixels(setup, x, "head")
    gram = PixelGram()
    gram.add(seen)
    rows = seen.z.flatten(0, 1)
    plain = Gram()
    plain.add(rows)
    expected = plain.posterior(0.1).predictive_variance(rows)
    torch.testing.assert_close(
        seen.predictive_variance(gram.posterior(0.1)).flatten(0, 1), expected
    )


def test_sums_of_parts_are_those_of_the_whole():
    setup, x = hs.Uncertain(Dense(2)).setup, images(9, 1)
    seen, whole, parts = at_pixels(setup, x, "head"), PixelGram(), [PixelGram(), PixelGram()]
    whole.add(seen)
    parts[0].add(seen.select([0, 1, 2, 3]))
    parts[1].add(seen.select(torch.arange(9) > 3))
    both = parts[0] + PixelGram() + parts[1]
    torch.testing.assert_close(both.total, whole.total)
    assert (both.inputs, both.pixels) == (whole.inputs, whole.pixels)


def test_an_output_that_no_channel_moves_has_no_model_variance():
    net = Dense(2)
    net.head.weight.data[1] = 0
    gram, seen = PixelGram(), at_pixels(hs.Uncertain(net).setup, images(4, 1), "head")
    gram.add(seen)
    m = seen.predictive_variance(gram.posterior(0.01))
    assert bool((m[..., 1] == 0).all()) and float(m[..., 0].mean()) > 0
