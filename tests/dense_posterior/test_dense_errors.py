"""Dense outputs without a posterior: hooks, and what is refused."""

import pytest
import torch
from dense_networks import SIDE, Dense, data, images
from torch import nn

import howsure as hs


def test_the_model_keeps_no_hook_also_after_an_error(sure, net):
    sure(images(1, 0))
    with pytest.raises(RuntimeError):
        sure(torch.zeros(1, 3, SIDE, SIDE))
    hooks = [m for m in net.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks and torch.is_grad_enabled()


class Whole(Dense):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6 * SIDE**2, SIDE**2)

    def forward(self, image):
        return self.head(torch.relu(self.wide(self.trunk(image))).flatten(1))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"held_out": [data(3, 1)]}, "at least 4, better 10"),
        ({"train_inputs": images(9, 0)}, "at least 10"),
        ({"train_inputs": torch.rand(20, 1, SIDE, 8)}, "preprocess both"),
        ({"train_inputs": data(12, 1)[0]}, "has not seen"),
        ({"held_out": [(images(12, 1), torch.full((12, 1, SIDE, SIDE), torch.nan))]}, "NaN"),
        ({"held_out": [(images(12, 1), torch.zeros(12, 1))]}, "targets have shape"),
    ],
)
def test_wrong_use_is_answered(net, changes, words):
    given = {"held_out": [data(12, 1)], "show_progress": False, **changes}
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net, 0.001, samples=8).fit(given.pop("held_out"), **given)


def test_what_has_no_pixels_is_told_what_to_use():
    vectors = [(data(12, 1)[0], torch.zeros(12, SIDE**2))]
    wrapped = hs.Uncertain(Whole().eval(), 0.01, samples=8)
    with pytest.raises(ValueError, match=r'not maps.*model="dropout"'):
        wrapped.fit(vectors, model="posterior")
    assert "not maps" in wrapped.fit(vectors, show_progress=False).notes[0]


def test_a_staircase_is_refused():
    stepwise = Dense(1, lambda out: (4 * out).round())
    with pytest.raises(ValueError, match="steps"):
        hs.Uncertain(stepwise, 0.01).fit([data(12, 1)], model="posterior")


def test_rows_that_mix_are_refused():
    mixing = Dense(1, lambda out: out - out.mean(0))
    with pytest.raises(ValueError, match="influence each other"):
        hs.Uncertain(mixing, 0.01).fit([data(12, 1)], model="posterior")


def test_other_methods_and_models_say_that_they_have_no_room(sure, net):
    other = hs.Uncertain(net, 0.001, "gradients")
    other.setup = sure.setup
    with pytest.raises(ValueError, match="cannot use"):
        other(images(1, 0))
    many = hs.Uncertain(net, 0.001, "gradients")
    assert "too many" in many.fit([data(60, 1)]).notes[0]
    assert many(images(2, 0)).method == "noise_sampling"
