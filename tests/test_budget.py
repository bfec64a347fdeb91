"""The budget: shares sum to the total, and the heat map to the input's share."""

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.methods import METHODS
from howsure.setup import Setup
from nets import FunctionalResNet


def predicted(**options):
    x = torch.rand(3, 3, 8, 8)
    return METHODS["gradients"](Setup(FunctionalResNet(), 0.01, rate=0.05, **options), x)


def test_shares_sum_to_the_total():
    prediction = predicted()
    budget = prediction.budget()
    torch.testing.assert_close(budget.total, prediction.total_var)
    torch.testing.assert_close(budget.shares.sum(0), torch.ones_like(budget.total))
    assert budget.names == ("x", "stem", "first", "second")
    assert budget.kinds == ("input", "dropout", "dropout", "dropout")


def test_a_constant_variance_is_a_source():
    prediction = predicted(residual_var=0.3)
    budget = prediction.budget()
    assert budget.names[-1] == "constant"
    torch.testing.assert_close(budget.total, prediction.total_var)
    diagonal = prediction.covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal, prediction.total_var)


def test_the_heat_map_sums_to_the_inputs_variance():
    budget = predicted().budget()
    heat = budget.heatmap()
    assert heat.shape == (3, 10, 3, 8, 8)
    torch.testing.assert_close(heat.flatten(2).sum(-1), budget.variances[0])
    with pytest.raises(ValueError, match="no input 'y'"):
        budget.heatmap("y")


def test_the_heat_map_points_at_the_pixel_that_matters():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1)).eval()
    with torch.no_grad():
        model[1].weight.zero_()[0, 5] = 2.0
    heat = METHODS["gradients"](Setup(model, 0.1), torch.rand(1, 1, 4, 4)).budget().heatmap()
    expected = torch.zeros(1, 1, 1, 4, 4)
    expected[0, 0, 0, 1, 1] = 0.4
    torch.testing.assert_close(heat, expected)


def test_the_table_names_the_largest_first():
    budget = predicted().budget()
    text = str(budget)
    assert text.splitlines()[0].split() == ["source", "kind", "variance", "share"]
    assert text.splitlines()[-1].startswith("total")
    shares = [row[3] for row in budget.table()]
    assert shares == sorted(shares, reverse=True)
    with pytest.raises(ValueError, match="no source 'lens'"):
        budget.share("lens")


def test_other_methods_say_that_they_have_none():
    prediction = METHODS["adf"](Setup(nn.Linear(3, 2).eval(), 0.1), torch.randn(2, 3))
    with pytest.raises(ValueError, match="gradients"):
        prediction.budget()


def test_without_noise_there_is_no_heat_map():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    budget = METHODS["gradients"](Setup(model, None, rate=0.1), torch.randn(2, 3)).budget()
    with pytest.raises(ValueError, match="no input has noise"):
        budget.heatmap()


def test_batches_of_a_loader_have_one_budget():
    torch.manual_seed(1)  # with so many units that no row is decided by few of them
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
    sure = hs.Uncertain(model, 0.1, "gradients", rate=0.1)
    x = torch.randn(5, 3)
    p = sure.predict([x[:2], x[2:]], show_progress=False)
    torch.testing.assert_close(p.budget().total, p.total_var)
    assert p.linear_share.shape == p.std_error.shape == (5, 2)
    with pytest.raises(ValueError, match="predict one batch by itself"):
        p.budget().heatmap()


def test_the_budget_of_a_classifier_is_that_of_its_logits():
    torch.manual_seed(1)  # with so many units that no row is decided by few of them
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
    sure = hs.Uncertain(model, 0.1, "gradients", rate=0.1, task="classification")
    p = sure(torch.randn(5, 3))
    assert p.budget() is p.logits.budget()
    torch.testing.assert_close(p.logits.budget().total, p.logits.total_var)
    torch.testing.assert_close(p.logits.covariance.diagonal(dim1=1, dim2=2), p.logits.total_var)
    assert p.std_error.shape == p.logits.linear_share.shape == (5, 2)
    assert p.budget().heatmap().shape == (5, 2, 3)
