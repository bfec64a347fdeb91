"""The variance model that is best for held-out errors, by likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.posterior.novelty import KNOWN, quantiles_of
from howsure.posterior.scores import Known, Scores
from howsure.posterior.variance_model import EXPONENT, FLOOR, TERMS, VarianceModel
from howsure.posterior.weights import best_weights
from howsure.student import best_degrees, student_nll
from howsure.trees import map_leaves

# Corruptions are milder than what may come: they do not lower the usual exponent. They raise it to
# at most 2: one that no score sees asks for any, and it would serve nothing else.
_EXPONENTS = (EXPONENT, 1.75, 2.0)
# The sensor's std is known within a factor of two: the std of the logarithm of the factor on its
# variance. Few inputs cannot tell a small variance with a large factor from a residual.
_LOG_FACTOR_STD = math.log(2)
# Squared errors count at most so many times their 90 % quantile.
_MOST_ERROR = 25.0
# More outputs have a residual variance each and no other weight.
_MOST_OUTPUTS = 64


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out inputs with what their variance is made of.

    Attributes:
        scores: What the variance is made of.
        error: Squared errors, (inputs, outputs).
        target: The targets, (inputs, outputs).
    """

    scores: Scores
    error: Tensor
    target: Tensor

    @classmethod
    def of(cls, scores: Scores, target: Tensor, mean: Tensor) -> HeldOut:
        """A batch; an error of 0 where a target is the prediction up to the rounding of its type.

        Args:
            scores: What the variances of the predictions are made of.
            target: The targets, in a shape that fits.
            mean: The predictions, (inputs, outputs).
        """
        target = targets_like(mean, target)
        gap = (target - mean.double()).abs()
        rounding = 4 * torch.finfo(mean.dtype).eps * mean.double().abs()
        is_rounding = (gap <= rounding) & mean.isfinite()
        return cls(scores, torch.where(is_rounding, 0.0, gap.square()), target)

    @staticmethod
    def joined(parts: Sequence[HeldOut]) -> HeldOut:
        """All inputs of several batches; an error if there is none to learn from."""
        held_out = map_leaves(lambda *tensors: torch.cat(tensors), *parts)
        if not bool(held_out.error.any()):
            raise ValueError(
                "The held-out targets are the model's own predictions, up to rounding, so there is "
                "no error to learn from; give the true values."
            )
        return held_out


def targets_like(mean: Tensor, target: Tensor) -> Tensor:
    """The targets in double precision and the shape of the predictions; an error for others."""
    if target.numel() == mean.numel() and len(target) == len(mean):
        return target.to(mean.device).reshape(mean.shape).double()
    hint = ""
    if not target.is_floating_point() and 2 * target.numel() <= mean.numel():
        hint = ' If they are class labels, wrap the model with `task="classification"`.'
    raise ValueError(
        f"The targets have shape {tuple(target.shape)}, and the predictions {tuple(mean.shape)}."
        f"{hint}"
    )


def fit_variance_model(
    held_out: HeldOut,
    stressed: Sequence[HeldOut],
    known: Known,
    *,
    model_part: bool,
    growth: bool,
    cap: bool,
    residual_var: float | None,
    noise_factor: float | None,
) -> VarianceModel:
    """The variance model that is best for held-out errors.

    Args:
        held_out: The held-out inputs.
        stressed: The same under each corruption, by which the growth is fitted.
        known: What the inputs are compared with.
        model_part: Whether there is more than the sensor's and a residual variance.
        growth: Whether the variance grows with the distance from the known inputs.
        cap: Whether it is bounded by that of the targets.
        residual_var: The residual variance; `None` fits it.
        noise_factor: The factor on the sensor's variance; `None` fits it.
    """
    # One wrong target must not have all the weight. Of Gaussian errors none beyond 8 std is
    # clipped, of t-distributed ones with 3 degrees of freedom one in 800.
    error = torch.minimum(held_out.error, _MOST_ERROR * held_out.error.quantile(0.9, 0))
    held_out = replace(held_out, error=error)
    model = _start_model(held_out, known, growth=model_part and growth, cap=model_part and cap)
    fixed = {"residual_var": residual_var, "noise_factor": noise_factor}
    if not model_part:
        fixed |= {"layer_var": 0.0, "deviation_var": 0.0}
    given = [fixed.get(name) for name in TERMS]
    given = error.new_tensor([math.nan if value is None else value for value in given])
    model = replace(model, weights=_best_weights(model, held_out, given))
    if stressed:
        model = _with_best_growth(model, held_out, stressed)
    model = _with_novelty(model, held_out.scores)
    var = model.parts(held_out.scores).total
    return replace(model, degrees_of_freedom=best_degrees(error, var))


