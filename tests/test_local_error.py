"""The local error of tables: against numpy, in what `fit` makes of it, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.fit import known as fitting
from howsure.methods.activations import LastLinear
from howsure.posterior.local_error import NEIGHBORS, LocalError


def table(count, seed, outputs=1):
    """A wave whose noise is five times as large on the right."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 2, generator=generator) * 4 - 2
    noise = torch.where(x[:, :1] > 0, 0.5, 0.1)
    wave = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:]
    y = torch.cat([wave * (k + 1) for k in range(outputs)], 1)
    return x, y + noise * torch.randn(y.shape, generator=generator)


def trained(outputs=1):
    torch.manual_seed(0)
    layers = nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, outputs)
    net = nn.Sequential(*layers)
    x, y = table(600, 0, outputs)
    step = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        step.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        step.step()
    return net.eval()


@pytest.fixture(scope="module")
def net():
    return trained()


@pytest.fixture(scope="module")
def sure(net):
    wrapped = hs.Uncertain(net)
    wrapped.fit([table(200, 1)], train=table(600, 0))
    return wrapped


def oracle(known, residuals, held_out_error, new):
    """The formula by loops over numpy arrays: (rows, units), (rows, outputs), (outputs,)."""
    squared = residuals**2 * held_out_error / (residuals**2).mean(0)
    apart = np.array([[np.linalg.norm(a - b) for b in known] for a in known])
    width = 0.25 * np.sort(np.sort(apart, 1)[:, 30])[(len(known) - 1) // 2]
    found = []
    for h in new:
        distance = np.array([np.linalg.norm(h - each) for each in known])
        nearest = np.argsort(distance)[:30]
        weight = np.exp(-((distance[nearest] / width) ** 2) / 2)
        total = (weight[:, None] * squared[nearest]).sum(0) + held_out_error
        found.append(total / (weight.sum() + 1))
    return np.array(found)


def test_the_local_error_is_its_formula():
    generator = np.random.default_rng(0)
    known, new = generator.normal(size=(80, 4)), generator.normal(size=(9, 4))
    residuals, error = generator.normal(size=(80, 2)), np.array([0.3, 4.0])
    arrays = (known, residuals**2, error, new)
    features, squared, typical, at = (torch.from_numpy(each) for each in arrays)
    found, distance = LocalError.of(features, squared, typical).at(at)
    np.testing.assert_allclose(found, oracle(known, residuals, error, new), rtol=1e-10)
    nearest = ((new[:, None] - known) ** 2).sum(2).min(1)
    np.testing.assert_allclose(distance[:, 0], nearest, rtol=1e-10)


def test_the_growth_needs_both_new_gradients_and_far_rows():
    wrapped = hs.Uncertain(trained(1))
    train, held_out = table(150, 0), table(120, 1)
    model = wrapped.fit([held_out], train=train, cap=False).model
    with torch.no_grad():
        rows = wrapped.setup.model[:-1](train[0]).double()
        new = 1.5 * table(9, 2)[0]
        near = torch.cdist(wrapped.setup.model[:-1](new).double(), rows).amin(1).square()
        held = torch.cdist(wrapped.setup.model[:-1](held_out[0]).double(), rows).amin(1).square()
    assert model.known_nearest == pytest.approx(float(held.quantile(0.75)), rel=1e-4)
    p = wrapped(new)
    # None of these inputs is far outside the range, where the growth has another term.
    assert float(wrapped.setup.variance_model.input_range.distance(new).max()) < 1
    novelty = p.novelty[:, 0].double() * model.novelty_scale
    both = (novelty * near / held.quantile(0.75)).sqrt()
    expected = model.squared_error * (both**model.exponent - 1).clamp(min=0)
    budget = p.budget()
    grown = budget.variances[budget.names.index("growth")][:, 0]
    assert float(expected.max()) > 0
    torch.testing.assert_close(grown, expected.to(grown), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_fit_puts_the_oracles_error_into_the_variance(outputs):
    net = trained(outputs)
    (x, y), held_out, new = table(150, 0, outputs), table(120, 1, outputs), table(7, 2)[0]
    wrapped = hs.Uncertain(net)
    fit = wrapped.fit([held_out], train=(x, y), cap=False)
    with torch.no_grad():
        error = (net(held_out[0]) - held_out[1]).square().mean(0).double().numpy()
        known, residuals = net[:-1](x).double().numpy(), (net(x) - y).double().numpy()
        expected = oracle(known, residuals, error, net[:-1](new).double().numpy())
    budget = wrapped(new).budget()
    found = budget.variances[budget.names.index("local error")]
    weight = fit.model.weight("local_weight")
    assert weight is not None and float(weight.max()) > 0
    np.testing.assert_allclose(found, weight.numpy() * expected, rtol=1e-4)


def test_far_from_all_rows_the_held_out_error_is_left():
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    local = LocalError.of(rows, torch.rand(60, 1), torch.tensor([0.7]))
    assert float(local.at(torch.full((1, 3), 1e4))[0]) == pytest.approx(0.7)


@pytest.mark.parametrize("same", ["features", "residuals"])
def test_rows_that_coincide_and_residuals_of_0_give_finite_errors(same):
    rows = torch.ones(60, 3) if same == "features" else torch.rand(60, 3)
    squared = torch.zeros(60, 1) if same == "residuals" else torch.full((60, 1), 0.2)
    found, _ = LocalError.of(rows, squared, torch.tensor([0.7])).at(torch.ones(4, 3))
    # Either way nothing distinguishes one place from another.
    torch.testing.assert_close(found, torch.full((4, 1), 0.7, dtype=torch.float64))


def test_noise_that_differs_from_place_to_place_is_found(net, sure):
    plain = hs.Uncertain(net)
    plain.fit([table(200, 1)], train_inputs=table(600, 0)[0])
    x, y = table(1000, 3)

    def judged(wrapped):
        p = wrapped(x)
        return float(hs.metrics.nll(p.mean, p.total_var, y)), p.std[:, 0]

    nll, std = judged(sure)
    assert nll < judged(plain)[0] - 0.1
    right = x[:, 0] > 0.3
    assert float(std[right].median()) > 2 * float(std[x[:, 0] < -0.3].median())


def test_what_is_far_stays_unknown(sure):
    near, far = sure(table(100, 4)[0]), sure(torch.tensor([[9.0, -9.0]]))
    assert float(far.std) > 2 * float(near.std.median()) and float(far.novelty) > 3


def test_the_parts_add_up_and_are_named(sure):
    p = sure(table(20, 6)[0])
    budget = p.budget()
    assert budget.names == ("residual", "local error", "model", "growth")
    torch.testing.assert_close(budget.total, p.total_var)
    torch.testing.assert_close(p.data_var, budget.variances[:2].sum(0))
    torch.testing.assert_close(p.covariance[:, 0, 0], p.total_var[:, 0])
    assert "600 training rows" in sure.describe()
    assert sure.last_fit.to_dict()["local_rows"] == 600


def test_a_row_does_not_depend_on_its_batch(sure):
    x = table(6, 8)[0]
    whole = sure(x).total_var
    for row in range(6):
        torch.testing.assert_close(
            sure(x[row : row + 1]).total_var[0], whole[row], rtol=1e-4, atol=0
        )


def test_settings_come_back(sure, net, tmp_path):
    sure.save(tmp_path / "sure.pt")
    x = table(9, 9)[0]
    assert torch.equal(hs.Uncertain.load(tmp_path / "sure.pt", net)(x).total_var, sure(x).total_var)


def test_labeled_rows_in_every_form(net):
    x, y = table(150, 0)
    forms = [
        (x, y),
        (x.numpy(), y.numpy()),
        TensorDataset(x, y),
        DataLoader(TensorDataset(x, y), batch_size=40),
        [(x[:70], y[:70]), (x[70:], y[70:])],
        iter([(x[:70], y[:70]), (x[70:], y[70:])]),
    ]
    found = []
    for form in forms:
        wrapped = hs.Uncertain(net)
        fit = wrapped.fit([table(80, 1)], train=form)
        # The inputs serve for the posterior as well.
        assert fit.known == 150 and not fit.cross_fitted
        found.append(wrapped(x[:5]).total_var)
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=1e-3, atol=0)


def test_inputs_of_their_own_for_the_posterior(net):
    fit = hs.Uncertain(net).fit([table(80, 1)], train=table(150, 0), train_inputs=table(90, 5)[0])
    assert fit.known == 90 and fit.to_dict()["local_rows"] == 150


def test_of_many_rows_some_are_kept_whatever_their_order(net, monkeypatch):
    monkeypatch.setattr(fitting, "MOST_ROWS", 100)
    x, y = table(400, 0)
    kept = hs.Uncertain(net).fit([table(80, 1)], train=(x, y)).model.local_error
    assert kept.features.shape == (100, 12) and kept.squared.shape == (100, 1)
    with torch.no_grad():
        every = net[:-1](x)
    place = torch.cdist(kept.features, every).argmin(1)
    # From the beginning, the middle and the end, each once.
    assert len(place.unique()) == 100
    assert min(int((place // 100 == k).sum()) for k in range(4)) > 10


def test_an_ensemble_takes_them(net):
    both = hs.Ensemble([net, trained()])
    fits = both.fit([table(80, 1)], train=iter([table(150, 0)]))
    assert [fit.to_dict()["local_rows"] for fit in fits] == [150, 150]


def test_the_last_linear_layer_is_watched(net):
    x = table(5, 0)[0]
    with torch.no_grad(), LastLinear() as last:
        net(x)
    assert torch.equal(last.features(5), net[:-1](x))


X, Y = table(150, 0)


@pytest.mark.parametrize(
    "train, words",
    [
        ((X, Y.expand(-1, 2)), r"training targets have shape \(64, 2\), and the model predicts 1"),
        ((X, Y[:100]), "150 inputs and 100 targets"),
        ((X[:NEIGHBORS], Y[:NEIGHBORS]), f"{NEIGHBORS} rows, .* {NEIGHBORS} neighbors"),
        ((X, torch.full_like(Y, math.nan)), "training rows are NaN"),
        ((X.clone().fill_(math.inf), Y), "training rows are NaN or infinite"),
        ((torch.rand(150, 3), Y), "preprocess both in the same way"),
        (table(200, 1), "also among the training inputs"),
    ],
)
def test_wrong_rows_are_answered(net, train, words):
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net).fit([table(200, 1)], train=train)


@pytest.mark.parametrize("train", [X, 3, [X], "rows"])
def test_what_has_no_targets_is_answered(net, train):
    with pytest.raises(TypeError, match="pair"):
        hs.Uncertain(net).fit([table(80, 1)], train=train)


@pytest.mark.parametrize("options", [{"growth": False}, {"model": None}])
def test_never_without_the_growth(net, options):
    with pytest.raises(ValueError, match="needs the posterior and its growth"):
        hs.Uncertain(net).fit([table(80, 1)], train=(X, Y), **options)


def test_only_the_posterior_has_room_for_it(net):
    with pytest.raises(ValueError, match='model="posterior"'):
        hs.Uncertain(net).fit([table(80, 1)], train=(X, Y), model="dropout")


class PerStep(nn.Module):
    """Its last linear layer sees every step by itself."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.unsqueeze(-1)))).mean(1)


def test_a_model_without_a_row_of_features_says_so():
    with pytest.raises(ValueError, match="one row of inputs for each input"):
        hs.Uncertain(PerStep().eval()).fit([table(80, 1)], train=(X, Y))
