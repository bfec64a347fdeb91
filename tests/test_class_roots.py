"""The root of the logits' covariance, which has to do without eigenvalues."""

import pytest
import torch

from howsure.estimators.softmax import root_of
from howsure.estimators.variances import semi_definite


def covariances(outputs, rank):
    factors = torch.randn(6, outputs, rank, generator=torch.Generator().manual_seed(rank))
    return factors @ factors.mT


@pytest.mark.parametrize("outputs, rank", [(1, 1), (3, 8), (10, 3), (64, 100)])
def test_the_square_of_the_root_is_the_covariance(outputs, rank):
    wanted = (
        covariances(outputs, rank) * torch.tensor([1e-8, 1e-4, 0.1, 1.0, 1e3, 0.0])[:, None, None]
    )
    found = root_of(wanted) @ root_of(wanted).mT
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=2e-3 * float(two.abs().max()))
        torch.testing.assert_close(one.diagonal(), two.diagonal())


def test_an_estimate_with_negative_eigenvalues_is_mended_as_by_eigenvalues():
    noise = torch.randn(6, 8, 8, generator=torch.Generator().manual_seed(1))
    estimate = covariances(8, 12) + 1.5 * (noise + noise.mT)
    assert float(torch.linalg.eigvalsh(estimate).min()) < -1
    found = root_of(estimate) @ root_of(estimate).mT
    torch.testing.assert_close(
        found.diagonal(dim1=1, dim2=2), estimate.diagonal(dim1=1, dim2=2).clamp(min=0)
    )
    best = (semi_definite(estimate) - estimate).norm()
    assert float((found - estimate).norm()) < 1.2 * float(best)
