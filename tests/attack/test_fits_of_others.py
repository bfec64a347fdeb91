"""A fit belongs to its network, and impossible targets are told in one sentence with the figure."""

import copy
import warnings

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.fit.suspicious_targets import describe_suspicions
from howsure.isolation import identify


def network(seed=0, activation=nn.Tanh, outputs=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), activation(), nn.Linear(16, outputs)).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    net, path = network(), tmp_path_factory.mktemp("fit") / "settings.pt"
    x = torch.randn(100, 6)
    sure = hs.Uncertain(net, noise=1e-4)
    sure.fit([(x, net(x).detach() + 0.1 * torch.randn(100, 1))], show_progress=False)
    sure.save(path)
    return path


def notes_on_weights(path, net):
    notes = hs.Uncertain.load(path, net)(torch.ones(3, 6)).notes
    return [note for note in notes if "The weights have changed" in note]


def test_the_same_network_has_no_note(saved):
    assert notes_on_weights(saved, network()) == []
    assert notes_on_weights(saved, torch.compile(network())) == []


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
def test_other_weights_are_told_with_how_much_they_differ(saved, size):
    net = network()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1 + size)
    (note,) = notes_on_weights(saved, net)
    assert f"{size:.2g} of their size" in note


@pytest.mark.parametrize(
    "other",
    [
        lambda: network(outputs=2),
        lambda: network(activation=nn.ReLU),
        lambda: nn.Sequential(*network(), nn.Identity()),
        lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1, bias=False)).eval(),
    ],
)
def test_other_layers_are_refused(saved, other):
    with pytest.raises(ValueError, match="other layers or outputs"):
        hs.Uncertain.load(saved, other())


def test_weights_that_change_after_the_fit_and_change_back():
    net, x = network(), torch.randn(60, 6)
    sure = hs.Uncertain(net, noise=1e-4)
    sure.fit([(x, net(x).detach() + 0.1 * torch.randn(60, 1))], show_progress=False)
    before = copy.deepcopy(net.state_dict())
    assert not any("have changed" in note for note in sure(x).notes)
    with torch.no_grad():
        net[0].weight.mul_(1.5)
    assert any("have changed" in note for note in sure(x).notes)
    net.load_state_dict(before)
    assert not any("have changed" in note for note in sure(x).notes)
    sure.model = network(outputs=3)
    with pytest.raises(ValueError, match="other layers or outputs"):
        sure(x)


def test_every_weight_is_recognized():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)).eval()
    structure, numbers = identify(net)
    for name, weight in net.state_dict().items():
        if weight.is_floating_point():
            twin = copy.deepcopy(net)
            changed = twin.state_dict()[name]
            changed.add_(0.01 * torch.randn_like(changed))
            assert identify(twin)[0] == structure and not torch.equal(identify(twin)[1], numbers)


def honest(rows=300, outputs=1, seed=0):
    """Inputs, what a good network says, and targets with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    truth = torch.sin(x[:, :outputs]) + 0.5 * x[:, -1:]
    return x, truth, truth + 0.2 * torch.randn(rows, outputs, generator=generator)


def last_outlier(x, f, y):
    return x, f, torch.cat([y[:-1], y[-1:] + 100])


WRONG = {
    "shuffled": (lambda x, f, y: (x, f, y.flip(0)), "no better than their mean"),
    "one row late": (lambda x, f, y: (x, f, y.roll(1, 0)), "shifted by a row"),
    "one row early": (lambda x, f, y: (x, f, y.roll(-1, 0)), "shifted by a row"),
    "times 1000": (lambda x, f, y: (x, f, 1000 * y), "other units"),
    "millimeters": (lambda x, f, y: (x, f, y / 1000), "other units"),
    "one outlier": (last_outlier, "1 of "),
    "training data": (lambda x, f, y: (x, y + 1e-4 * f, y), "typical of training data"),
    "one row repeated": (lambda x, f, y: (x[:1].expand_as(x), f, y[:1].expand_as(y)), "Only 1 of"),
    "half twice": (lambda x, f, y: [t[: len(t) // 3].repeat(3, 1) for t in (x, f, y)], "Only "),
}


@pytest.mark.parametrize("rows", [60, 300])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", WRONG)
def test_impossible_targets_are_told(kind, rows, outputs):
    change, words = WRONG[kind]
    sentences = describe_suspicions(*change(*honest(rows, outputs)))
    assert any(words in sentence for sentence in sentences), sentences
    assert any(character.isdigit() for character in sentences[0])


@pytest.mark.parametrize("tail", ["normal", "t3", "lognormal", "heteroscedastic"])
def test_honest_targets_are_not(tail):
    told = 0
    for seed in range(100):
        x, f, _ = honest(200, seed=seed)
        generator = torch.Generator().manual_seed(seed + 1000)
        z = torch.randn(4, 200, 1, generator=generator)
        noise = {
            "normal": z[0],
            "t3": z[0] / (z[1:].square().mean(0)).sqrt(),
            "lognormal": (0.7 * z[0]).exp() - 1.28,
            "heteroscedastic": z[0] * (0.2 + x[:, :1].abs()),
        }[tail]
        told += bool(describe_suspicions(x, f, f + 0.3 * noise))
    assert told <= 2


def test_fit_warns_of_them_in_its_own_category():
    net, x = network(), torch.randn(60, 6)
    y = net(x).detach() + 0.05 * torch.randn(60, 1)
    sure = hs.Uncertain(net, noise=1e-4)
    with pytest.warns(hs.HowsureWarning, match="shifted by a row"):
        sure.fit([(x, y.roll(1, 0))], show_progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sure.fit([(x, y)], show_progress=False)


def test_maps_that_share_their_first_rows_are_honest():
    """As where the sky is at the same depth in all pictures."""
    net = nn.Conv2d(1, 1, 3, padding=1).eval()
    x = torch.rand(24, 1, 16, 16)
    y = net(x).detach() + 0.05 * torch.randn(24, 1, 16, 16)
    y[:, :, :5] = 4.0
    sure = hs.Uncertain(net, noise=1e-4, samples=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hs.HowsureWarning)
        sure.fit([(x, y)], show_progress=False)
