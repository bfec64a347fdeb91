"""Pixels whose range contradicts the noise that was stated for them."""

import pytest
import torch
from torch import nn

import howsure as hs

NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)).eval()
PIXELS = torch.rand(4, 3, 8, 8)
RIGHT = {
    "[0, 1]": (hs.noise.gray_levels(2), PIXELS),
    "[0, 1] with noise": (hs.noise.gray_levels(2), PIXELS + 0.02 * torch.randn_like(PIXELS)),
    "[0, 255]": (hs.noise.gray_levels(2, scale=1), 255 * PIXELS),
    "dark [0, 255]": (hs.noise.gray_levels(2, scale=1), 20 * PIXELS),
    "normalized": (hs.noise.gray_levels(2, normalize_std=0.225), (PIXELS - 0.45) / 0.225),
    "a number": (0.01, 255 * PIXELS),
}
WRONG = {
    "[0, 255]": (hs.noise.gray_levels(2), 255 * PIXELS, "`scale=`"),
    "[0, 1]": (hs.noise.gray_levels(2, scale=1), PIXELS, "`scale=`"),
    "normalized": (hs.noise.gray_levels(2), (PIXELS - 0.45) / 0.225, "`normalize_std=`"),
    "[-1, 1]": (hs.noise.gray_levels(2), 2 * PIXELS - 1, "`normalize_std=`"),
}


def notes_on_pixels(noise, x):
    notes = hs.Uncertain(NET, noise)(x).notes
    return [note for note in notes if note.startswith("The pixels go")]


@pytest.mark.parametrize("kind", RIGHT)
def test_pixels_that_fit_have_no_note(kind):
    assert notes_on_pixels(*RIGHT[kind]) == []


@pytest.mark.parametrize("kind", WRONG)
def test_pixels_that_contradict_the_noise_have_a_note(kind):
    noise, x, words = WRONG[kind]
    (note,) = notes_on_pixels(noise, x)
    assert words in note
    assert note in str(hs.check(NET, x, noise_var=noise))


def test_saved_noise_still_knows_its_range():
    noise = hs.noise.from_config(hs.noise.to_config(hs.noise.gray_levels(2)))
    assert notes_on_pixels(noise, 255 * PIXELS)


def test_a_noise_function_that_writes_in_place_does_not_change_the_input():
    x = torch.ones(4, 100)
    net = nn.Linear(100, 1).eval()
    p = hs.Uncertain(net, noise=lambda values: values.mul_(0.01))(x)
    assert torch.equal(x, torch.ones(4, 100)) and bool((p.std > 0).all())
