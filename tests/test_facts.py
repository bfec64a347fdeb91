"""What is known about a model is asked once, and asked anew when anything changes it depends on."""

import copy
import pickle

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.setup import Setup

X = torch.linspace(-1, 1, 600).reshape(6, 100)


def network(outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 16), nn.Tanh(), nn.Linear(16, outputs)).eval()


def nudged(net):
    net[0].weight.data.mul_(2)


def trained(net):
    with torch.no_grad():
        net[0].weight.add_(0.1)


def longer(net):
    net.append(nn.ReLU().eval())


def switched(net):
    net[1].slope = 2.0


@pytest.mark.parametrize("edit", [trained, longer, switched])
def test_a_fact_is_asked_once_and_again_after_an_edit(edit):
    asked = []

    def count(setup, x):
        return asked.append(x) or len(asked)

    setup = Setup(network(), 0.01)
    assert [setup.cached(count, X), setup.cached(count, X)] == [1, 1]
    edit(setup.model)
    assert [setup.cached(count, X), setup.cached(count, X)] == [2, 2]


@pytest.mark.parametrize(
    "changed", [{"noise": 0.02}, {"rate": 0.1}, {"batch_dim": 1}, {"task": "classification"}]
)
def test_a_fact_is_asked_again_for_other_settings_and_shapes(changed):
    asked = []

    def count(setup, x):
        return asked.append(x) or len(asked)

    setup = Setup(network(), 0.01)
    assert setup.cached(count, X) == 1
    assert setup.replace(**changed).cached(count, X) == 2
    assert setup.cached(count, X[:3]) == 3
    assert setup.cached(count, X.double()) == 4
    assert setup.cached(count, X) == 1


def test_facts_of_a_model_in_training_are_forgotten():
    setup = Setup(network(), 0.01)
    for _ in range(400):
        trained(setup.model)
        setup.cached(lambda own, x: 0, X)
    assert len(setup._cache) <= 256


def test_auto_chooses_again_when_the_head_is_replaced():
    net = network()
    sure = hs.Uncertain(net, hs.noise.std(0.1))
    assert sure(X).method == sure(X).method == "gradients"
    net[2] = nn.Linear(16, 80).eval()
    assert sure(X).method == "noise_sampling"
    net[2] = nn.Linear(16, 3).eval()
    assert sure(X).method == "gradients" and sure(X).mean.shape == (6, 3)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("method", ["auto", "gradients", "sampled_adf"])
def test_copies_predict_the_same_and_know_nothing_yet(copied, method):
    sure = hs.Uncertain(network(), hs.noise.std(0.1), method, rate=0.1)
    before = sure(X)
    twin = copied(sure)
    assert twin.setup._cache == {}
    after = twin(X)
    assert torch.equal(after.std, before.std) and torch.equal(after.mean, before.mean)
    nudged(twin.model)
    assert not torch.allclose(twin(X).std, before.std) and torch.equal(sure(X).std, before.std)


def test_a_noise_of_one_number_is_not_changed_by_a_pass():
    sure = hs.Uncertain(network(), 0.01, "adf")
    first = sure(X).data_var
    assert torch.equal(sure(X).data_var, first)
    torch.testing.assert_close(sure(X[:2]).data_var, first[:2])


def test_a_tensor_of_noise_may_be_edited():
    var = torch.full((100,), 0.01)
    sure = hs.Uncertain(network(), var, "gradients")
    before = sure(X).std
    var.data.mul_(4)
    torch.testing.assert_close(sure(X).std, 2 * before, rtol=0.05, atol=0)
