"""Rendered scenes with the depth of every pixel."""

import math

import pytest
import torch

from howsure_lab.depth import CONDITIONS, HEIGHT, NOISE_STD, WIDTH, DepthNet, pairs, scenes


def test_depth_is_that_of_the_ground_or_of_a_box_before_it():
    known = scenes(20, 0)
    empty = known.depth.amax(0, keepdim=True)  # Hardly a pixel has a box in all scenes.
    assert known.image.shape == known.depth.shape == (20, 1, HEIGHT, WIDTH)
    assert float(known.image.min()) >= 0 and float(known.image.max()) <= 1
    below = empty[0, 0, HEIGHT // 2 :, WIDTH // 2]
    assert bool((below.diff() < 0).all()), "the ground comes nearer towards the bottom"
    share = float((known.depth < empty - 1e-3).double().mean())
    assert 0.05 < share < 0.6


def test_floating_boxes_hang_above_the_ground():
    lifted, standing = (scenes(40, 3, floating=each).depth for each in (True, False))
    bottom = slice(2 * HEIGHT // 3, None)
    empty = standing.amax(0)
    on_ground = [
        float((d < empty - 1e-3)[:, :, bottom].double().mean()) for d in (lifted, standing)
    ]
    assert on_ground[0] < 0.8 * on_ground[1]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_readings_are_the_image_with_noise_and_targets_are_log_depth(condition):
    x, y = pairs(6, 1, condition)
    change, floating = CONDITIONS[condition]
    known = scenes(6, 1, floating=floating)
    torch.testing.assert_close(y, known.depth.log())
    spread = float((x - change(known)).std())
    assert math.isclose(spread, NOISE_STD, rel_tol=0.05)


def test_the_network_ends_with_one_number_at_every_pixel():
    net = DepthNet(width=4).eval()
    assert net(pairs(2, 0)[0]).shape == (2, 1, HEIGHT, WIDTH)
