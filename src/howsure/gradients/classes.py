"""Class probabilities through their logits: Gaussian logits, draws of the soft-max alone.

A saturated soft-max has gradients that say nothing, while its logits are nearly Gaussian. So the
gradients give the logits' covariance, and thousands of draws, which cost no pass of the network,
take it through the soft-max.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.gradients.backward import MOST_OUTPUTS

DRAWS = 2000
# Of more classes than have a backward pass each, the largest logits vary, the others stay.
LARGEST = 10
_ELEMENTS = 2**24


@dataclass(frozen=True, eq=False)
class Classes:
    """Probabilities with their variances, (rows, classes)."""

    mean: Tensor
    data_var: Tensor
    model_var: Tensor

    @property
    def std(self) -> Tensor:
        """Of the total variance."""
        return (self.data_var + self.model_var).sqrt()


def varying(logits: Tensor) -> Tensor | None:  # (rows, classes)
    """The logits of every row that vary, (rows, outputs), if not all do."""
    return logits.topk(LARGEST, 1).indices if logits.shape[1] > MOST_OUTPUTS else None


def through_softmax(
    logits: Tensor,  # (rows, classes)
    data: Tensor,  # (rows, outputs, outputs)
    model: Tensor,
    columns: Tensor | None,  # (rows, outputs)
    seed: int,
) -> Classes:
    """The moments of softmax(logits + u + w) with u ~ N(0, data) and w ~ N(0, model).

    Draws come in pairs that share w, the model's part: their covariance is the model variance. The
    columns say which logits vary; `None` is all.
    """
    rows = max(1, _ELEMENTS // (DRAWS * max(1, logits.shape[1])))
    pieces = [slice(start, start + rows) for start in range(0, max(1, len(logits)), rows)]
    parts = [
        _drawn(logits[p], data[p], model[p], None if columns is None else columns[p], seed)
        for p in pieces
    ]
    mean, data_var, model_var = (
        torch.cat([getattr(part, name) for part in parts])
        for name in ("mean", "data_var", "model_var")
    )
    return Classes(mean, data_var, model_var)


def _drawn(
    logits: Tensor, data: Tensor, model: Tensor, columns: Tensor | None, seed: int
) -> Classes:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, DRAWS // 4, data.shape[-1])
    half = torch.randn(shape, generator=generator)
    first, second, shared = torch.cat([half, -half], 1).to(logits)  # each with its mirror image
    roots = [root_of(data), root_of(model)]
    moved = torch.einsum("rkl,dl->drk", roots[1], shared)
    pair = []
    for own in (first, second):
        change = moved + torch.einsum("rkl,dl->drk", roots[0], own)
        if columns is not None:
            change = (
                torch.zeros(len(change), *logits.shape)
                .to(change)
                .scatter(2, columns.expand(len(change), -1, -1), change)
            )
        pair.append(torch.softmax(logits + change, 2))
    mean = (pair[0].mean(0) + pair[1].mean(0)) / 2
    total = ((pair[0] - mean).square().mean(0) + (pair[1] - mean).square().mean(0)) / 2
    together = ((pair[0] - mean) * (pair[1] - mean)).mean(0).clamp(min=0)
    has_masks = model.diagonal(dim1=1, dim2=2).sum(1, keepdim=True) > 0
    has_noise = data.diagonal(dim1=1, dim2=2).sum(1, keepdim=True) > 0
    model_var = torch.where(has_noise, torch.minimum(together, total), total)
    model_var = torch.where(has_masks, model_var, torch.zeros_like(total))
    return Classes(mean, total - model_var, model_var)


def root_of(covariance: Tensor) -> Tensor:  # (rows, outputs, outputs)
    """A square root of the nearest positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0).sqrt()[:, None, :]


def semi_definite(covariance: Tensor) -> Tensor:
    """The nearest matrix without negative eigenvalues, with the same variances."""
    root = root_of((covariance + covariance.mT) / 2)
    mended = root @ root.mT
    wanted = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    found = mended.diagonal(dim1=1, dim2=2)
    scale = (wanted / torch.where(found > 0, found, 1.0)).sqrt()
    return mended * scale[:, :, None] * scale[:, None, :]
