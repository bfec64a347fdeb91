"""Rendered scenes with the depth of every pixel."""

import math

import pytest
import torch

from howsure_lab.depth import (
    CONDITIONS,
    HEIGHT,
    NOISE_STD,
    WIDTH,
    DepthNet,
    labeled,
    pairs,
    scenes,
    trained_classes,
)


def test_depth_is_that_of_the_ground_or_of_a_box_before_it():
    known = scenes(20, 0)
    empty = known.depth.amax(0, keepdim=True)  # Hardly a pixel has a box in all scenes.
    assert known.image.shape == known.depth.shape == (20, 1, HEIGHT, WIDTH)
    assert float(known.image.min()) >= 0 and float(known.image.max()) <= 1
    below = empty[0, 0, HEIGHT // 2 :, WIDTH // 2]
    assert bool((below.diff() < 0).all()), "the ground comes nearer toward the bottom"
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


def test_classes_are_those_of_what_is_seen():
    known = scenes(20, 0)
    x, y = labeled(20, 0)
    assert torch.equal(y, known.classes) and torch.equal(x, pairs(20, 0)[0])
    depth = known.depth[:, 0]
    assert bool((depth[y == 0] == depth.max()).all()), "the sky is as far as can be"
    assert bool((y[:, -1] > 0).all()), "there is no sky at the bottom"
    empty = depth.amax(0).expand_as(depth)
    nearer = depth < empty - 1e-3
    assert float((y[nearer] == 2).double().mean()) > 0.99


def test_a_short_training_learns_the_classes():
    net = trained_classes(steps=20, count=64)
    x, y = labeled(8, 99)
    assert float((net(x).argmax(1) == y).double().mean()) > 0.7


def test_the_network_ends_with_one_number_at_every_pixel():
    net = DepthNet(width=4).eval()
    assert net(pairs(2, 0)[0]).shape == (2, 1, HEIGHT, WIDTH)
