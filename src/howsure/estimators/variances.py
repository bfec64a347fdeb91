"""From an estimate to variances: not negative, with parts that add up, and judged row by row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from howsure.estimators.designs import FEW_ELEMENTS, Forms
from howsure.estimators.gradients import COMPARED, MANY_POINTS, Estimate, Sums, at_least
from howsure.prediction import CONSTANT, Budget, Details, Source
from howsure.trees import has_values, outside_tracing

# Outputs at the points that vary by so much more than their gradients say have a step between them:
# a quantile of the chi-square distribution, one in 100,000 (Wilson & Hilferty 1931). Points in
# mirrored pairs count as a third of a degree of freedom each, which makes 10 times for 8 of them.
# Points that share multipliers say less, however many they are.
_QUANTILE, _FREEDOM, _WITH_MULTIPLIERS = 4.26, 1 / 3, 8
# What slopes leave unexplained of the change over a pair of mirror images is an error of quadrature
# as long as it is not larger than the variation of the slopes (squares, summed over the pairs: 0.5
# times in 99 of 100 rows of 13 kinds of networks, 3.3 times at most), or a small share of the
# change.
_VARIATION, UNEXPLAINED = 2.0, 0.05**2
# Of many pairs the slopes explain the squared changes but for such a share, or those of many lines
# are looked at.
_LEFT = 0.3
# Where few numbers bend, slopes that vary by such a share of what they explain may lie beside a
# steep part that no point has reached (wrong stds of 18 steep functions: 0.12 and more; sigmoid,
# tanh and softplus as they are: 0.03 at most).
_BENT = 0.1
# Where outputs vary less than the gradients say by such a factor, further samples are looked at;
# some of them have to confirm half of it. By chance they do so in 0.8 % of 4,560 rows of four
# networks at 8 points, and in 0.6 % at 4, a single block. One with multipliers has 4 of these.
_LESS, _LESS_OF_ONE_BLOCK, _CONFIRMED = 12.0, 60.0, 3.0
# A share of the squared gradient that is most of it.
_MOST_OF_IT = 0.8
# Rounding of half precision.
_COARSE = 1e-4
# Gaussian multipliers for dropped units cost so much of their std (ResNet-20: 0.06 to 0.12, an MLP
# 0.03).
_BERNOULLI = 0.07
# A mean that the noise moves by so many std is worth a note.
SHIFT = 10


@dataclass(frozen=True, eq=False)
class Variances:
    """Variances of all rows and outputs, (rows, outputs), and where they come from.

    Attributes:
        data: Data variance.
        model: Model variance.
        error: Computes the standard error of the std, when it is asked for.
        details: Computes covariance, linear share and budget, when they are asked for.
    """

    data: Tensor
    model: Tensor
    error: Callable[[], Tensor]
    details: Callable[[], Details]

    @property
    def total(self) -> Tensor:
        """Of both."""
        return self.data + self.model

    @property
    def standard_error(self) -> Tensor:
        """Of the std."""
        return self.error()

    @classmethod
    def zero(cls, plain: Tensor) -> Variances:  # (rows, outputs)
        """Without any source."""
        zero = torch.zeros_like(plain)
        budget = Budget((), (), plain.new_zeros(0, *plain.shape))
        details = Details(torch.diag_embed(zero), torch.ones_like(plain), budget)
        return cls(zero, zero, lambda: torch.zeros_like(plain), lambda: details)

    @classmethod
    def of(cls, estimate: Estimate, sources: Sequence[Source]) -> Variances:
        """Those of an estimate.

        Where gradients at different points contradict each other an inner product, and with it an
        estimate, can be negative by chance: a part that is counts as 0.
        """
        has_model = len(sources) > estimate.inputs

        def kept() -> tuple[Tensor, Tensor]:
            data, model = estimate.data_and_model_var
            return data.relu(), model.relu() if has_model else model

        def error() -> Tensor:
            data, model = kept()  # Anew: a user may write into those of a prediction.
            squared = estimate.squared_error
            if has_model:
                squared = squared + (2 * _BERNOULLI * model).square()
            # d std = d var / (2 std); where the variance is 0 its error is 0 as well.
            total = (data + model).clamp(min=torch.finfo(data.dtype).tiny)
            return (squared / total).sqrt() / 2

        def details() -> Details:
            data, model = kept()
            covariance = _covariance(estimate, data + model)
            budget = _budget(estimate, (data, model), sources)
            return Details(covariance, estimate.linear_share, budget)

        return cls(*kept(), error, details)

    def scale(self, factor: Tensor) -> Variances:  # (rows, 1)
        """Those of outputs whose variances are so many times as large."""
        factor = factor.to(self.data)

        def details() -> Details:
            was = self.details()
            assert was.covariance is not None and was.budget is not None
            covariance = factor[:, :, None] * was.covariance
            return replace(was, covariance=covariance, budget=was.budget.scaled(factor))

        def error() -> Tensor:
            return factor.sqrt() * self.standard_error

        return Variances(factor * self.data, factor * self.model, error, details)

    def add_constant(self, value: float | Tensor, name: str = CONSTANT) -> Variances:
        """With a constant variance of every output as part of the data variance."""
        if not isinstance(value, Tensor) and value == 0:
            return self
        constant = torch.as_tensor(value).to(self.data)
        try:
            constant = constant.expand_as(self.data).clone()
        except RuntimeError:
            raise ValueError(
                f"`residual_var` has the shape {tuple(constant.shape)}; give a number, or one for "
                f"each of the {self.data.shape[1]} outputs."
            ) from None

        def details() -> Details:
            was = self.details()
            assert was.covariance is not None and was.budget is not None
            covariance = was.covariance + torch.diag_embed(constant)
            return replace(
                was, covariance=covariance, budget=was.budget.with_constant(constant, name)
            )

        return replace(self, data=self.data + constant, details=details)

    def replace_rows(self, rows: Tensor, sampled: Variances) -> Variances:
        """With others, such as samples have given, for some rows."""

        def put(whole: Tensor, part: Tensor) -> Tensor:
            return whole.index_copy(0, rows, part.to(whole))

        data, model = put(self.data, sampled.data), put(self.model, sampled.model)
        kept = data.clone(), model.clone()

        def details() -> Details:
            was, new = self.details(), sampled.details()
            assert was.covariance is not None and was.budget is not None
            assert new.covariance is not None
            assert was.linear_share is not None and new.linear_share is not None
            return Details(
                put(was.covariance, new.covariance),
                put(was.linear_share, new.linear_share),
                _rescale(was.budget, *kept),
            )

        def error() -> Tensor:
            return put(self.standard_error, sampled.standard_error)

        return Variances(data, model, error, details)


def _covariance(estimate: Estimate, variance: Tensor) -> Tensor:
    """The nearest covariance matrix to that of the estimate with the variances that were kept."""
    if variance.shape[1] == 1:
        return variance[:, :, None]
    eye = torch.eye(variance.shape[1], dtype=variance.dtype, device=variance.device)
    data, model = estimate.covariances()
    return semi_definite(torch.where(eye > 0, torch.diag_embed(variance), data + model))


def _budget(estimate: Estimate, kept: tuple[Tensor, Tensor], sources: Sequence[Source]) -> Budget:
    """The variance by source; its parts add up to what was kept of data and model variance."""
    maps = {
        source.name: variances.reshape(*variances.shape[:2], *source.shape)
        for source, variances in zip(sources, estimate.by_element(), strict=False)
        if source.is_independent
    }
    names = tuple(source.name for source in sources)
    kinds = tuple(source.kind for source in sources)
    return _rescale(Budget(names, kinds, torch.stack(estimate.by_source), maps), *kept)


def _rescale(budget: Budget, data: Tensor, model: Tensor) -> Budget:
    """The budget with parts that add up to these variances of the sensors and of the units.

    Where a sum was not positive its parts are meaningless: equal ones take their place.
    """
    variances, maps = budget.variances.clone(), dict(budget.elements)
    for kind, total in (("input", data), ("dropout", model)):
        numbers = [i for i, name in enumerate(budget.kinds) if name == kind]
        if not numbers:
            continue
        was = variances[numbers].sum(0)
        is_positive = was > 0
        factor = torch.where(was == total, 1.0, total / torch.where(is_positive, was, 1.0))
        for i in numbers:
            equal = total / len(numbers)
            variances[i] = torch.where(is_positive, variances[i] * factor, equal)
            if (elements := maps.get(budget.names[i])) is not None:
                wide = (*was.shape, *(1,) * (elements.dim() - 2))
                equal = equal.reshape(wide) / max(1, elements[0, 0].numel())
                scaled = elements * factor.reshape(wide)
                maps[budget.names[i]] = torch.where(is_positive.reshape(wide), scaled, equal)
    return replace(budget, variances=variances, elements=maps)


def semi_definite(covariance: Tensor) -> Tensor:
    """The nearest matrix without negative eigenvalues, with the same variances."""
    # A row that is not finite has no eigenvalues; that it is not is said by its variances.
    numbers = torch.where(covariance.isfinite(), covariance, 0.0)
    values, vectors = torch.linalg.eigh((numbers + numbers.mT) / 2)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]
    mended = root @ root.mT
    wanted = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    reached = mended.diagonal(dim1=1, dim2=2)
    scale = (wanted / torch.where(reached > 0, reached, 1.0)).sqrt()
    return mended * scale[:, :, None] * scale[:, None, :]


def with_variances(covariance: Tensor, variance: Tensor) -> Tensor:
    """The covariance scaled to these variances; where it had none, outputs that vary alone."""
    was = covariance.diagonal(dim1=1, dim2=2)
    factor = torch.where(was > 0, variance / torch.where(was > 0, was, 1.0), 0.0).sqrt()
    scaled = covariance * factor[:, :, None] * factor[:, None, :]
    return scaled + torch.diag_embed(torch.where(was > 0, 0.0, variance))


@dataclass(frozen=True, eq=False)
class Reliability:
    """What speaks against the gradients of an output of a row, (rows, outputs) each.

    Attributes:
        contradicted: The outputs at the points contradict the gradients there.
        suspected: They may: slopes between the points will tell.
        flat: There is no variance at all, or far more than the outputs show: samples will tell.
        dominated: One random number of many has most of the gradient, as where a maximum is chosen:
            samples will tell whether the choice changes.
        bent: Few numbers pass a function whose slope varies, or is 0: wide noise will tell by how
            much outputs can vary.
        rounding: Variances below are those of rounding.
        variance: As the gradients have it.
    """

    contradicted: Tensor
    suspected: Tensor
    flat: Tensor
    dominated: Tensor
    bent: Tensor
    rounding: Tensor
    variance: Tensor

    @property
    def any(self) -> Tensor:
        """Whether anything does."""
        return self.contradicted | self.suspected | self.flat | self.dominated | self.bent

    def contradicted_by(self, spread: Tensor, rows: Tensor) -> Tensor:
        """Whether the variance of samples of some rows, (rows, outputs), is another one."""
        variance = self.variance[rows]
        is_other = (variance == 0) | (variance > _CONFIRMED * spread)
        return self.flat[rows] & (spread > self.rounding[rows]) & is_other


def all_rows_consistent(estimate: Estimate, *, bends: bool) -> bool:
    """Whether nothing speaks against any row, with room to spare: one number tells.

    Else rows are looked at one by one. `bends` says whether few numbers may have steep parts.
    """
    evidence = estimate.evidence
    if isinstance(evidence, Sums) or not evidence.has_values:
        return False
    if len(evidence.numbers) > 1 or estimate.most_blocks >= COMPARED:
        return False
    (numbers,), (forms,) = evidence.numbers, evidence.forms
    margins = _margins(forms, estimate.most_blocks, bends, numbers.dtype, numbers.device)
    flat = numbers.flatten(1)
    # What is not finite is not positive in one of them.
    by_row = F.linear(torch.cat([flat.square(), flat], 1), margins)
    if by_row.numel() and not float(by_row.min()) > 0:
        return False
    return not (may_be_dominated(estimate) and bool(estimate.is_dominated(_MOST_OF_IT).any()))


@functools.lru_cache(maxsize=16)
def _margins(
    forms: Forms, blocks: int, bends: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """How far from a doubt a row is, as sums over its blocks, (doubts, 2 * blocks * numbers).

    Linear in the squares of the numbers of its blocks, of which `Forms.groups` sums up the changes,
    and in the numbers themselves, the first of which are variances. The average move of all blocks
    is no larger than the root mean square of theirs.
    """
    points = len(forms.variance) * blocks
    step, less, others = float(_most_spread(points)), _most_excess(blocks), points - 1
    rows = [
        # average, squares, change, explained, unexplained, variation, variance
        [0, -1 / others, 0, 0, 0, 0, step],  # steps
        [0, 0, UNEXPLAINED, 0, -1, _VARIATION, 0],
        [-less * points / blocks / others, less / others, 0, 0, 0, 0, -1],  # far too much
        [-1 / blocks, 0, 0, 0, 0, 0, SHIFT**2],
        [0, 0, 0, _BENT, 0, -1, 0],
    ]
    rows = rows if bends else rows[:-1]
    with outside_tracing(), torch.inference_mode(False):
        table = torch.tensor(rows, dtype=torch.float64)
        squares = F.pad(table[:, :6] @ forms.groups, (4, 0))
        variances = F.pad(table[:, 6:] / blocks, (0, squares.shape[1] - 1))
        both = torch.cat([squares.repeat(1, blocks), variances.repeat(1, blocks)], 1)
        return both.to(device, dtype)


def may_be_dominated(estimate: Estimate) -> bool:
    """Whether sensors have many random numbers, of which few points show too little."""
    count = 0
    for gradient in estimate.derivatives.gradients[: estimate.inputs]:
        count += gradient.shape[3]
    return count > FEW_ELEMENTS and estimate.most_blocks < COMPARED


def is_dominated(estimate: Estimate) -> Tensor:  # (rows, outputs)
    """Whether one random number of many has most of an output's gradient."""
    if not may_be_dominated(estimate):
        return torch.zeros_like(estimate.plain, dtype=torch.bool)
    return estimate.is_dominated(_MOST_OF_IT)


