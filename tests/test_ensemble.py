"""Ensembles: a mixture's moments, of any method, in one object."""

import pytest
import torch
from torch import nn

from howsure import Prediction, Uncertain
from howsure.methods.ensemble import mixture
from howsure.methods.variance_head import add_variance_head
from howsure.prediction import Details
from howsure.uncertain import Ensemble
from nets import TwoSensors


def inputs(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mlp(seed, outputs=2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs)).eval()


def test_a_mixture_has_the_moments_of_its_draws():
    means, data, model = inputs(3, 4), inputs(3, 4, seed=2).square(), inputs(3, 4, seed=3).square()
    members = [Prediction(*each) for each in zip(means, data, model, strict=True)]
    p = mixture(members)
    total = (data + model).sqrt()
    draws = means[:, None] + total[:, None] * inputs(3, 200000, 4, seed=4)
    draws = draws.reshape(-1, 4)
    torch.testing.assert_close(p.mean, draws.mean(0), atol=0.02, rtol=0)
    torch.testing.assert_close(p.total_var, draws.var(0), atol=0, rtol=0.02)
    torch.testing.assert_close(p.data_var, data.mean(0))
    assert torch.equal(p.total_var, p.data_var + p.model_var)


def test_an_ensemble_equals_its_formula_in_a_loop():
    members = [
        Uncertain(mlp(0), 0.1, "adf"),
        Uncertain(mlp(1), 0.1, "sampled_adf", rate=0.2, samples=5),
        Uncertain(mlp(2), method="mc_dropout", rate=0.3, residual_var=0.05),
    ]
    x = inputs(6, 3)
    p, each = Ensemble(members)(x), [member(x) for member in members]
    mean = sum(q.mean for q in each) / 3
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.data_var, sum(q.data_var for q in each) / 3)
    disagreement = sum((q.mean - mean).square() for q in each) / 3
    torch.testing.assert_close(p.model_var, sum(q.model_var for q in each) / 3 + disagreement)
    assert torch.equal(p.total_var, p.data_var + p.model_var)


def test_one_member_is_the_member_itself_and_copies_add_nothing():
    sure, x = Uncertain(mlp(0), 0.1, "sampled_adf", rate=0.2), inputs(6, 3)
    alone = sure(x)
    for members in ([sure], [sure, sure, sure]):
        p = Ensemble(members)(x)
        torch.testing.assert_close(p.mean, alone.mean)
        torch.testing.assert_close(p.model_var, alone.model_var)
        torch.testing.assert_close(p.data_var, alone.data_var)


def test_plain_models_are_wrapped_with_the_options_and_own_seeds():
    models, x = [mlp(0), mlp(1)], inputs(6, 3)
    p = Ensemble(models, noise=0.1, method="sampled_adf", rate=0.1, seed=4)(x)
    by_hand = [
        Uncertain(m, 0.1, "sampled_adf", rate=0.1, seed=4 + i)(x) for i, m in enumerate(models)
    ]
    torch.testing.assert_close(p.total_var, mixture(by_hand).total_var)


def test_the_method_ensemble_takes_a_module_list():
    models, x = nn.ModuleList([mlp(0), mlp(1), mlp(2)]).eval(), inputs(6, 3)
    plain = Uncertain(models, method="ensemble")(x)
    outputs = torch.stack([model(x) for model in models]).detach()
    torch.testing.assert_close(plain.mean, outputs.mean(0))
    torch.testing.assert_close(plain.model_var, outputs.var(0, correction=0))
    assert float(plain.data_var.max()) == 0
    noisy = Uncertain(models, 0.1, "ensemble", rate=0.1)(x)
    members = [Uncertain(m, 0.1, rate=0.1, seed=i) for i, m in enumerate(models)]
    torch.testing.assert_close(noisy.total_var, Ensemble(members)(x).total_var)


def test_deep_ensembles_of_variance_heads():
    x = inputs(6, 3)
    models = [add_variance_head(mlp(seed), x, initial_var=0.1 * (seed + 1)) for seed in range(3)]
    p = Uncertain(nn.ModuleList(models), method="ensemble")(x)
    torch.testing.assert_close(p.data_var, torch.full((6, 2), 0.2), rtol=1e-4, atol=0)


def test_classification_averages_probabilities_and_entropies():
    models = [mlp(0, 4), mlp(1, 4)]
    ensemble = Ensemble(models, noise=0.05, task="classification")
    x = inputs(6, 3)
    p, each = ensemble(x), [member(x) for member in ensemble.members]
    torch.testing.assert_close(p.mean.sum(1), torch.ones(6))
    torch.testing.assert_close(p.logits.mean, (each[0].logits.mean + each[1].logits.mean) / 2)
    torch.testing.assert_close(
        p.expected_entropy, (each[0].expected_entropy + each[1].expected_entropy) / 2
    )
    # Entropy is concave: the mixture's is at least the average of its members'.
    assert bool((p.entropy >= (each[0].entropy + each[1].entropy) / 2 - 1e-6).all())


def test_structured_outputs():
    models = nn.ModuleList([TwoSensors(), TwoSensors()]).eval()
    x = {"image": inputs(4, 1, 8, 8), "motion": inputs(4, 6)}
    p = Uncertain(models, {"motion": 0.1}, "ensemble")(**x)
    first, second = (model(**x)["pose"][0] for model in models)
    assert p.total_var["pose"][0].shape == (4, 2)
    assert bool((p.model_var["pose"][0] >= 0.9 * ((first - second) / 2).square() - 1e-3).all())
    assert p.mean["time"] == 4


def test_covariances_combine_as_variances_do():
    means, cov = inputs(2, 5, 3), torch.eye(3).expand(2, 5, 3, 3) * 0.5
    members = [
        Prediction(m, torch.full_like(m, 0.5), torch.zeros_like(m), details=Details(c))
        for m, c in zip(means, cov, strict=True)
    ]
    p = mixture(members)
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), p.total_var)


def test_predict_concatenates_and_state_dict_round_trips():
    ensemble = Ensemble([mlp(0), mlp(1)], noise=0.1, rate=0.1)
    x = inputs(10, 3)
    p = ensemble.predict([x[:4], x[4:]], show_progress=False)
    torch.testing.assert_close(p.total_var, ensemble(x).total_var)
    other = Ensemble([mlp(5), mlp(6)])
    other.load_state_dict(ensemble.state_dict())
    torch.testing.assert_close(other(x).total_var, ensemble(x).total_var)


def test_fit_tunes_every_member():
    ensemble = Ensemble([mlp(0), mlp(1)], noise=0.1, method="sampled_adf")
    x = inputs(64, 3)
    batches = ((part, mlp(2)(part).detach()) for part in x.split(32))
    fits = ensemble.fit(batches, rates=(0.3,), samples=5, show_progress=False)
    assert [fit.rate for fit in fits] == [member.setup.rate for member in ensemble.members]


def test_wrong_members_are_named():
    with pytest.raises(ValueError, match="at least one member"):
        Ensemble([])
    with pytest.raises(TypeError, match="Member 1 of the ensemble is a function"):
        Ensemble([mlp(0), lambda x: x])
    with pytest.raises(
        ValueError, match=r"member 1 returns shape \(6, 3\), member 0 shape \(6, 2\)"
    ):
        Ensemble([mlp(0), mlp(1, 3)], noise=0.1)(inputs(6, 3))
    with pytest.raises(TypeError, match="needs several models"):
        Uncertain(mlp(0), method="ensemble")(inputs(6, 3))
    with pytest.raises(ValueError, match="nothing to predict"):
        Ensemble([mlp(0)], noise=0.1).predict([], show_progress=False)
