"""Factor and constant on the variance: optimal by scipy, consistent in every part."""

import numpy as np
import pytest
import torch
from scipy import optimize

import howsure as hs
from howsure.calibrate import AffineVariance, VarianceScale, class_probabilities

BOTH = (VarianceScale, AffineVariance)


def draws(n=400, shape=(2,), *, residual_var=0.3, scale=4.0, seed=0):
    """Predictions whose errors have variance residual_var + scale * var."""
    generator = torch.Generator().manual_seed(seed)
    var = torch.rand(n, *shape, generator=generator).double() * 2 + 0.02
    error = (
        torch.randn(n, *shape, generator=generator).double() * (residual_var + scale * var).sqrt()
    )
    mean = torch.randn(n, *shape, generator=generator).double()
    return hs.Prediction(mean, 0.7 * var, 0.3 * var), mean + error


def nll(prediction, target):
    return float(hs.metrics.nll(prediction.mean, prediction.total_var, target))


def test_scale_is_the_mean_squared_z_score_and_no_factor_is_better():
    prediction, target = draws()
    fitted = VarianceScale.fit(prediction, target)
    z = (target - prediction.mean) / prediction.std
    torch.testing.assert_close(fitted.scale, z.square().mean())
    squared, var = (target - prediction.mean).square().numpy(), prediction.total_var.numpy()
    best = optimize.minimize_scalar(
        lambda s: np.mean(0.5 * np.log(s * var) + squared / (2 * s * var)), bounds=(0.01, 100)
    )
    assert float(fitted.scale) == pytest.approx(best.x, rel=1e-4)
    torch.testing.assert_close(VarianceScale.fit(fitted(prediction), target).scale.item(), 1.0)


@pytest.mark.parametrize(
    ("residual_var", "scale"),
    [(0.3, 4.0), (0.0, 9.0), (1.0, 0.0), (1e-3, 1.0), (50.0, 1e-3), (1e-8, 1e-6)],
)
def test_affine_is_where_scipy_finds_the_smallest_nll(residual_var, scale):
    prediction, target = draws(residual_var=residual_var, scale=scale)
    fitted = AffineVariance.fit(prediction, target)
    squared, var = (target - prediction.mean).square().numpy(), prediction.total_var.numpy()
    unit = squared.mean()

    def cost(x):
        total = unit * (x[0] + x[1] * var)
        return np.mean(0.5 * np.log(total) + squared / (2 * total))

    starts = [(0.5, 0.5), (1e-4, 1.0), (1.0, 1e-4)]
    bounds = [(0, None), (0, None)]
    options = {"ftol": 1e-15, "gtol": 1e-10}
    runs = [optimize.minimize(cost, x, bounds=bounds, options=options) for x in starts]
    best = min(runs, key=lambda run: run.fun)
    found = (float(fitted.residual_var) / unit, float(fitted.scale) / unit)
    assert cost(found) <= best.fun + 1e-9
    assert found == pytest.approx(tuple(best.x), rel=2e-3, abs=2e-5)


def test_affine_gives_exact_corners_and_never_loses_to_the_factor_alone():
    for seed in range(20):
        prediction, target = draws(40, scale=5.0, residual_var=0.0, seed=seed)
        affine, factor = (kind.fit(prediction, target) for kind in (AffineVariance, VarianceScale))
        assert nll(affine(prediction), target) <= nll(factor(prediction), target) + 1e-12
        if float(affine.residual_var) == 0:
            torch.testing.assert_close(affine.scale, factor.scale)
    corners = [
        AffineVariance.fit(*draws(40, scale=5.0, residual_var=0.0, seed=seed)).residual_var == 0
        for seed in range(20)
    ]
    assert 0 < sum(map(bool, corners)) < 20
    # Errors that shrink as the variance grows: the constant is all that helps.
    prediction, _ = draws(40)
    affine = AffineVariance.fit(prediction, prediction.mean + 1 / prediction.std)
    assert float(affine.scale) == 0
    assert float(affine.residual_var) == pytest.approx(float((1 / prediction.total_var).mean()))