def mean_nll(model: VarianceModel, parts: Sequence[HeldOut], nu: float = math.inf) -> float:
    """The NLL of held-out inputs under several conditions, all of one weight."""
    losses = [
        float(student_nll(part.error, model.parts(part.scores).total, nu).mean()) for part in parts
    ]
    return sum(losses) / len(losses)


def _start_model(held_out: HeldOut, known: Known, *, growth: bool, cap: bool) -> VarianceModel:
    """The variance model without weights: what held-out inputs are like."""
    scores, error = held_out.scores, held_out.error
    nothing = torch.zeros_like(error[0])
    nearest = float(scores.nearest.quantile(KNOWN))
    distances = None if known.distances is None else known.distances.whole
    # Without gradients the layers alone say how far away an input is.
    by_layers = 1.0 if known.note and distances is not None and growth else 0.0
    return VarianceModel(
        posterior=None if known.posterior is None else known.posterior.whole,
        distances=distances,
        input_range=known.input_range,
        weights=error.new_zeros(error.shape[1], len(TERMS)),
        floor=scores.m.quantile(FLOOR, 0),
        known=scores.m.quantile(KNOWN, 0),
        known_distances=scores.distances.quantile(KNOWN, 0),
        farthest=2 * scores.distances.amax(0),
        growth=torch.stack([nothing, nothing + by_layers], 1),
        novelty_scale=torch.ones_like(nothing),
        joint_known=1.0,
        squared_error=error.mean(0) if growth else nothing,
        exponent=EXPONENT,
        degrees_of_freedom=math.inf,
        center=held_out.target.mean(0),
        spread=held_out.target.var(0) if cap else torch.full_like(nothing, math.inf),
        quantiles=nothing,
        joint_quantiles=nothing,
        local_error=known.local_error,
        known_nearest=None if known.local_error is None else nearest or None,
        kernel=known.kernel,
        note="" if not known.note else f"There is no posterior over multipliers: {known.note}.",
    )


def _best_weights(model: VarianceModel, held_out: HeldOut, given: Tensor) -> Tensor:
    """The weights of v_in that are best for every output; those that are given, (7,), stay."""
    terms, error = model.terms(held_out.scores), held_out.error
    factor = TERMS.index("noise_factor")
    if error.shape[1] <= _MOST_OUTPUTS:
        log_std = torch.full_like(given, math.inf)
        log_std[factor] = _LOG_FACTOR_STD
        columns = range(error.shape[1])
        weights = torch.stack(
            [best_weights(error[:, k], terms[:, k], given, log_std) for k in columns]
        )
    else:  # What the sensor does not explain, of every output.
        weights = torch.zeros_like(terms[0])
        weights[:, factor] = given[factor].nan_to_num(nan=1.0)
        rest = error.mean(0) - weights[:, factor] * held_out.scores.data.mean(0)
        weights[:, 0] = torch.maximum(rest, 0.01 * error.mean(0))
    # Without noise there is nothing to scale.
    has_noise = held_out.scores.data.mean(0) > 0
    weights[:, factor] = torch.where(has_noise, weights[:, factor], 1.0)
    return weights


def _with_best_growth(
    model: VarianceModel, held_out: HeldOut, stressed: Sequence[HeldOut]
) -> VarianceModel:
    """With the growth that is best for clean and corrupted inputs, half of the weight on either."""
    repeated = max(1, round(sum(len(s.error) for s in stressed) / len(held_out.error)))
    parts = [held_out] * repeated + list(stressed)
    error = torch.cat([part.error for part in parts])
    inside = torch.cat([(model.terms(p.scores) * model.weights).sum(2) for p in parts])
    fixed = error.new_tensor([1.0, math.nan, math.nan])
    ratios = [(model.ratios(part.scores), part.scores.nearest) for part in parts]

    def fitted(exponent: float) -> VarianceModel:
        tried = replace(model, exponent=exponent)
        grown = torch.cat([tried.grown(*some) for some in ratios])
        columns = torch.cat([(inside + grown[..., 0])[..., None], grown[..., 1:]], 2)
        weights = [best_weights(error[:, k], columns[:, k], fixed) for k in range(error.shape[1])]
        return replace(tried, growth=torch.stack(weights)[:, 1:])

    def cost(tried: VarianceModel) -> float:
        return mean_nll(tried, [held_out]) + mean_nll(tried, stressed)

    return min(map(fitted, _EXPONENTS), key=cost)


def _with_novelty(model: VarianceModel, scores: Scores) -> VarianceModel:
    """With the scale and the quantiles of the held-out inputs' novelty."""
    novelty = model.novelty(model.ratios(scores))
    scale = novelty.quantile(KNOWN, 0)
    scale = torch.where(scale > 0, scale, 1.0)
    novelty = novelty / scale
    return replace(model, novelty_scale=scale, quantiles=quantiles_of(novelty)).with_joint(
        novelty.mean(1)
    )
