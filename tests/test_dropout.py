"""Where dropout goes on a trained network, and that it leaves no trace."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.moments.rule import registered
from howsure.multipliers import (
    Multiply,
    Placement,
    check_rates,
    describe,
    draw_uniforms,
    find_sites,
    masks,
)
from howsure.operations import ACTIVATIONS, base_name
from nets import FunctionalResNet

X = torch.rand(2, 3, 16, 16)


def masks_for(sites, rate, seed=0):
    drawn = masks(draw_uniforms(sites, 1, seed), check_rates(rate, sites))
    return [None if mask is None else mask[0] for mask in drawn]


def test_after_every_layer_but_the_output_layer_behind_norm_and_activation():
    sites = find_sites(FunctionalResNet(), X, Placement())
    assert [(s.name, s.chain, s.units) for s in sites] == [
        ("stem", ("conv2d", "batch_norm", "relu"), (8, 1, 1)),
        ("first", ("conv2d", "batch_norm", "relu"), (16, 1, 1)),
        ("second", ("conv2d",), (16, 1, 1)),
    ]


def test_before_drops_the_inputs_of_every_layer():
    sites = find_sites(FunctionalResNet(), X, Placement("before"))
    assert [(s.name, s.units) for s in sites] == [
        ("stem", (3, 1, 1)),
        ("first", (8, 1, 1)),
        ("second", (16, 1, 1)),
        ("head", (16,)),
    ]


def test_element_wise_masks_and_patterns():
    net = FunctionalResNet()
    (site,) = find_sites(net, X, Placement("after", only=("fir*",), units="element"))
    assert site.name == "first" and site.units == (16, 8, 8)
    with pytest.raises(ValueError, match="No layer matches"):
        find_sites(net, X, Placement("after", only=("nothing",)))


def test_existing_dropout_is_found_and_keeps_its_rate():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.drop = nn.Linear(4, 6), nn.Linear(6, 2), nn.Dropout(0.3)

        def forward(self, x):
            x = self.drop(torch.relu(self.a(x)))
            return self.b(F.dropout(x, 0.1, self.training))

    net = Net().eval()
    sites = find_sites(net, torch.rand(3, 4), Placement())
    assert [(s.name, s.rate, s.units) for s in sites] == [
        ("drop", 0.3, (6,)),
        ("dropout", 0.1, (6,)),
    ]
    with Multiply(net, sites, [torch.zeros(6), None]) as mode:
        out = net(torch.rand(3, 4))
    torch.testing.assert_close(out, net.b.bias.expand(3, 2))
    assert mode.used == {"drop"}


def test_functional_models_are_layers_too():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(4, 8))
            self.w2 = nn.Parameter(torch.randn(8, 2))

        def forward(self, x):
            return torch.relu(x @ self.w1) @ self.w2

    (site,) = find_sites(Functional().eval(), torch.rand(3, 4), Placement())
    assert site.name == "w1" and site.chain == ("matmul", "relu") and site.units == (8,)


def test_recurrent_layers_keep_their_mask_over_time_or_not():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.lstm = nn.GRUCell(3, 5), nn.LSTM(5, 4, batch_first=True)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            state, states = x.new_zeros(x.shape[0], 5), []
            for step in range(x.shape[1]):
                state = self.cell(x[:, step], state)
                states.append(state)
            return self.head(self.lstm(torch.stack(states, 1))[0])

    net = Sequence().eval()
    sites = find_sites(net, torch.rand(2, 7, 3), Placement())
    assert [(s.name, s.units) for s in sites] == [("cell", (5,)), ("lstm", (4,))]
    fresh = find_sites(net, torch.rand(2, 7, 3), Placement(over_time="fresh"))
    assert fresh[1].units == (7, 4)
    # A loop of another length meets the same sites.
    with Multiply(net, sites, masks_for(sites, 0.5)) as mode:
        net(torch.rand(2, 11, 3))
    mode.check_all_used()


def test_the_same_mask_on_mean_and_variance():
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double().eval()
    x = torch.rand(2, 4).double()
    sites = find_sites(net, x, Placement())
    (mask,) = masks_for(sites, 0.4)
    with Multiply(net, sites, [mask]):
        out = hs.propagate(net, x, 0.1)
        plain = net(x)
    weight = net[1].weight * mask.double()
    torch.testing.assert_close(out.mean, plain)
    torch.testing.assert_close(plain, net[0](x) @ weight.T + net[1].bias)
    inner = torch.full((2, 4), 0.1).double() @ net[0].weight.square().T
    torch.testing.assert_close(out.var, inner @ weight.square().T)


def test_masks_are_inverted_nested_and_reproducible():
    sites = find_sites(FunctionalResNet(), X, Placement())
    uniforms = draw_uniforms(sites, 50, seed=3)
    again = draw_uniforms(sites, 20, seed=3)
    assert all(torch.equal(u[:20], v) for u, v in zip(uniforms, again, strict=True))
    small, large = masks(uniforms, [0.1] * 3), masks(uniforms, [0.5] * 3)
    for one, two in zip(small, large, strict=True):
        assert set(one.unique().tolist()) <= {0.0, float(torch.tensor(1 / 0.9))}
        assert bool(((two > 0) <= (one > 0)).all()), "masks of different rates are not nested"
    assert masks(uniforms, [0.0] * 3) == [None] * 3
    other = draw_uniforms(sites, 50, seed=4)
    assert not torch.equal(uniforms[0], other[0]) and not torch.equal(
        uniforms[0], uniforms[1][:, :8]
    )


def test_bad_rates_and_words():
    sites = find_sites(FunctionalResNet(), X, Placement())
    for rate in (1.0, -0.1, [0.1, 0.2, 1.5]):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            check_rates(rate, sites)
    with pytest.raises(ValueError, match="3 dropout sites but 2 rates"):
        check_rates([0.1, 0.2], sites)
    for wrong in ({"kind": "everywhere"}, {"units": "row"}, {"over_time": "never"}):
        with pytest.raises(ValueError, match="must be one of"):
            Placement(**wrong)
    with pytest.raises(ValueError, match='placement "before"'):
        find_sites(nn.Linear(4, 2), torch.rand(2, 4), Placement())
    with pytest.raises(ValueError, match="no dropout of its own"):
        find_sites(FunctionalResNet(), X, Placement("existing"))


def test_nothing_is_left_behind_also_after_an_error():
    net = FunctionalResNet()
    sites = find_sites(net, X, Placement())
    plain = net(X)
    with (
        pytest.raises(RuntimeError, match="on purpose"),
        Multiply(net, sites, masks_for(sites, 0.5)),
    ):
        net(X)
        raise RuntimeError("on purpose")
    assert torch.equal(net(X), plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_a_site_that_is_not_reached_is_an_error():
    net = FunctionalResNet()
    sites = find_sites(net, X, Placement())
    with Multiply(net, sites, masks_for(sites, 0.5)) as mode:
        net.stem(X)
    with pytest.raises(RuntimeError, match="took another path"):
        mode.check_all_used()


def test_threads_do_not_see_each_others_dropout():
    net = FunctionalResNet()
    sites = find_sites(net, X, Placement())
    with torch.no_grad():
        plain = net(X)
        expected = {}
        for seed in range(4):
            with Multiply(net, sites, masks_for(sites, 0.3, seed)):
                expected[seed] = net(X)
    wrong = []

    def work(seed):
        with torch.no_grad():
            for _ in range(10):
                with Multiply(net, sites, masks_for(sites, 0.3, seed)):
                    if not torch.equal(net(X), expected[seed]):
                        wrong.append(seed)
                if not torch.equal(net(X), plain):
                    wrong.append("plain")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_describe_is_a_table():
    sites = find_sites(FunctionalResNet(), X, Placement())
    lines = describe(sites, check_rates(0.05, sites)).splitlines()
    assert lines[0].split() == ["layer", "place", "units", "rate"]
    assert "conv2d > batch_norm > relu" in lines[1] and lines[1].endswith("0.05")


@pytest.mark.parametrize("time", [5, 6])
def test_a_mask_for_each_input_is_the_same_for_all_its_tokens(time):
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).eval()
    x = torch.randn(6, time, 4)
    sites = find_sites(net, x, Placement("after"))
    mask = torch.randint(0, 2, (6, 8)).float()
    with Multiply(net, sites, [mask]):
        found = net(x)
    torch.testing.assert_close(found, net[1](net[0](x) * mask[:, None]))
    p = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.1, shared_masks=False, samples=3)(x)
    assert p.mean.shape == (6, time, 2)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_mask_for_each_input_of_a_recurrent_layer(batch_first):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(4, 7, batch_first=batch_first)
            self.head = nn.Linear(7, 2)

        def forward(self, x):
            return self.head(self.cells(x)[0])

    net = Last().eval()
    x = torch.randn(6, 6, 4)  # as many steps as inputs
    sites = find_sites(net, x, Placement("after"), batch_dim=0 if batch_first else 1)
    mask = torch.randint(0, 2, (6, 7)).float()
    with Multiply(net, sites, [mask]):
        found = net(x)
    expected = net.cells(x)[0] * (mask[:, None] if batch_first else mask)
    torch.testing.assert_close(found, net.head(expected))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_final_state_of_a_recurrent_layer_is_dropped_as_its_output_is(kind, bidirectional):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = kind(4, 7, 2, bidirectional=bidirectional)
            self.head = nn.Linear(14 if bidirectional else 7, 2)

        def forward(self, x):
            _, state = self.cells(x)
            state = state[0] if isinstance(state, tuple) else state
            last = state[-2:] if bidirectional else state[-1:]
            return self.head(last.transpose(0, 1).flatten(1))

    net = Last().eval()
    x = torch.randn(3, 5, 4)  # (time, batch, features)
    (site,) = find_sites(net, x, Placement("after"))
    mask = torch.randint(0, 2, site.units).float()
    with Multiply(net, [site], [mask]):
        found = net(x)
    _, state = net.cells(x)
    state = state[0] if isinstance(state, tuple) else state
    last = (state[-2:] if bidirectional else state[-1:]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(found, net.head(last * mask))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradients_sees_a_final_state_that_is_dropped(bidirectional):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.GRU(4, 7, 2, bidirectional=bidirectional, batch_first=True)
            self.head = nn.Linear(14 if bidirectional else 7, 2)

        def forward(self, x):
            _, state = self.cells(x)
            last = state[-2:] if bidirectional else state[-1:]
            return self.head(last.transpose(0, 1).flatten(1))

    net, x = Last().eval(), torch.randn(3, 5, 4)
    ours = hs.Uncertain(net, None, "gradients", rate=0.1)(x)
    sampled = hs.Uncertain(net, None, "mc_dropout", rate=0.1, samples=2000)(x)
    torch.testing.assert_close(ours.model_var, sampled.model_var, rtol=0.2, atol=0)


def test_every_pointwise_rule_belongs_to_an_activation():
    pointwise = [rule for rule in registered() if rule.pointwise]
    assert {base_name(target) for rule in pointwise for target in rule.targets} == ACTIVATIONS


def test_a_dropout_of_rate_0_is_counted_but_no_site():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            x = self.a(F.dropout(x, 0.0, self.training))
            return self.b(F.dropout(x, 0.5, self.training))

    net, x = Net().eval(), torch.rand(3, 4)
    (site,) = find_sites(net, x, Placement())
    assert site.name == "dropout#2" and site.units == (6,)
    with torch.no_grad(), Multiply(net, [site], [torch.zeros(6)]) as mode:
        torch.testing.assert_close(net(x), net.b.bias.expand(3, 2))
    mode.check_all_used()


def test_a_pool_that_also_returns_indices_ends_the_chain():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv1d(1, 4, 3), nn.Linear(4, 2)

        def forward(self, x):
            return self.b(torch.adaptive_max_pool1d(torch.relu(self.a(x)), 1)[0].flatten(1))

    net, x = Net().eval(), torch.rand(3, 1, 8)
    (site,) = find_sites(net, x, Placement())
    assert site.chain == ("conv1d", "relu")
    with Multiply(net, [site], [torch.ones(site.units)]) as mode:
        net(x)
    mode.check_all_used()