def doubts(
    estimate: Estimate, variance: Tensor, *, multipliers: bool, bends: bool = False
) -> Reliability:
    """Judges every row by what its pass has shown; `bends` as in `all_rows_consistent`."""
    eps, size = torch.finfo(estimate.dtype).eps, estimate.mean.abs()
    if eps > _COARSE:  # What is rounded inside the network is as large as its largest output.
        size = size.amax(1, keepdim=True).expand_as(size)
    rounding = (20 * eps * size).square()
    points = _WITH_MULTIPLIERS if multipliers else estimate.points
    spread = estimate.values_var * (estimate.points / (estimate.points - 1))
    contradicted = spread > torch.maximum(_most_spread(points) * variance, rounding)
    _, _, change, explained, unexplained, variation = estimate.sums.changes.unbind(3)
    least = UNEXPLAINED * change + (2 * estimate.points * rounding)[..., None]
    suspected = unexplained > _VARIATION * variation + least
    if suspected.shape[2] > 1:  # Multipliers with noise of their own are on no line.
        by_multipliers = unexplained[..., 1] > 2 * _VARIATION * variation[..., 1] + least[..., 1]
        contradicted = contradicted | by_multipliers
    if estimate.most_blocks >= COMPARED:
        contradicted = contradicted | _disagrees(estimate, variance, rounding)
    if estimate.most_points >= MANY_POINTS:
        left = (change - explained).abs() > _LEFT * change + least
        suspected = suspected | left
    is_excessive = variance > _most_excess(estimate.most_blocks) * spread
    flat = (variance == 0) | (is_excessive & (variance > rounding))
    dominated = is_dominated(estimate) & (variance > rounding)
    bent = torch.zeros_like(flat)
    if bends and estimate.most_blocks < COMPARED:
        bent = ((estimate.roughness > _BENT) & (variance > rounding)) | flat
    return Reliability(contradicted, suspected[..., 0], flat, dominated, bent, rounding, variance)


