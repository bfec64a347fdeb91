"""Covariance matrices that fit to variances, and have no negative eigenvalues."""

from __future__ import annotations

import torch
from torch import Tensor


def semi_definite(covariance: Tensor) -> Tensor:
    """The nearest matrix without negative eigenvalues, with the same variances."""
    # A row that is not finite has no eigenvalues; that it is not is said by its variances.
    numbers = torch.where(covariance.isfinite(), covariance, 0.0)
    values, vectors = torch.linalg.eigh((numbers + numbers.mT) / 2)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]
    mended = root @ root.mT
    wanted = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    found = mended.diagonal(dim1=1, dim2=2)
    scale = (wanted / torch.where(found > 0, found, 1.0)).sqrt()
    return mended * scale[:, :, None] * scale[:, None, :]


def with_variances(covariance: Tensor, variance: Tensor) -> Tensor:
    """The covariance scaled to these variances; where it had none, outputs that vary alone."""
    was = covariance.diagonal(dim1=1, dim2=2)
    factor = torch.where(was > 0, variance / torch.where(was > 0, was, 1.0), 0.0).sqrt()
    scaled = covariance * factor[:, :, None] * factor[:, None, :]
    return scaled + torch.diag_embed(torch.where(was > 0, 0.0, variance))
