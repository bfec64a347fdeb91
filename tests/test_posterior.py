"""The posterior over masks, the variance model, and what `fit` makes of them."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure import report
from howsure.fit import PosteriorFit
from howsure.fit.stress import IMAGES, TABLES
from howsure.fit.variance_terms import best_weights
from howsure.gradients.units import mask_gradients
from howsure.masks import posterior as posteriors
from howsure.masks.novelty import quantile_at, share_below
from howsure.masks.posterior import Gram, gram_of
from howsure.masks.variance_model import VarianceModel


def trained(outputs=1, seed=0):
    """A small network that has learned a wave, on the left and on the right of a gap."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
    net = nn.Sequential(*net, nn.Linear(24, outputs))
    x, y = data(400, seed, outputs)
    step = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        step.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        step.step()
    return net.eval()


def data(count, seed, outputs=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 2, generator=generator) * 2 - 1
    x[:, 0] = x[:, 0] + 1.5 * x[:, 0].sign()
    wave = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:]
    y = torch.cat([wave * (k + 1) for k in range(outputs)], 1)
    return x, y + 0.1 * torch.randn(y.shape, generator=generator)


@pytest.fixture(scope="module")
def net():
    return trained()


@pytest.fixture(scope="module")
def sure(net):
    wrapped = hs.Uncertain(net, noise=0.001)
    wrapped.fit([data(200, 1)], train_inputs=data(400, 0)[0])
    return wrapped


def conv_net():
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    "model, x",
    [(trained(outputs=2), data(5, 0)[0]), (conv_net(), torch.rand(3, 1, 8, 8))],
)
def test_mask_gradients_are_finite_differences_of_multipliers(model, x):
    z = mask_gradients(hs.Uncertain(model.double(), 0.01).setup, x.double())
    layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)][:-1]
    number, step = 0, 1e-6
    for layer in layers:
        after = {nn.Linear: nn.Tanh, nn.Conv2d: nn.ReLU}[type(layer)]
        own = list(model).index(layer)
        place = next(m for m in list(model)[own:] if isinstance(m, after))
        for unit in range(layer.weight.shape[0]):

            def scaled(module, inputs, output, unit=unit, sign=1):
                factor = torch.ones(output.shape[1], dtype=output.dtype)
                factor[unit] += sign * step
                return output * factor.reshape(-1, *(1,) * (output.dim() - 2))

            ends = []
            for sign in (1, -1):
                hook = place.register_forward_hook(
                    lambda m, i, o, sign=sign, scaled=scaled: scaled(m, i, o, sign=sign)
                )
                with torch.no_grad():
                    ends.append(model(x.double()))
                hook.remove()
            slope = (ends[0] - ends[1]) / (2 * step)
            torch.testing.assert_close(z[:, :, number], slope, rtol=1e-4, atol=1e-6)
            number += 1
    assert number == z.shape[2]
    model.float()


