"""End point error and KL of fitted Gaussians against numpy and torch.distributions."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import howsure.metrics as M


@pytest.fixture
def fields():
    g = torch.Generator().manual_seed(7)
    true = torch.randn(3, 2, 8, 9, generator=g, dtype=torch.float64)
    true[:, 1] += 0.6 * true[:, 0]
    return 0.8 * true + 0.3 * torch.randn(3, 2, 8, 9, generator=g, dtype=torch.float64) + 0.1, true


def _rows(field, dim=1):
    return np.moveaxis(field.numpy(), dim, -1).reshape(-1, field.shape[dim])


def test_epe_is_the_mean_length(fields):
    expected = np.linalg.norm(_rows(fields[0]) - _rows(fields[1]), axis=1).mean()
    assert M.epe(*fields).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dim", [0, 2, -1])
def test_any_dimension_may_hold_the_components(fields, dim):
    expected = np.linalg.norm(_rows(fields[0], dim) - _rows(fields[1], dim), axis=1).mean()
    assert M.epe(*fields, dim=dim).item() == pytest.approx(expected, rel=1e-12)


def test_masks_may_have_or_lack_the_component_dimension(fields):
    mean, target = fields
    mask = torch.rand(3, 8, 9, generator=torch.Generator().manual_seed(0)) > 0.4
    spoilt = mean.masked_fill(~mask.unsqueeze(1), float("nan"))
    expected = (mean - target).norm(dim=1)[mask].mean().item()
    assert M.epe(spoilt, target, mask=mask).item() == pytest.approx(expected)
    assert M.epe(spoilt, target, mask=mask.unsqueeze(1)).item() == pytest.approx(expected)


def _fit(rows):
    return MultivariateNormal(
        torch.tensor(rows.mean(0)), torch.tensor(np.cov(rows, rowvar=False, bias=True))
    )


@pytest.mark.parametrize("direction", ["true||predicted", "predicted||true"])
def test_kl_equals_torch_distributions(fields, direction):
    predicted, true = (_fit(_rows(field)) for field in fields)
    pair = (true, predicted) if direction == "true||predicted" else (predicted, true)
    value = M.kl_of_fitted_gaussians(*fields, direction=direction)
    assert value.item() == pytest.approx(kl_divergence(*pair).item(), rel=1e-9)


def test_kl_is_by_default_from_truth_to_prediction(fields):
    forward, backward = (
        M.kl_of_fitted_gaussians(*fields, direction=d)
        for d in ("true||predicted", "predicted||true")
    )
    assert M.kl_of_fitted_gaussians(*fields) == forward != backward


def test_kl_sees_correlation():
    """A diagonal fit would call these two fields equal."""
    g = torch.Generator().manual_seed(8)
    x = torch.randn(5000, 2, generator=g, dtype=torch.float64)
    true = torch.stack([x[:, 0], 0.9 * x[:, 0] + (1 - 0.81) ** 0.5 * x[:, 1]], 1)
    assert M.kl_of_fitted_gaussians(x, true) > 0.3


def test_kl_of_equal_fields_is_zero(fields):
    assert M.kl_of_fitted_gaussians(fields[0], fields[0]).item() == pytest.approx(0, abs=1e-12)


def test_kl_refuses_vectors_that_lie_on_a_line():
    line = torch.arange(20.0).unsqueeze(1) * torch.tensor([[1.0, 1 / 3]])
    with pytest.raises(ValueError, match="do not span"):
        M.kl_of_fitted_gaussians(torch.randn(20, 2), line)


def test_kl_refuses_an_unknown_direction(fields):
    with pytest.raises(ValueError, match="`direction` is 'forward'"):
        M.kl_of_fitted_gaussians.stream(direction="forward").update(*fields)
