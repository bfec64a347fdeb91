"""Predictions at their temperature: noise, sets, gates, files and exports."""

import copy

import pytest
import torch
from three_classes import FAR, blobs, fitted
from torch import nn

import howsure as hs


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