def _most_excess(blocks: int) -> float:
    return _LESS if blocks > 1 else _LESS_OF_ONE_BLOCK


def _most_spread(points: float | Tensor) -> float | Tensor:
    width = 2 / (9 * _FREEDOM * points)
    return (1 - width + _QUANTILE * width**0.5) ** 3


def _disagrees(estimate: Estimate, variance: Tensor, rounding: Tensor) -> Tensor:
    """Whether the outputs at the points have another variance than their gradients say.

    The quadrature is made for functions that are smooth, or have few kinks, within the noise.
    """
    spread = estimate.sums.spread
    assert spread is not None
    error = (estimate.squared_error + spread.standard_error.square()).sqrt()
    # One in some 100,000 by chance: a quantile of Student's distribution, roughly.
    limit = 4.5 * (1 + 8 / at_least(1.0, spread.count - 1))
    is_far = (spread.mean - variance).abs() > limit * error + rounding
    return is_far & torch.as_tensor(spread.count >= COMPARED // 2, device=is_far.device)


_traced_doubts: ContextVar[list[Tensor] | None] = ContextVar("doubts", default=None)


@contextmanager
def record_unreliable() -> Iterator[list[Tensor]]:
    """Inside, traces add numbers to the list that are not 0 where rows have to be looked at."""
    numbers: list[Tensor] = []
    token = _traced_doubts.set(numbers)
    try:
        yield numbers
    finally:
        _traced_doubts.reset(token)


def flag_unreliable(doubtful: Tensor) -> None:
    """Adds to the list, if there is one, whether any of these rows and outputs are doubtful."""
    numbers = _traced_doubts.get()
    if numbers is not None and doubtful.numel() and not has_values(doubtful):
        numbers.append(doubtful.to(torch.float32).max())
