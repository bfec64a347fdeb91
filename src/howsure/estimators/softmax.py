"""Class probabilities through their logits: Gaussian logits, draws of the softmax alone.

A saturated softmax has gradients that say nothing, while its logits are nearly Gaussian. So the
gradients give the logits' covariance, and thousands of draws, which cost no pass of the network,
take it through the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.estimators.gradients import MOST_OUTPUTS
from howsure.prediction import binary_entropy, class_dim, entropy
from howsure.settings import Task
from howsure.trees import is_tracing, outside_tracing

DRAWS = 2000
# Of more classes than have a backward pass each, the largest logits vary, the others stay.
LARGEST = 10
_ELEMENTS = 2**24
# What is left of a logit's variance, given others, is rounding if it is such a share of it.
_LEFT = 1e-3
_STEPS = 16


def is_elementwise(logits: Tensor, task: Task) -> bool:
    """Whether every output is a yes-or-no question of its own, with a sigmoid and no softmax.

    So it is for several labels, and for two classes with one logit.
    """
    has_two = logits.dim() > 1 and logits.shape[class_dim(logits)] == 2
    return task == "multilabel" or (task == "binary" and not has_two)


def probabilities_of(logits: Tensor, task: Task) -> Tensor:
    """The probabilities of the classes, or of "yes", in the shape of the logits."""
    if is_elementwise(logits, task):
        return torch.sigmoid(logits)
    return torch.softmax(logits, class_dim(logits))


def entropy_of(probabilities: Tensor, task: Task) -> Tensor:
    """The entropy of every input, pixel or token; of elementwise probabilities that of each."""
    if is_elementwise(probabilities, task):
        return binary_entropy(probabilities)
    return entropy(probabilities, class_dim(probabilities))


def class_logits(logits: Tensor, task: Task) -> Tensor:  # (rows, classes, ...)
    """The logits with their classes along axis 1: of "no" and "yes" where they are elementwise."""
    if is_elementwise(logits, task):
        return torch.stack([-logits / 2, logits / 2], 1)
    return logits.movedim(class_dim(logits), 1)


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


@dataclass(frozen=True, eq=False)
class Logits:
    """Logits, (rows, classes), and covariances of those that vary, (rows, outputs, outputs)."""

    mean: Tensor
    data: Tensor
    model: Tensor


def through_softmax(
    estimates: Sequence[Logits], columns: Tensor | None, seed: int
) -> list[Classes]:
    """The moments of softmax(logits + u + w) with u ~ N(0, data) and w ~ N(0, model), of each.

    Draws come in pairs that share w, the model's part: their covariance is the model variance. The
    columns, (rows, outputs), say which logits vary; `None` is all.
    """
    covariances = [part for logits in estimates for part in (logits.data, logits.model)]
    # All roots at once: a traced program has a hundred operations for them, not for each.
    roots, rows = root_of(torch.cat(covariances)), len(covariances[0])
    by_part = [roots[number * rows : (number + 1) * rows] for number in range(len(covariances))]
    pairs = zip(by_part[0::2], by_part[1::2], strict=True)
    return [
        _drawn(logits.mean, pair, columns, seed)
        for logits, pair in zip(estimates, pairs, strict=True)
    ]


def through_sigmoid(estimates: Sequence[Logits], seed: int) -> list[Classes]:
    """Likewise the moments of sigmoid(logit + u + w) of every logit by itself.

    A sigmoid is the softmax of -logit / 2 and logit / 2, which vary together.
    """
    shape = estimates[0].mean.shape
    opposite = estimates[0].mean.new_tensor([[0.25, -0.25], [-0.25, 0.25]])

    def as_pairs(logits: Logits) -> Logits:
        variances = [
            covariance.diagonal(dim1=1, dim2=2).flatten()
            for covariance in (logits.data, logits.model)
        ]
        data, model = (opposite.to(v) * v[:, None, None] for v in variances)
        return Logits(
            torch.stack([-logits.mean / 2, logits.mean / 2], 2).flatten(0, 1), data, model
        )

    return [
        Classes(*(part[:, 1].reshape(shape) for part in (pair.mean, pair.data_var, pair.model_var)))
        for pair in through_softmax([as_pairs(logits) for logits in estimates], None, seed)
    ]


def _drawn(
    logits: Tensor, roots: tuple[Tensor, Tensor], columns: Tensor | None, seed: int
) -> Classes:
    """The moments by draws, from the roots of both covariances."""
    normals = _normals(roots[0].shape[-1], seed).to(logits)
    parts = [
        _moments(
            logits[some],
            [root[some] for root in roots],
            None if columns is None else columns[some],
            normals,
        )
        for some in _pieces(logits)
    ]
    mean, data_var, model_var = (
        torch.cat([getattr(part, name) for part in parts])
        for name in ("mean", "data_var", "model_var")
    )
    return Classes(mean, data_var, model_var)


def _pieces(logits: Tensor) -> list[slice]:
    """As many rows at once as fit into memory; all of them inside a trace."""
    if is_tracing():
        return [slice(None)]
    rows = max(1, _ELEMENTS // (DRAWS * max(1, logits.shape[1])))
    return [slice(start, start + rows) for start in range(0, max(1, len(logits)), rows)]


def _normals(outputs: int, seed: int) -> Tensor:  # (3, draws, outputs)
    """Two sets of draws for the noise and one for the masks, each with its mirror image."""
    with outside_tracing():
        generator = torch.Generator().manual_seed(seed)
        half = torch.randn(3, DRAWS // 4, outputs, generator=generator, dtype=torch.float32)
        return torch.cat([half, -half], 1)


def _moments(
    logits: Tensor, roots: list[Tensor], columns: Tensor | None, normals: Tensor
) -> Classes:
    data, model = roots
    *independent, shared = normals
    moved = torch.einsum("rkl,dl->drk", model, shared)
    changes = [moved + torch.einsum("rkl,dl->drk", data, normal) for normal in independent]
    pair = [torch.softmax(logits + _everywhere(c, logits, columns), 2) for c in changes]
    mean = (pair[0].mean(0) + pair[1].mean(0)) / 2
    total = ((pair[0] - mean).square().mean(0) + (pair[1] - mean).square().mean(0)) / 2
    together = ((pair[0] - mean) * (pair[1] - mean)).mean(0).clamp(min=0)
    has_noise, has_masks = (root.square().sum((1, 2))[:, None] > 0 for root in roots)
    # The mean of equal numbers is not always the same number.
    total = torch.where(has_noise | has_masks, total, torch.zeros_like(total))
    model_var = torch.where(has_noise, torch.minimum(together, total), total)
    model_var = torch.where(has_masks, model_var, torch.zeros_like(total))
    return Classes(mean, total - model_var, model_var)


def _everywhere(change: Tensor, logits: Tensor, columns: Tensor | None) -> Tensor:
    """The change of every logit, (draws, rows, classes); 0 for those that are held."""
    if columns is None:
        return change
    nothing = torch.zeros_like(logits).expand(len(change), *logits.shape)
    return nothing.scatter(2, columns.expand(len(change), *columns.shape), change.to(logits.dtype))


def root_of(covariance: Tensor) -> Tensor:  # (rows, outputs, outputs)
    """A triangular square root L of a covariance matrix, or of one near by if it is none.

    By chance an estimate has negative eigenvalues; they count as 0, and the variances stay as they
    are. It takes no more than products and roots, so that an exported program does what eager
    does: ONNX has no eigenvalues.
    """
    variances = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    std = variances.sqrt()
    scale = 1 / torch.where(std > 0, std, 1.0)
    correlation = _positive_part(covariance * scale[:, :, None] * scale[:, None, :])
    root = _cholesky(correlation)
    reached = root.square().sum(2).sqrt()
    return root * (std / torch.where(reached > 0, reached, 1.0))[:, :, None]


def _positive_part(matrix: Tensor) -> Tensor:
    """(A + |A|) / 2 with |A| = A sign(A), the sign by Newton and Schulz: X <- (3 X - X^3) / 2.

    An eigenvalue below 1 / 500 of the norm has not reached its sign, and hardly counts.
    """
    whole = (matrix + matrix.mT) / 2
    norm = whole.square().sum((1, 2), keepdim=True).sqrt()
    sign = whole / torch.where(norm > 0, norm, 1.0)
    for _ in range(_STEPS):
        sign = 1.5 * sign - 0.5 * (sign @ sign @ sign)
    return (whole + whole @ sign) / 2


def _cholesky(matrix: Tensor) -> Tensor:
    """L of a matrix that is positive semi-definite but for rounding; no column may be too long."""
    rest, left = matrix, matrix.diagonal(dim1=1, dim2=2).clamp(min=0)
    least = _LEFT * left
    columns: list[Tensor] = []
    for k in range(matrix.shape[1]):
        pivot = left[:, k, None]
        limit = (pivot * left).sqrt()
        held = torch.minimum(torch.maximum(rest[:, :, k], -limit), limit)
        is_free = pivot > least[:, k, None]
        column = torch.where(is_free, held / torch.where(is_free, pivot, 1.0).sqrt(), 0.0)
        rest = rest - column[:, :, None] * column[:, None, :]
        # What is done has nothing left, whatever rounding says.
        left = (left - column.square()).clamp(min=0) * _after(k, left)
        columns.append(column)
    return torch.stack(columns, 2)


def _after(k: int, like: Tensor) -> Tensor:  # (outputs,)
    """1 for the outputs behind number k, else 0."""
    return like.new_tensor([float(output > k) for output in range(like.shape[1])])