def test_m_is_the_formula():
    z = torch.randn(70, 1, 9, dtype=torch.float64) * torch.rand(9, dtype=torch.float64)
    new = torch.randn(4, 1, 9, dtype=torch.float64)
    found = gram_of(z.split(20)).posterior(0.01).m(new)[:, 0].numpy()
    c = (z[:, 0].mT @ z[:, 0] / 70).numpy()
    inverse = np.linalg.inv(c + 0.01 * np.trace(c) / 9 * np.eye(9))
    expected = [row @ inverse @ row / 9 for row in new[:, 0].numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_outputs_of_any_scale_share_a_posterior():
    z = torch.randn(80, 2, 6, dtype=torch.float64)
    plain = gram_of([z]).posterior(0.01)
    scaled = gram_of([z * torch.tensor([1.0, 1e4])[:, None]]).posterior(0.01)
    new = torch.randn(3, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(plain.m(new), scaled.m(new * torch.tensor([1.0, 1e4])[:, None]))
    covariance = plain.covariance(new)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-12


def test_an_output_that_no_mask_moves_has_no_model_variance():
    z = torch.randn(60, 2, 5, dtype=torch.float64)
    z[:, 1] = 0
    found = gram_of([z]).posterior(0.01).m(z)
    assert bool((found[:, 1] == 0).all()) and bool((found[:, 0] > 0).all())


def test_many_masks_are_sketched_and_rank_alike(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(30, 600, generator=generator, dtype=torch.float64)
    known = torch.randn(500, 1, 30, generator=generator, dtype=torch.float64) @ mixing
    size = torch.rand(40, 1, 1, generator=generator, dtype=torch.float64)
    off = torch.randn(40, 1, 600, generator=generator, dtype=torch.float64)
    new = torch.randn(40, 1, 30, generator=generator, dtype=torch.float64) @ mixing + 3 * size * off
    exact = gram_of([known]).posterior(0.01).m(new).flatten()
    monkeypatch.setattr(posteriors, "EXACT", 500)
    monkeypatch.setattr(posteriors, "SKETCHED", 200)
    gram = gram_of([known])
    assert gram.total.shape == (200, 200)
    rough = gram.posterior(0.01).m(new).flatten()
    assert float(hs.metrics.rank_correlation(exact, rough)) > 0.9


def test_grams_add_up():
    z = torch.randn(60, 2, 4, dtype=torch.float64)
    whole = gram_of([z])
    one, two = Gram(whole.scale), Gram(whole.scale)
    one.add(z[:25])
    two.add(z[25:])
    torch.testing.assert_close((one + two).total, whole.total)
    assert (one + two).count == 60


def test_weights_are_those_of_scipy():
    generator = torch.Generator().manual_seed(2)
    terms = torch.rand(400, 3, generator=generator, dtype=torch.float64)
    terms[:, 0] = 1
    true = torch.tensor([0.2, 0.0, 2.0], dtype=torch.float64)
    noise = torch.randn(400, generator=generator, dtype=torch.float64)
    error = noise.square() * (terms @ true)
    nothing = torch.full((3,), math.nan, dtype=torch.float64)
    found = best_weights(error, terms, nothing)

    def cost(weights):
        v = terms.numpy() @ weights
        return float(np.mean(0.5 * np.log(v) + error.numpy() / (2 * v)))

    bounds = [(1e-12, None)] * 3
    best = optimize.minimize(cost, [0.3, 0.3, 0.3], bounds=bounds, method="L-BFGS-B")
    assert cost(found.numpy() + 1e-15) <= best.fun + 1e-6
    fixed = best_weights(error, terms, torch.tensor([0.5, math.nan, 0.0], dtype=torch.float64))
    assert float(fixed[0]) == 0.5 and float(fixed[2]) == 0


def variance_model(**changes):
    one = torch.ones(1, dtype=torch.float64)
    values = {
        "posterior": None,
        "residual_var": 0.1 * one,
        "noise_factor": 2 * one,
        "mask_var": 0.5 * one,
        "known": one,
        "joint_known": 1.0,
        "squared_error": 0.3 * one,
        "exponent": 1.5,
        "centre": 0 * one,
        "spread": math.inf * one,
        "quantiles": torch.ones(101, 1),
        "joint_quantiles": torch.ones(101),
    }
    return VarianceModel(**{**values, **changes})


def test_the_variance_model_is_its_formula():
    m = torch.tensor([[0.5], [4.0]], dtype=torch.float64)
    parts = variance_model().parts(torch.zeros(2, 1), torch.full((2, 1), 0.05), m)
    total = parts.residual + parts.data + parts.masks + parts.growth
    expected = [0.1 + 0.1 + 0.25, 0.1 + 0.1 + 2.0 + 0.3 * 7.0]
    torch.testing.assert_close(total.flatten(), torch.tensor(expected, dtype=torch.float64))
    capped = variance_model(spread=torch.tensor([0.5], dtype=torch.float64))
    far = capped.parts(torch.ones(2, 1), torch.zeros(2, 1), 1e6 * m)
    var = far.residual + far.data + far.masks + far.growth
    torch.testing.assert_close(var, torch.full_like(var, 1.5), rtol=1e-3, atol=0)


def test_fit_finds_what_the_network_does_not_know(sure):
    known, gap = data(300, 5), torch.linspace(-0.3, 0.3, 50)
    inside = sure(known[0])
    between = sure(torch.stack([gap, torch.zeros(50)], 1))
    beyond = sure(torch.stack([torch.linspace(5, 7, 50), torch.zeros(50)], 1))
    error = (inside.mean - known[1]).square()
    coverage = float((error <= 1.96**2 * inside.total_var).float().mean())
    assert 0.9 <= coverage <= 0.99
    assert 0.1 < float((inside.novelty > 1).float().mean()) < 0.45
    for new in (between, beyond):
        assert float(new.novelty.median()) > 3
        assert float(new.std.median()) > 2 * float(inside.std.median())
    torch.testing.assert_close(inside.joint_novelty, inside.novelty[:, 0])


def test_an_ensemble_of_posteriors(net):
    both = hs.Ensemble([net, trained(seed=4)], noise=0.001)
    both.fit([data(120, 1)], train_inputs=iter(data(200, 0)[0].split(50)))
    near, far = both(data(40, 2)[0]), both(torch.tensor([[6.0, 0.0]]))
    assert float(far.novelty) > 2 * float(near.novelty.median())
    each = torch.stack([member(data(40, 2)[0]).joint_novelty for member in both.members])
    torch.testing.assert_close(near.joint_novelty, each.mean(0))
    assert float(far.std) > 2 * float(near.std.median())


def test_a_gate_rejects_what_is_new(sure):
    gate = hs.Gate.on_novelty(sure.setup.variance_model, level=0.95)
    passed = gate(sure(data(300, 11)[0]).joint_novelty).float().mean()
    assert 0.85 < float(passed) <= 1
    far = sure(torch.stack([torch.linspace(5, 7, 40), torch.zeros(40)], 1))
    assert float(gate(far.joint_novelty).float().mean()) < 0.1
    with pytest.raises(ValueError, match="fit a posterior first"):
        hs.Gate.on_novelty(None)


def test_describe_says_what_was_fitted(sure):
    said = sure.describe()
    assert "48 masks" in said and "200 held-out inputs" in said and said.startswith("Uncertain(")


def test_the_parts_add_up(sure):
    p = sure(data(20, 6)[0])
    torch.testing.assert_close(p.total_var, p.data_var + p.model_var)
    budget = p.budget()
    assert budget.kinds[-3:] == ("constant", "masks", "novelty")
    torch.testing.assert_close(budget.total, p.total_var)
    torch.testing.assert_close(p.covariance[:, 0, 0], p.total_var[:, 0])


def test_a_row_does_not_depend_on_its_batch(sure):
    x = data(7, 8)[0]
    whole = sure(x)
    for row in range(7):
        alone = sure(x[row : row + 1])
        torch.testing.assert_close(alone.total_var[0], whole.total_var[row], rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(alone.novelty[0], whole.novelty[row], rtol=1e-4, atol=1e-6)
    joined = sure.predict([x[:3], x[3:]], show_progress=False)
    torch.testing.assert_close(joined.novelty, whole.novelty, rtol=1e-4, atol=1e-6)


def test_settings_come_back(sure, net, tmp_path):
    sure.save(tmp_path / "sure.pt")
    again = hs.Uncertain.load(tmp_path / "sure.pt", net)
    x = data(9, 9)[0]
    assert torch.equal(again(x).total_var, sure(x).total_var)
    assert torch.equal(again(x).novelty, sure(x).novelty)


def test_without_noise_the_network_alone_is_judged(net):
    wrapped = hs.Uncertain(net)
    wrapped.fit([data(200, 1)], train_inputs=data(400, 0)[0])
    p = wrapped(data(10, 2)[0])
    assert bool((p.model_var > 0).all()) and torch.equal(p.mean, net(data(10, 2)[0]))
    # More rows than there may be outputs.
    assert wrapped(data(100, 2)[0]).model_var.shape == (100, 1)


@pytest.mark.parametrize("form", ["tensor", "numpy", "data set", "pairs", "loader"])
def test_unlabelled_inputs_in_every_form(net, form):
    x, y = data(120, 0)
    forms = {
        "tensor": x,
        "numpy": x.numpy(),
        "data set": TensorDataset(x),
        "pairs": [(x[:60], y[:60]), (x[60:], y[60:])],
        "loader": DataLoader(TensorDataset(x, y), batch_size=50),
    }
    found = []
    for given in (forms["tensor"], forms[form]):
        wrapped = hs.Uncertain(net, 0.001, "gradients")
        wrapped.fit([data(60, 1)], train_inputs=given)
        found.append(wrapped(x[:5]).total_var)
    torch.testing.assert_close(*found, rtol=1e-3, atol=0)


def test_several_outputs_have_a_novelty_each_and_one_together():
    model = trained(outputs=2)
    wrapped = hs.Uncertain(model, 0.001)
    wrapped.fit([data(150, 1, 2)], train_inputs=data(300, 0)[0])
    p = wrapped(data(12, 3)[0])
    assert p.novelty.shape == (12, 2) and p.joint_novelty.shape == (12,)
    assert float(torch.linalg.eigvalsh(p.covariance.double()).min()) > -1e-9
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), p.total_var)
    # Both outputs are one wave: what is unknown about one is unknown about the other.
    model_part = p.covariance[:, 0, 1] / p.total_var.prod(1).sqrt()
    assert float(model_part.min()) > 0


def test_cross_fitting_judges_no_input_by_a_posterior_that_has_seen_it(net):
    x, y = data(60, 1)
    wrapped = hs.Uncertain(net)
    fit = wrapped.fit([(x[:30], y[:30]), (x[30:], y[30:])])
    assert isinstance(fit, PosteriorFit) and fit.cross_fitted and fit.known == 60
    assert "five folds" in str(fit)
    naive = wrapped.setup.variance_model.posterior.m(mask_gradients(wrapped.setup, x))
    assert float(wrapped.setup.variance_model.known) > float(naive.quantile(0.75))


@pytest.mark.parametrize("kind, shape", [("images", (60, 1, 8, 8)), ("tables", (60, 5))])
def test_stress_keeps_shapes_and_is_the_same_every_time(kind, shape):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for change in {"images": IMAGES, "tables": TABLES}[kind]:
        once = change(x)
        assert once.shape == x.shape and torch.equal(once, change(x)) and not torch.equal(once, x)


@pytest.mark.parametrize("harm", [0.3, 4.0])
def test_stress_fits_the_exponent(net, harm):
    x, y = data(150, 1)

    def shifted(x):
        return x + torch.tensor([0.0, harm])

    wrapped = hs.Uncertain(net, 0.001, samples=32)
    fit = wrapped.fit([(x, y)], train_inputs=data(300, 0)[0], stress=[shifted])

    def cost(exponent):
        model = replace(fit.model, exponent=exponent)
        tried = hs.Uncertain(net, 0.001, samples=32)
        tried.setup = wrapped.setup.with_(variance_model=model)
        total = 0.0
        for inputs in (x, shifted(x)):
            p = tried(inputs)
            var = p.total_var.double().numpy()
            total += -stats.norm.logpdf(y.numpy(), p.mean.numpy(), np.sqrt(var)).mean()
        return total

    costs = {exponent: cost(exponent) for exponent in (0.5, 1.0, 1.5, 2.0, 3.0)}
    assert cost(fit.model.exponent) <= min(costs.values()) + 1e-4
    assert max(costs.values()) > min(costs.values()) + 1e-2


def test_parts_can_be_fixed_or_left_out(net):
    held_out, train = [data(100, 1)], data(300, 0)[0]
    fixed = hs.Uncertain(net, 0.001)
    fit = fixed.fit(held_out, train_inputs=train, residual_var=0.02, noise_factor=1.0)
    assert float(fit.model.residual_var) == 0.02 and float(fit.model.noise_factor) == 1
    flat = hs.Uncertain(net, 0.001)
    flat.fit(held_out, train_inputs=train, growth=False, cap=False)
    assert float(flat(torch.full((1, 2), 9.0)).budget().share("novelty")) == 0
    bare = hs.Uncertain(net, 0.001)
    bare.fit(held_out, model=None)
    p = bare(train[:4])
    assert float(p.model_var.max()) == 0 and p.novelty is None and float(p.data_var.min()) > 0


def test_the_papers_dropout_stays(net):
    wrapped = hs.Uncertain(net, 0.001)
    fit = wrapped.fit([data(100, 1)], model="dropout", show_progress=False)
    assert fit.rate is not None and wrapped.setup.variance_model is None
    paper = hs.Uncertain(net, 0.001, "sampled_adf", samples=4)
    assert paper.fit([data(60, 1)], rates=(0.0, 0.1), samples=4, show_progress=False).samples == 4


def test_a_model_without_hidden_layers_has_masks_on_its_inputs():
    line = nn.Sequential(nn.Linear(2, 1)).eval()
    wrapped = hs.Uncertain(line)
    wrapped.fit([data(80, 1)])
    near, far = wrapped(data(50, 2)[0]), wrapped(torch.full((1, 2), 30.0))
    assert float(far.novelty) > 5 * float(near.novelty.median())


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"train_inputs": torch.rand(100, 3)}, "prepare both in the same way"),
        ({"train_inputs": torch.rand(20, 2)}, "at least 50"),
        ({"held_out": [data(30, 1)]}, "at least 50"),
        ({"held_out": [data(100, 0)], "train_inputs": data(100, 0)[0]}, "also among"),
        ({"held_out": [(data(60, 1)[0], torch.full((60, 1), math.nan))]}, "NaN"),
        ({"held_out": [(data(60, 1)[0], torch.ones(60, 2))]}, "targets have shape"),
        ({"stress": "images"}, "axes"),
        ({"stress": "fog"}, "must be one of"),
        ({"model": "bayes"}, "must be"),
        ({"residual_var": -1.0}, "0 or more"),
        ({"per_layer": True, "model": "posterior"}, 'model="dropout"'),
        ({"train_inputs": torch.rand(60, 2), "model": "dropout"}, 'model="posterior"'),
    ],
)
def test_wrong_use_is_answered(net, changes, words):
    given = {"held_out": [data(60, 1)], **changes}
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net, 0.001).fit(given.pop("held_out"), **given)


