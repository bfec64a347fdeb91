"""A temperature that cannot be: what is refused, and in which words."""

import math

import pytest
import torch
from three_classes import FAR, blobs, fitted
from torch import nn

import howsure as hs


def with_label(value, at=0):
    x, y = blobs(60, 1)
    y = y.to(torch.as_tensor(value).dtype).clone()
    y[at] = value
    return [(x, y)]


def with_nan(count, seed):
    x, y = blobs(count, seed)
    return torch.where(torch.arange(count)[:, None] == count - 1, math.nan, x), y


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"held_out": [with_nan(60, 1)]}, "predictions of held-out inputs are NaN"),
        ({"train_inputs": with_nan(100, 0)[0]}, "activations at training inputs are NaN"),
        ({"held_out": [blobs(15, 1)]}, "at least 20, better 50"),
        ({"held_out": with_label(3)}, "from 0 to 3, but there are 3"),
        ({"held_out": with_label(-1)}, "from -1 to 2"),
        ({"held_out": with_label(math.nan)}, "NaN"),
        ({"held_out": with_label(1.0)}, "whole numbers"),
        ({"held_out": [(blobs(60, 1)[0], torch.zeros(60, 3).long())]}, "one class index"),
        ({"train_inputs": torch.rand(100, 3)}, "preprocess both in the same way"),
        ({"train_inputs": torch.rand(20, 2)}, "at least 50"),
        ({"held_out": [blobs(100, 0)], "train_inputs": blobs(100, 0)[0]}, "also among"),
        ({"stress": "images"}, "axes"),
        ({"inputs": "dirty"}, "noisy"),
        ({"model": "posterior"}, 'model="temperature"'),
        ({"model": "bayes"}, "must be"),
        ({"residual_var": 1.0, "model": "temperature"}, 'model="posterior"'),
        ({"floor": 0.1, "model": "temperature"}, 'model="dropout"'),
    ],
)
def test_wrong_use_is_answered(net, changes, words):
    given = {"held_out": [blobs(60, 1)], **changes}
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net, task="classification").fit(given.pop("held_out"), **given)


def test_a_class_that_never_occurs_is_told(net):
    x, y = blobs(300, 1)
    with pytest.warns(UserWarning, match=r"1 of 3 classes never occur .* \(2\)"):
        fitted(net, held_out=[(x[y < 2], y[y < 2])])


def test_a_network_that_is_always_right_keeps_its_temperature_and_one_that_guesses_is_refused(net):
    x = blobs(100, 1)[0]
    with pytest.warns(UserWarning, match="stays at 1"):
        right = fitted(net, held_out=[(x, net(x).argmax(1))])
    p = right(torch.cat([x, FAR]))
    assert right.last_fit.model.temperature == 1 and right.last_fit.accuracy == 1
    torch.testing.assert_close(
        p.mean, (net(torch.cat([x, FAR])) / p.temperature[:, None]).softmax(1)
    )
    assert float(p.model_var[:100].max(1).values.median()) == 0 < float(p.model_var[100:].sum())
    with pytest.raises(ValueError, match="better than chance"):
        fitted(net, held_out=[(x, net(x).argmin(1))])


def test_tasks_and_methods_without_a_temperature_say_so(net, sure):
    with pytest.raises(ValueError, match=r'does not apply to regression.*"posterior"'):
        hs.Uncertain(net).fit([blobs(60, 1)], model="temperature")
    with pytest.raises(ValueError, match="no temperature of each input"):
        hs.Uncertain(net, 0.01, "adf", task="classification").fit(
            [blobs(60, 1)], model="temperature"
        )
    other = hs.Uncertain(net, 0.01, "mc_dropout", task="classification", rate=0.1)
    other.setup = other.setup.replace(temperature_model=sure.setup.temperature_model)
    with pytest.raises(ValueError, match="cannot use"):
        other(FAR)
    other.setup = other.setup.replace(task="regression")
    other.method = "gradients"
    with pytest.raises(ValueError, match="for classes"):
        other(FAR)
    places = nn.Conv1d(2, 3, 1).eval()
    with pytest.raises(ValueError, match=r"each token, \(60, 3\).*y.mT"):
        fitted(
            places,
            held_out=[(torch.rand(60, 2, 4), torch.zeros(60, 4).long())],
            options={"stress": None},
        )
    pairs = hs.Uncertain(net, task="classification", output=lambda y: (y, y))
    with pytest.raises(TypeError, match=r'one tensor of logits.*model="dropout"'):
        pairs.fit([blobs(60, 1)])
