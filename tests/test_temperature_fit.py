"""The temperature of classes: its constant, its distances, and what `fit` makes of them."""

import copy
import dataclasses
import math
import threading

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.fit import TemperatureFit, known_activations
from howsure.fit.temperature import best_temperature
from howsure.methods import temperature as temperatures
from howsure.methods.activations import read
from howsure.setup import Setup
from nets import FunctionalResNet

CENTRES = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
FAR = torch.tensor([[9.0, 9.0], [-30.0, 4.0]])


def blobs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    return CENTRES[labels] + torch.randn(count, 2, generator=generator), labels


@pytest.fixture(scope="module")
def net():
    """Trained for far too long, so that it is too sure."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    x, y = blobs(200, 0)
    for _ in range(300):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def fitted(model, noise=None, held_out=None, options=None, **kwargs):
    sure = hs.Uncertain(model, noise, task="classification", **kwargs)
    sure.fit(held_out or [blobs(200, 1)], **(options or {"train_inputs": blobs(200, 0)[0]}))
    return sure


@pytest.fixture(scope="module")
def sure(net):
    return fitted(net)


# The constant


def test_the_constant_is_that_of_an_independent_optimiser(net):
    x, y = blobs(300, 1)
    logits = net(x).double()
    found = optimize.minimize_scalar(
        lambda log_t: float(F.cross_entropy(logits / math.exp(log_t), y)),
        bounds=(-3, 5),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert best_temperature(logits, y) == pytest.approx(math.exp(found.x), rel=1e-5)


def test_fit_takes_the_constant_and_reports_it(net, sure):
    x, y = blobs(200, 1)
    fit = sure.last_fit
    assert isinstance(fit, TemperatureFit)
    assert fit.model.temperature == pytest.approx(best_temperature(net(x), y), rel=1e-6)
    assert fit.constant_nll == pytest.approx(
        float(F.cross_entropy(net(x).double() / fit.model.temperature, y)), rel=1e-6
    )
    assert fit.plain_nll == pytest.approx(float(F.cross_entropy(net(x).double(), y)), rel=1e-6)
    assert f"temperature {fit.model.temperature:.4g}" in sure.describe()
    assert "unlabelled inputs" in sure.describe() and "3 layers" in sure.describe()
    assert fit.to_dict()["temperature"] == fit.model.temperature


# The distances


def inputs_by_hooks(model, x):
    """What goes into the linear layers, read in another way."""
    seen, handles = [], []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            handles.append(
                module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
            )
    model(x)
    for handle in handles:
        handle.remove()
    return [each.double().numpy() for each in seen]


def log_distances(model, known, x, ridge=0.01):
    """Neighbours by brute force, Mahalanobis distances by numpy."""
    ours, theirs = inputs_by_hooks(model, x), inputs_by_hooks(model, known)
    a, b = (e[-1] / np.linalg.norm(e[-1], axis=1, keepdims=True) for e in (ours, theirs))
    squared = np.sort(((a[:, None] - b[None]) ** 2).sum(2), axis=1)[:, 5]
    layers = []
    for new, old in zip(ours, theirs, strict=True):
        covariance = np.cov(old.T, bias=True)
        covariance = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(
            len(covariance)
        )
        away = new - old.mean(0)
        layers.append(
            np.einsum("ij,jk,ik->i", away, np.linalg.inv(covariance), away) / away.shape[1]
        )
    return np.stack([np.log(squared), np.log(np.mean(layers, 0))], 1)


def test_temperature_and_novelty_are_their_formulas(net, sure):
    known, held_out = blobs(200, 0)[0], blobs(200, 1)[0]
    new = torch.cat([blobs(20, 2)[0], FAR])
    logs = log_distances(net, known, held_out)
    model = sure.setup.temperature_model
    np.testing.assert_allclose(model.thresholds, np.quantile(logs, 0.9, axis=0), rtol=1e-4)
    at = log_distances(net, known, new)
    beyond = np.maximum(at - np.quantile(logs, 0.9, axis=0), 0)
    p = sure(new)
    wanted = model.temperature * np.exp(beyond @ [0.5, 1.0])
    np.testing.assert_allclose(p.temperature, wanted, rtol=1e-3)
    novelty = np.exp(at @ [0.5, 1.0] - np.quantile(logs @ [0.5, 1.0], 0.75))
    np.testing.assert_allclose(p.novelty, novelty, rtol=1e-3)
    torch.testing.assert_close(p.mean, (net(new) / p.temperature[:, None]).softmax(1))
    torch.testing.assert_close(p.entropy, torch.special.entr(p.mean).sum(1))


def test_a_quarter_of_the_held_out_inputs_is_new_and_a_tenth_is_less_sure(sure):
    p = sure(blobs(200, 1)[0])
    assert int((p.novelty > 1).sum()) == 50
    assert (
        20 <= int((p.temperature > sure.setup.temperature_model.temperature * 1.0001).sum()) <= 40
    )
    assert float(sure(FAR).novelty.min()) > 10 * float(p.novelty.median())


def test_held_out_inputs_are_judged_by_folds_that_have_not_seen_them(net):
    x, y = blobs(100, 1)
    found = fitted(net, held_out=[(x[:60], y[:60]), (x[60:], y[60:])], options={"stress": None})
    fold = np.concatenate([np.arange(60) % 5, (np.arange(40) + 1) % 5])
    logs = np.zeros((100, 2))
    for k in range(5):
        logs[fold == k] = log_distances(net, x[fold != k], x[fold == k], ridge=0.1)
    model = found.setup.temperature_model
    np.testing.assert_allclose(model.thresholds, np.quantile(logs, 0.9, axis=0), rtol=1e-4)
    assert found.last_fit.cross_fitted and found.last_fit.known == 100
    np.testing.assert_allclose(
        model.distances.logs(read(found.setup, FAR)),
        log_distances(net, x, FAR, ridge=0.1),
        rtol=1e-4,
    )


def test_stress_fits_the_growth_by_half_of_the_weight_on_clean_data(net):
    x, y = blobs(200, 1)
    wider = lambda x: 2.5 * x  # noqa: E731
    found = fitted(net, options={"train_inputs": blobs(200, 0)[0], "stress": [wider]})
    model = found.setup.temperature_model
    cost = {}
    logs = [torch.tensor(log_distances(net, blobs(200, 0)[0], each)) for each in (x, wider(x))]
    logits = [net(each).double() for each in (x, wider(x))]
    rates = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    for one in rates:
        for two in rates:
            beyond = [(each - model.thresholds).clamp(min=0) for each in logs]
            t = [model.temperature * (b @ b.new_tensor([one, two])).exp() for b in beyond]
            nll = [F.cross_entropy(z / s[:, None], y) for z, s in zip(logits, t, strict=True)]
            cost[one, two] = float(sum(nll))
    assert cost[model.growth] == pytest.approx(min(cost.values()), abs=1e-5)
    assert found.last_fit.stressed_nll < found.last_fit.constant_stressed_nll


# Any network


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
    assert distances.head == "head" and [layer.name for layer in distances.layers] == [
        "first",
        "head",
    ]
    known = torch.relu(model.first(images(80, 0))).mean((2, 3)).double()
    torch.testing.assert_close(distances.layers[1].mean, known.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        distances.neighbours.double().sort(0)[0], F.normalize(known, dim=1).sort(0)[0]
    )


def test_layers_that_are_functions_and_write_in_place_are_read():
    torch.manual_seed(0)
    model = FunctionalResNet(classes=4)
    x = torch.rand(60, 3, 8, 8)
    own = fitted(model, held_out=[(x, torch.arange(60) % 4)], options={"stress": None})
    names = [layer.name for layer in own.setup.temperature_model.distances.layers]
    assert names == ["stem", "first", "second", "head"]


def labels_of(model, x):
    """What the model says, but for each third input."""
    labels = model(x).argmax(1)
    return torch.where(torch.arange(len(x)) % 3 > 0, labels, torch.arange(len(x)) // 3 % 3)


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
    assert model.distances.head is None and model.distances.neighbours is None
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


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Jittering(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.filterwarnings("ignore:The best rate")
@pytest.mark.parametrize(
    ("first", "options", "words"),
    [
        (Centred(), {}, "influence each other"),
        (Jittering(), {}, "draws random numbers"),
        (nn.Identity(), {"batch_dim": None}, "axis 0"),
    ],
)
def test_where_there_is_no_temperature_fit_finds_a_rate_and_says_why(net, first, options, words):
    model = nn.Sequential(first, net).eval()
    wrapped = hs.Uncertain(model, task="classification", **options)
    given = {"train_inputs": blobs(60, 0)[0], "show_progress": False}
    fit = wrapped.fit([blobs(60, 1)], **given)
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


# Memory


def test_neighbours_layers_and_widths_are_capped(net, monkeypatch):
    monkeypatch.setattr(known_activations, "MOST_NEIGHBOURS", 70)
    monkeypatch.setattr(known_activations, "MOST_LAYERS", 2)
    for module in (known_activations, temperatures):
        monkeypatch.setattr(module, "MOST_NUMBERS", 8)
    monkeypatch.setattr(temperatures, "MOST_FEATURES", 8)
    known = blobs(200, 0)[0]
    own = fitted(net, options={"train_inputs": known})
    distances = own.setup.temperature_model.distances
    assert distances.count == 200 and distances.neighbours.shape == (70, 8)
    assert [layer.name for layer in distances.layers] == ["0", "4"]
    assert [len(layer.mean) for layer in distances.layers] == [2, 8]
    every = temperatures.direction(read(own.setup, known).inputs["4"])
    nearest = torch.cdist(distances.neighbours, every).min(1).values
    assert float(nearest.max()) < 1e-3
    assert float(own(FAR).novelty.min()) > 3


def test_sums_over_batches_are_those_of_all_inputs(net):
    known = blobs(200, 0)[0]
    options = {"train_inputs": iter(known.split(30))}
    one, two = fitted(net), fitted(net, options=options)
    for a, b in zip(
        one.setup.temperature_model.distances.layers,
        two.setup.temperature_model.distances.layers,
        strict=True,
    ):
        torch.testing.assert_close(a.mean, b.mean)
        torch.testing.assert_close(a.whitening, b.whitening, rtol=1e-6, atol=1e-9)


# Predictions


@pytest.mark.parametrize("prediction", ["network", "mean"])
@pytest.mark.parametrize("noise, rate", [(0.01, None), (0.01, 0.1), (None, 0.1)])
def test_noise_and_dropout_are_those_of_a_network_with_cooler_logits(net, noise, rate, prediction):
    options = {"method": "gradients", "rate": rate, "prediction": prediction, "samples": 16}
    own = fitted(net, noise, options={"growth": False}, **options)
    cooler = copy.deepcopy(net)
    for each in cooler[4].parameters():
        each.div_(own.setup.temperature_model.temperature)
    x = blobs(8, 2)[0]
    found, wanted = own(x), hs.Uncertain(cooler, noise, task="classification", **options)(x)
    for name in ("mean", "data_var", "model_var", "mutual_information", "std_error"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), rtol=2e-3, atol=1e-6, msg=name
        )
    torch.testing.assert_close(
        found.logits.covariance, wanted.logits.covariance, rtol=2e-3, atol=1e-7
    )
    torch.testing.assert_close(found.budget().total, wanted.budget().total, rtol=2e-3, atol=1e-7)


def test_each_row_is_at_its_own_temperature(net):
    own = fitted(net, 0.01, method="gradients")
    new = torch.cat([blobs(3, 2)[0], FAR])
    whole = own(new)
    for k in range(5):
        cooler = copy.deepcopy(net)
        for each in cooler[4].parameters():
            each.div_(whole.temperature[k])
        alone = hs.Uncertain(cooler, 0.01, "gradients", task="classification")(new[k : k + 1])
        torch.testing.assert_close(whole.data_var[k : k + 1], alone.data_var, rtol=2e-3, atol=1e-7)


class Steps(nn.Module):
    def forward(self, x):
        return (20 * x).round() / 20


def test_where_gradients_say_nothing_samples_are_at_their_temperature(net):
    stairs = nn.Sequential(Steps(), net).eval()
    own = fitted(stairs, 0.04, options={"growth": False}, prediction="network")
    x = blobs(6, 2)[0]
    p = own(x)
    assert p.method == "noise_sampling"
    t = own.setup.temperature_model.temperature
    torch.testing.assert_close(p.mean, (stairs(x) / t).softmax(1))
    cooler = copy.deepcopy(net)
    for each in cooler[4].parameters():
        each.div_(t)
    truth = hs.Uncertain(
        nn.Sequential(Steps(), cooler).eval(), 0.04, "noise_sampling", task="classification"
    )(x)
    torch.testing.assert_close(p.std, truth.std, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(p.std_error, truth.std_error, rtol=1e-3, atol=1e-6)


def test_batches_of_a_loader_are_joined(sure):
    x = blobs(10, 2)[0]
    p = sure.predict(x.split(4), show_progress=False)
    assert p.temperature.shape == p.novelty.shape == p.joint_novelty.shape == (10,)


def test_a_gate_rejects_what_is_newer_than_the_held_out_inputs(sure):
    gate = hs.Gate.on_novelty(sure.setup.temperature_model, level=0.95)
    trusted = gate(sure(blobs(200, 1)[0]).joint_novelty)
    assert 0.94 <= float(trusted.float().mean()) <= 0.96
    assert not bool(gate(sure(FAR).joint_novelty).any())


def test_prediction_sets_and_a_further_temperature_come_on_top(net):
    own = fitted(net)
    more = [blobs(300, 5)]
    first = own(FAR)
    found = own.calibrate(more, "temperature")
    again = own(FAR)
    torch.testing.assert_close(again.temperature, first.temperature * found.temperature.float())
    torch.testing.assert_close(again.novelty, first.novelty)
    own.calibrators = ()
    own.calibrate(more, "conformal_classes")
    x, y = blobs(400, 6)
    sets = own(x).sets(0.9)
    covered = sets.gather(1, y[:, None]).float().mean()
    assert 0.85 < float(covered) < 0.95
    assert own(FAR).novelty is not None


def test_an_ensemble_of_temperatures(net):
    both = hs.Ensemble([net, copy.deepcopy(net)], task="classification")
    both.fit([blobs(100, 1)], train_inputs=iter(blobs(100, 0)[0].split(50)))
    p = both(FAR)
    single = both.members[0](FAR)
    torch.testing.assert_close(p.mean, single.mean)
    torch.testing.assert_close(p.novelty, single.novelty)


def test_settings_survive_a_file_a_copy_and_a_change(net, sure, tmp_path):
    sure.save(tmp_path / "settings.pt")
    again = hs.Uncertain.load(tmp_path / "settings.pt", net)
    changed = hs.Uncertain(net)
    changed.setup = sure.setup.with_(seed=3)
    for other in (again, copy.deepcopy(sure), changed):
        assert torch.equal(other(FAR).mean, sure(FAR).mean)
        assert torch.equal(other(FAR).novelty, sure(FAR).novelty)


def test_other_models_are_refused_by_the_layer(net, sure):
    other = hs.Uncertain(nn.Sequential(nn.Linear(2, 3)).eval(), task="classification")
    other.setup = other.setup.with_(temperature_model=sure.setup.temperature_model)
    with pytest.raises(ValueError, match=r"`4`.*was not reached"):
        other(FAR)
    wide = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    other.model = wide.eval()
    with pytest.raises(ValueError, match="has another width"):
        other(FAR)
    other.model = nn.Sequential(*net[:4], nn.Linear(16, 5)).eval()
    with pytest.raises(ValueError, match="fitted for 3 classes"):
        other(FAR)


def test_fitting_again_drops_what_was_found(net):
    own = fitted(net, 0.01)
    own.fit([blobs(60, 1)], model="dropout", rates=(0.0, 0.1), samples=4, show_progress=False)
    assert own.setup.temperature_model is None and own.setup.rate is not None
    rate = own.setup.rate
    own.fit([blobs(60, 1)])
    assert own.setup.temperature_model is not None and own.setup.rate == rate


def test_exported_files_have_the_temperature(net, tmp_path):
    own = fitted(net)
    x = torch.cat([blobs(2, 2)[0], FAR])
    hs.export(own, x, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for some in (x, x[1:]):
        torch.testing.assert_close(program(some)["mean"], own(some).mean, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_compiled_predictions_have_the_temperature(net):
    own, compiled = fitted(net, 0.01, method="gradients"), fitted(net, 0.01, method="gradients")
    compiled.compile()
    x = torch.cat([blobs(2, 2)[0], FAR])
    one, two = own(x), compiled(x)
    for name in ("mean", "data_var", "temperature", "novelty"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-3, atol=1e-6)


# Wrong use


def with_label(value, at=0):
    x, y = blobs(60, 1)
    y = y.to(torch.as_tensor(value).dtype).clone()
    y[at] = value
    return [(x, y)]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"held_out": [blobs(30, 1)]}, "at least 50"),
        ({"held_out": with_label(3)}, "from 0 to 3, but there are 3"),
        ({"held_out": with_label(-1)}, "from -1 to 2"),
        ({"held_out": with_label(math.nan)}, "NaN"),
        ({"held_out": with_label(1.0)}, "whole numbers"),
        ({"held_out": [(blobs(60, 1)[0], torch.zeros(60, 3).long())]}, "one class index"),
        ({"train_inputs": torch.rand(100, 3)}, "prepare both in the same way"),
        ({"train_inputs": torch.rand(20, 2)}, "at least 50"),
        ({"held_out": [blobs(100, 0)], "train_inputs": blobs(100, 0)[0]}, "also among"),
        ({"stress": "images"}, "axes"),
        ({"inputs": "dirty"}, "noisy"),
        ({"model": "posterior"}, 'model="temperature"'),
        ({"model": "bayes"}, "must be"),
        ({"residual_var": 1.0, "model": "temperature"}, 'model="posterior"'),
        ({"per_layer": True, "model": "temperature"}, 'model="dropout"'),
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


def test_labels_that_have_no_best_temperature_are_refused(net):
    x = blobs(100, 1)[0]
    with pytest.raises(ValueError, match="some mistakes"):
        fitted(net, held_out=[(x, net(x).argmax(1))])
    with pytest.raises(ValueError, match="better than chance"):
        fitted(net, held_out=[(x, net(x).argmin(1))])


def test_tasks_and_methods_without_a_temperature_say_so(net, sure):
    with pytest.raises(ValueError, match=r'is not for regression.*"posterior"'):
        hs.Uncertain(net).fit([blobs(60, 1)], model="temperature")
    with pytest.raises(ValueError, match="no temperature of each input"):
        hs.Uncertain(net, 0.01, "adf", task="classification").fit(
            [blobs(60, 1)], model="temperature"
        )
    other = hs.Uncertain(net, 0.01, "mc_dropout", task="classification", rate=0.1)
    other.setup = other.setup.with_(temperature_model=sure.setup.temperature_model)
    with pytest.raises(ValueError, match="has no room"):
        other(FAR)
    other.setup = other.setup.with_(task="regression")
    other.method = "gradients"
    with pytest.raises(ValueError, match="for classes"):
        other(FAR)
    places = nn.Conv1d(2, 3, 1).eval()
    with pytest.raises(TypeError, match=r'one tensor of logits.*model="dropout"'):
        fitted(places, held_out=[(torch.rand(60, 2, 4), torch.zeros(60, 4).long())])


@pytest.mark.parametrize("noise", [None, 0.0])
@pytest.mark.parametrize("rate", [None, 0.0])
def test_without_anything_random_the_network_itself_is_predicted(net, noise, rate):
    p = hs.Uncertain(net, noise, "gradients", task="classification", rate=rate)(FAR)
    torch.testing.assert_close(p.mean, net(FAR).softmax(1))
    assert float(p.total_var.max()) == 0 and p.temperature is None


def test_double_precision_stays(net):
    wide = copy.deepcopy(net).double()
    x, y = blobs(100, 1)
    own = fitted(wide, held_out=[(x.double(), y)], options={"growth": True})
    assert own(FAR.double()).mean.dtype == own(FAR.double()).temperature.dtype == torch.float64


def test_the_reader_takes_any_layer_once_per_call():
    layer = nn.Linear(2, 2)
    twice = nn.Sequential(layer, nn.Tanh(), layer).eval()
    seen = read(Setup(twice), torch.ones(3, 2))
    assert list(seen.inputs) == ["0", "0#2"]
    torch.testing.assert_close(seen.inputs["0#2"], torch.tanh(layer(torch.ones(3, 2))).detach())
