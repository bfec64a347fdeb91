"""Temperatures of any network: which layers count, and what is left as it was."""

import dataclasses
import threading

import pytest
import torch
from three_classes import FAR, blobs, fitted, labels_of
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.methods.activations import read
from howsure.posterior.temperature import best_temperature
from howsure.setup import Setup
from nets import FunctionalResNet


class Dense(nn.Module):
    """A head of 1 x 1 convolutions, averaged over places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        return self.head(torch.relu(self.first(x))).mean((2, 3))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: object = None


class Inside(nn.Module):
    def __init__(self, model, wrap):
        super().__init__()
        self.model, self.wrap = model, wrap

    def forward(self, x):
        return self.wrap(self.model(x), x)


@pytest.mark.parametrize(
    "wrap, output",
    [
        (lambda y, x: {"logits": y, "input": x}, "logits"),
        (lambda y, x: (x, y), 1),
        (lambda y, x: Output(y), None),
        (lambda y, x: Output(y), "logits"),
    ],
)
def test_logits_may_be_a_part_of_the_output(net, sure, wrap, output):
    own = fitted(Inside(net, wrap).eval(), output=output)
    new = torch.cat([blobs(5, 2)[0], FAR])
    torch.testing.assert_close(own(new).mean, sure(new).mean)
    assert own.setup.temperature_model.distances.head == "model.4"


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 8, 8, generator=generator)


def test_a_convolution_makes_the_logits_and_places_are_averaged():
    torch.manual_seed(0)
    model = Dense().eval()
    held_out = [(images(60, 1), labels_of(model, images(60, 1)))]
    own = fitted(model, held_out=held_out, options={"train_inputs": images(80, 0)})
    distances = own.setup.temperature_model.distances
    assert distances.head == "head" and [layer.name for layer in distances.layers] == ["head"]
    known = torch.relu(model.first(images(80, 0))).mean((2, 3)).double()
    torch.testing.assert_close(distances.layers[0].mean, known.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        distances.neighbors.double().sort(0)[0], F.normalize(known, dim=1).sort(0)[0]
    )


def test_layers_that_are_functions_and_write_in_place_are_read():
    torch.manual_seed(0)
    model = FunctionalResNet(classes=4)
    x = torch.rand(60, 3, 8, 8)
    own = fitted(model, held_out=[(x, torch.arange(60) % 4)], options={"stress": None})
    names = [layer.name for layer in own.setup.temperature_model.distances.layers]
    assert names == ["first", "second", "head"]


class NoHead(nn.Module):
    """Logits are distances to prototypes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 5)
        self.prototypes = nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        return -(torch.tanh(self.first(x))[:, None] - self.prototypes).square().sum(2)


def test_without_a_head_only_the_layers_count_and_a_note_says_so():
    torch.manual_seed(0)
    x, own = blobs(80, 1)[0], NoHead().eval()
    own = fitted(own, held_out=[(x, labels_of(own, x))], options={"growth": True})
    model = own.setup.temperature_model
    assert model.distances.head is None and model.distances.neighbors is None
    assert model.growth == (0.0, 1.0)
    p = own(FAR)
    assert any("no linear layer" in note for note in p.notes)
    assert float(p.temperature.min()) > model.temperature


def test_without_layers_the_temperature_is_constant_and_a_note_says_so(net):
    scripted = torch.jit.trace(net, torch.zeros(2, 2))
    own = fitted(scripted, options={"growth": True})
    p = own(FAR)
    assert own.setup.temperature_model.distances is None and p.novelty is None
    assert float(p.temperature[0]) == pytest.approx(
        best_temperature(net(blobs(200, 1)[0]), blobs(200, 1)[1])
    )
    assert any("same for all inputs" in note for note in p.notes)
    with pytest.raises(ValueError, match="no novelty"):
        hs.Gate.on_novelty(own.setup.temperature_model)


class Tokens(nn.Module):
    """Tokens in front, the batch behind: an axis that may be as long as the batch."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.each(x.transpose(0, 1))).mean(0))


def test_a_layer_whose_first_axis_is_not_the_batch_is_left_out():
    torch.manual_seed(0)
    x, own = torch.randn(60, 60, 2), Tokens().eval()
    own = fitted(own, held_out=[(x, labels_of(own, x))], options={"growth": True})
    assert own.setup.temperature_model.distances.wanted == ("head",)


class Centered(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Jittering(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.filterwarnings("ignore:The best rate")
@pytest.mark.parametrize(
    ("first", "options", "words"),
    [
        (Centered(), {}, "influence each other"),
        (Jittering(), {}, "draws random numbers"),
        (nn.Identity(), {"batch_dim": None}, "axis 0"),
    ],
)
def test_where_there_is_no_temperature_fit_finds_a_rate_and_says_why(net, first, options, words):
    model = nn.Sequential(first, net).eval()
    wrapped = hs.Uncertain(model, task="classification", **options)
    given = {"train_inputs": blobs(60, 0)[0], "show_progress": False}
    fit = wrapped.fit([blobs(10, 1)], **given)
    assert fit.rate is not None and wrapped.setup.temperature_model is None
    assert words in fit.notes[0] and fit.notes[0].endswith("not used: `train_inputs`")
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(model, task="classification", **options).fit(
            [blobs(60, 1)], model="temperature", **given
        )


class Counting(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, x):
        self.calls += 1
        return self.model(x)


def test_the_model_is_left_as_it_was(net):
    model = Counting(net).eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    own = fitted(model)
    own(FAR)
    assert model.calls == 0
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_threads_do_not_read_each_other(sure):
    inputs = [blobs(30, seed)[0] for seed in range(4)]
    alone = [sure(x).temperature for x in inputs]
    found = {}

    def work(k):
        found[k] = [sure(inputs[k]).temperature for _ in range(5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(each, alone[k]) for k in range(4) for each in found[k])


def test_a_row_does_not_depend_on_its_batch(sure):
    new = torch.cat([blobs(6, 2)[0], FAR])
    whole = sure(new)
    for size in range(1, 9):
        part = sure(new[:size])
        torch.testing.assert_close(part.mean, whole.mean[:size], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(part.temperature, whole.temperature[:size], rtol=1e-4, atol=0.0)


def test_the_reader_takes_any_layer_once_per_call():
    layer = nn.Linear(2, 2)
    twice = nn.Sequential(layer, nn.Tanh(), layer).eval()
    seen = read(Setup(twice), torch.ones(3, 2))
    assert list(seen.inputs) == ["0", "0#2"]
    torch.testing.assert_close(seen.inputs["0#2"], torch.tanh(layer(torch.ones(3, 2))).detach())
