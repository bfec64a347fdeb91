"""Dense outputs without a posterior: hooks, threads, and what is refused."""

import threading

import pytest
import torch
from dense_networks import SIDE, Dense, TwoHeads, data, images
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.methods.pixel_head import NoPixelHeadError, at_pixels, head_of


def test_the_model_keeps_no_hook_also_after_an_error(sure, net):
    sure(images(1, 0))
    with pytest.raises(RuntimeError):
        sure(torch.zeros(1, 3, SIDE, SIDE))
    with pytest.raises(RuntimeError):
        at_pixels(sure.setup, torch.zeros(1, 3, SIDE, SIDE), "head")
    hooks = [m for m in net.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks and torch.is_grad_enabled()


def test_a_call_in_another_thread_is_not_seen(net):
    setup, x = hs.Uncertain(net).setup, images(2, 0)
    expected = at_pixels(setup, x, "head").channels

    def beside(image):
        other = threading.Thread(target=lambda: net.head(torch.ones(1, 8, 1, 1)))
        other.start()
        other.join()
        return net(image)

    class Busy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, image):
            return beside(image)

    found = at_pixels(hs.Uncertain(Busy().eval()).setup, x, "net.head").channels
    assert torch.equal(found, expected)


class Twice(Dense):
    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image)))
        return self.head(h) + self.head(h.flip(-1))


class Functional(Dense):
    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image)))
        return F.conv2d(h, self.head.weight, self.head.bias)


class Wider(Dense):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(6, 1, 3, padding=1)


class Doubled(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


class Own(Dense):
    def __init__(self):
        super().__init__()
        self.head = Doubled(6, 1, 1)


class Whole(Dense):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6 * SIDE**2, SIDE**2)

    def forward(self, image):
        return self.head(torch.relu(self.wide(self.trunk(image))).flatten(1))


def round_up(out):
    return out.round()


REFUSED = {
    "3 x 3": (Wider(), "neither a 1 x 1 convolution"),
    "functional": (Functional(), "neither a 1 x 1 convolution"),
    "called twice": (Twice(), "called 2 times"),
    "softmax": (Dense(3, lambda out: out.softmax(1)), "mixes pixels or outputs"),
    "blur": (Dense(1, lambda out: F.avg_pool2d(out, 3, 1, 1)), "mixes pixels or outputs"),
    "detached": (Dense(1, lambda out: out.detach()), "has no gradient"),
    "rounded": (Dense(1, round_up), "does not change as the weights"),
    "own layer": (Own(), "does not change as the weights"),
    "a whole image": (Whole(), "an input as a whole"),
    "two outputs": (TwoHeads(), "choose it with `output=`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_head_says_why(name):
    net, words = REFUSED[name]
    with pytest.raises(NoPixelHeadError, match=words):
        head_of(hs.Uncertain(net).setup, images(3, 0))


def test_a_model_without_modules_has_no_head():
    with pytest.raises(NoPixelHeadError, match="neither"):
        head_of(hs.setup.Setup(lambda x: 2 * x), images(3, 0))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"held_out": [data(3, 1)]}, "at least 4, better 10"),
        ({"train_inputs": images(9, 0)}, "at least 10"),
        ({"train_inputs": torch.rand(20, 1, SIDE, 8)}, "prepare both"),
        ({"train_inputs": data(12, 1)[0]}, "has not seen"),
        ({"held_out": [(images(12, 1), torch.full((12, 1, SIDE, SIDE), torch.nan))]}, "NaN"),
        ({"held_out": [(images(12, 1), torch.zeros(12, 1))]}, "targets have shape"),
        ({"dense_masks": "last"}, "must be one of .*'all', 'head'"),
    ],
)
def test_wrong_use_is_answered(net, changes, words):
    given = {"held_out": [data(12, 1)], "show_progress": False, **changes}
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net, 0.001, samples=8).fit(given.pop("held_out"), **given)


def test_what_has_no_pixels_or_head_is_told_what_to_use():
    net = Wider().eval()
    with pytest.raises(ValueError, match=r'neither.*dense_masks="all".*model="dropout"'):
        hs.Uncertain(net, 0.01, samples=8).fit([data(12, 1)], dense_masks="head")
    fit = hs.Uncertain(net, 0.01, samples=8).fit([data(12, 1)], show_progress=False)
    assert fit.model.head == "*"
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
    with pytest.raises(ValueError, match="has no room"):
        other(images(1, 0))
    many = hs.Uncertain(net, 0.001, "gradients")
    assert "too many" in many.fit([data(60, 1)]).notes[0]
    assert many(images(2, 0)).method == "noise_sampling"
    renamed = nn.Sequential(net)
    with pytest.raises(ValueError, match="none of that name"):
        at_pixels(hs.Uncertain(renamed.eval()).setup, images(1, 0), "head")
