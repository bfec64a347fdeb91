"""What a fitted posterior predicts, rejects, keeps in files and reports."""

import re

import pytest
import torch
from waves import data, trained

import howsure as hs
from howsure import report
from howsure.posterior.novelty import quantile_at, share_below


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
    assert (
        "48 multipliers" in said and "200 held-out inputs" in said and said.startswith("Uncertain(")
    )


def test_the_parts_add_up(sure):
    p = sure(data(20, 6)[0])
    torch.testing.assert_close(p.total_var, p.data_var + p.model_var)
    budget = p.budget()
    assert budget.kinds == ("input", "residual", "model", "growth")
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


def test_the_report_says_how_novel_its_inputs_are(sure, undrawn):
    x, y = data(60, 9)
    for shift, words in ((0.0, "AUROC 4|AUROC 5|AUROC 6"), (6.0, "AUROC 9|AUROC 100")):
        page = report.build(sure, [(x + shift, y)], show_progress=False)
        assert re.match(words, dict(page.facts)["Novelty"])


def test_the_sensor_part_after_a_fit_is_that_of_the_stated_noise():
    net, noise = trained(outputs=2), 0.01
    sure = hs.Uncertain(net, noise=noise, samples=64)
    sure.fit([data(200, 1, outputs=2)], train_inputs=data(400, 0)[0], show_progress=False)
    x = data(200, 2)[0]
    p = sure(x)
    budget = p.budget()
    by_kind = dict(zip(budget.kinds, budget.variances, strict=True))
    of_sensor = by_kind["input"]
    draws = noise**0.5 * torch.randn(2000, *x.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        monte_carlo = net((x + draws).flatten(0, 1)).unflatten(0, (-1, len(x))).var(0)
    torch.testing.assert_close(of_sensor.mean(0), monte_carlo.mean(0), rtol=0.05, atol=0)
    torch.testing.assert_close(p.data_var, of_sensor + by_kind["residual"])