def test_constant_variances_and_zero_variances():
    target = torch.tensor([1.0, -2.0, 3.0, 0.5])
    zero, one = torch.zeros(4), torch.ones(4)
    flat = AffineVariance.fit(hs.Prediction(zero, one, zero), target)
    assert float(flat.residual_var) == 0 and float(flat.scale) == pytest.approx(14.25 / 4)
    none = AffineVariance.fit(hs.Prediction(zero, zero, zero), target)
    assert float(none.residual_var) == pytest.approx(14.25 / 4) and float(none.scale) == 1
    some = AffineVariance.fit(hs.Prediction(zero, torch.tensor([0.0, 1, 1, 0]), zero), target)
    assert float(some.residual_var) > 0


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("shape", [(3,), (3, 4, 5)])
def test_per_output_is_a_fit_of_each_output(kind, shape):
    prediction, target = draws(30, shape)
    prediction = hs.Prediction(
        prediction.mean,
        prediction.data_var * torch.tensor([1.0, 4, 9]).reshape(3, *[1] * (len(shape) - 1)),
        prediction.model_var,
    )
    fitted = kind.fit(prediction, target, per_output=True)
    assert fitted.scale.shape == (3,)
    for k in range(3):
        parts = (prediction.mean[:, k], prediction.data_var[:, k], prediction.model_var[:, k])
        alone = kind.fit(hs.Prediction(*parts), target[:, k])
        torch.testing.assert_close(fitted.scale[k], alone.scale, rtol=1e-5, atol=1e-9)
        calibrated = fitted(prediction)
        torch.testing.assert_close(
            calibrated.total_var[:, k], alone(hs.Prediction(*parts)).total_var, rtol=1e-5, atol=1e-9
        )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_split_stays_consistent(kind, dtype):
    prediction, target = draws()
    fitted = kind.fit(prediction, target)
    tensors = (prediction.mean, prediction.data_var, prediction.model_var)
    one = hs.Prediction(*(tensor[:1].to(dtype) for tensor in tensors), notes=("a note",))
    after = fitted(one)
    residual_var = getattr(fitted, "residual_var", torch.zeros(()))
    torch.testing.assert_close(
        after.data_var, (fitted.scale * one.data_var + residual_var).to(dtype)
    )
    torch.testing.assert_close(after.model_var, (fitted.scale * one.model_var).to(dtype))
    assert torch.equal(after.total_var, after.data_var + after.model_var)
    assert after.mean.dtype == after.data_var.dtype == dtype and after.notes == ("a note",)
    low, high = fitted.interval(one, 0.9)
    assert torch.equal(low, after.interval(0.9)[0]) and torch.equal(high, after.interval(0.9)[1])


def linear_pair(residual_var=0.0):
    """A linear network by its gradients, with covariance, budget and error."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).eval()
    sure = hs.Uncertain(net, noise=0.1, method="gradients", rate=0.1, residual_var=residual_var)
    return sure(torch.randn(5, 4))


@pytest.mark.parametrize("residual_var", [0.0, 0.2])
@pytest.mark.parametrize("per_output", [False, True])
def test_covariance_and_budget_follow(residual_var, per_output):
    before = linear_pair(residual_var)
    target = before.mean + torch.randn(5, 2, generator=torch.Generator().manual_seed(0)) * 3
    fitted = AffineVariance.fit(before, target, per_output=per_output)
    fitted = AffineVariance(fitted.scale, torch.full_like(fitted.scale, 0.5))
    after = fitted(before)
    diagonal = torch.diagonal(after.covariance, dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, after.total_var)
    torch.testing.assert_close(after.budget().total, after.total_var)
    names = after.budget().names
    assert len(set(names)) == len(names) and names.count("constant") == 1
    assert torch.linalg.eigvalsh(after.covariance).min() > 0
    ratio = after.budget().variances[0] / before.budget().variances[0]
    torch.testing.assert_close(ratio, fitted.scale.float().expand(5, 2))
    heat = after.budget().heatmap() / before.budget().heatmap()
    torch.testing.assert_close(heat[..., 0], fitted.scale.float().expand(5, 2))
    # The variance's own error is 2 std d(std), and scales like the variance.
    errors = [each.std_error * each.std for each in (before, after)]
    torch.testing.assert_close(errors[1] / errors[0], fitted.scale.float().expand(5, 2))


def test_a_dict_with_one_tensor_keeps_its_structure():
    prediction, target = draws()
    nested = hs.Prediction(
        *({"out": t, "size": 3} for t in (prediction.mean,)),
        {"out": prediction.data_var, "size": 0.0},
        {"out": prediction.model_var, "size": 0.0},
    )
    fitted = VarianceScale.fit(nested, target)
    torch.testing.assert_close(fitted.scale, VarianceScale.fit(prediction, target).scale)
    assert fitted(nested).mean["size"] == 3 and fitted(nested).data_var["out"].shape == (400, 2)


def test_labels_of_a_classification_are_one_hot():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, generator=generator)
    var = torch.full_like(logits, 0.2)
    p = class_probabilities(hs.Prediction(logits, var, var))
    labels = torch.randint(0, 3, (50,), generator=generator)
    one_hot = torch.nn.functional.one_hot(labels, 3).float()
    plain = hs.Prediction(p.mean, p.data_var, p.model_var)
    a, b = VarianceScale.fit(p, labels), VarianceScale.fit(plain, one_hot)
    torch.testing.assert_close(a.scale, b.scale)