def test_what_has_no_posterior_says_so(net, sure):
    with pytest.raises(ValueError, match="no posterior over masks"):
        hs.Uncertain(net, 0.001, "adf").fit([data(60, 1)], model="posterior")
    with pytest.raises(TypeError, match="did you mean `train_inputs`"):
        hs.Uncertain(net, 0.001).fit([data(60, 1)], train_input=1)
    other = hs.Uncertain(net, 0.001)
    other.setup = sure.setup
    other.method = "adf"
    with pytest.raises(ValueError, match="has no room"):
        other(data(3, 1)[0])
    hidden = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), Rounded(), nn.Linear(8, 1)).eval()
    with pytest.raises(ValueError, match='model="dropout"'):
        hs.Uncertain(hidden, 0.1).fit([data(60, 1)], model="posterior")


class Rounded(nn.Module):
    def forward(self, x):
        return (4 * x).round()


class Centred(nn.Module):
    """A network whose rows influence each other."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(h - h.mean(0))


def many():
    """A vector of 144 outputs, which is no map."""
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1), nn.Flatten()
    return nn.Sequential(*layers).eval()


NO_POSTERIOR = {
    "many outputs": (many, torch.rand(50, 1, 12, 12), "144 outputs"),
    "steps": (
        lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), Rounded(), nn.Linear(8, 1)).eval(),
        data(60, 1)[0],
        "steps",
    ),
    "rows": (lambda: Centred().eval(), data(60, 1)[0], "influence each other"),
}


@pytest.mark.filterwarnings("ignore:The best rate")
@pytest.mark.parametrize("kind", NO_POSTERIOR)
def test_where_there_can_be_no_posterior_fit_finds_a_rate_and_says_why(kind):
    make, x, words = NO_POSTERIOR[kind]
    torch.manual_seed(0)
    model = make()
    y = model(x).detach() + 0.05 * torch.randn(model(x).shape)
    wrapped = hs.Uncertain(model, 1e-4)
    fit = wrapped.fit(iter([(x, y)]), train_inputs=x, growth=False, show_progress=False)
    assert fit.rate is not None and words in fit.notes[0] and fit.notes[0] in str(fit)
    assert fit.notes[0].endswith("not used: `train_inputs`, `growth`")
    assert wrapped.setup.variance_model is None
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(model, 1e-4).fit([(x, y)], model="posterior")


def test_a_call_whose_rows_influence_each_other_has_no_posterior_to_use(sure):
    other = hs.Uncertain(Centred().eval(), 0.001, "gradients")
    other.setup = other.setup.with_(variance_model=sure.setup.variance_model)
    with pytest.raises(ValueError, match="influence each other"):
        other(data(4, 1)[0])


def test_the_share_of_less_novel_inputs_is_the_auroc(net):
    x, y = data(300, 1)
    wrapped = hs.Uncertain(net, 0.001, samples=32)
    fit = wrapped.fit([(x, y)], train_inputs=data(300, 0)[0])
    held_out = wrapped(x).joint_novelty
    for new in (data(80, 5)[0], data(80, 5)[0] + 0.5, torch.full((3, 2), 9.0)):
        novelty = wrapped(new).joint_novelty
        pairs = (novelty[:, None] > held_out).double() + 0.5 * (novelty[:, None] == held_out)
        assert float(share_below(fit.model.joint_quantiles, novelty).mean()) == pytest.approx(
            float(pairs.mean()), abs=0.01
        )
    for level in (0.5, 0.955, 1.0):
        expected = float(held_out.double().quantile(level))
        assert quantile_at(fit.model.joint_quantiles, level) == pytest.approx(expected, rel=0.02)


def test_the_report_says_how_novel_its_inputs_are(sure):
    x, y = data(60, 9)
    for shift, words in ((0.0, "AUROC 4|AUROC 5|AUROC 6"), (6.0, "AUROC 9|AUROC 100")):
        page = report.build(sure, [(x + shift, y)], show_progress=False)
        assert re.match(words, dict(page.facts)["Novelty"])


def test_outputs_that_cannot_be_negative_have_a_posterior(net):
    """A last ReLU: outputs are flat for half of the inputs, which is no step."""
    model = nn.Sequential(*net, nn.ReLU()).eval()
    x, y = data(150, 1)
    y = y.clamp(min=0)
    assert 0.3 < float((model(x) == 0).double().mean()) < 0.7
    wrapped = hs.Uncertain(model, 1e-3)
    fit = wrapped.fit([(x, y)])
    assert isinstance(fit, PosteriorFit) and fit.nll < fit.constant_nll
    p = wrapped(x[:20])
    assert p.method == "gradients" and bool((p.total_var > 0).all())
