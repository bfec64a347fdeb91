"""Calibrators: what held-out data show about predictions, and how it corrects them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.fit.held_out import pairs_of
from howsure.line_search import log_minimum
from howsure.moments.rule import find
from howsure.moments.value import Moments
from howsure.posterior.temperature import check_minimum
from howsure.prediction import Details, Prediction, concatenated, entropy, only_tensor
from howsure.trees import TensorTree, as_call, brief

Self = TypeVar("Self", bound="Calibrator")
Labels = Tensor | Sequence[int] | Sequence[str]
# Temperatures that are tried.
_LOW, _HIGH = 1e-3, 1e3


class Calibrator(ABC):
    """Corrects predictions by what held-out data show; a fitted one is a frozen value.

    The held-out data must be new: used neither in training nor in `Uncertain.fit`.

    Examples:
        >>> p = hs.Prediction(torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2, 1))
        >>> scale = hs.calibrate.VarianceScale.fit(p, torch.tensor([[2.0], [-2.0]]))
        >>> isinstance(scale, hs.calibrate.Calibrator), scale
        (True, VarianceScale(scale=4))
    """

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls: type[Self], prediction: Prediction, target: Tensor) -> Self:
        """The calibrator for held-out predictions and their targets.

        Plain tensors go in as `Prediction(mean, data_var, model_var)`.
        """

    @classmethod
    @torch.no_grad()
    def fit_loader(
        cls: type[Self],
        sure: Callable[..., Prediction],
        loader: Iterable[object],
        *,
        groups: Labels | Callable[[Any], Labels] | None = None,
        **options: object,
    ) -> Self:
        """The calibrator for an `Uncertain` and batches of (inputs, targets).

        Args:
            sure: An `Uncertain`, or any function that returns a `Prediction`.
            loader: Held-out batches of (inputs, targets).
            groups: For the conformal ones: a function of a batch's inputs that gives the label of
                each, or the labels of all inputs.
            **options: As in `fit`.
        """
        predictions: list[Prediction] = []
        targets: list[Tensor] = []
        labels: list[Any] = []
        for inputs, target in pairs_of(loader):
            args, kwargs = as_call(inputs)
            prediction = sure(*args, **kwargs)
            check_uncalibrated(prediction)
            # Covariance and budget would be computed to be joined.
            logits = prediction.logits and replace(prediction.logits, details=None)
            predictions.append(replace(prediction, details=None, logits=logits))
            targets.append(target)
            if callable(groups):
                batch_labels = groups(inputs)
                labels.extend(
                    batch_labels.tolist() if isinstance(batch_labels, Tensor) else batch_labels
                )
        if len(predictions) > 1 and predictions[0].batch_dim:
            raise ValueError(
                "Calibration joins batches on the first axis, but the batch is on axis "
                f"{predictions[0].batch_dim}; give all held-out data as one batch."
            )
        if groups is not None:
            options["groups"] = labels if callable(groups) else groups
        return cls.fit(concatenated(predictions), torch.cat(targets), **options)

    @abstractmethod
    def __call__(self, prediction: Prediction) -> Prediction:
        """The calibrated prediction."""

    def interval(self, prediction: Prediction, level: float = 0.95) -> tuple[Any, Any]:
        """Lower and upper end of the calibrated central interval."""
        return self(prediction).interval(level)

    def state(self) -> dict[str, object]:
        """The fitted values as plain data, for `torch.save`; `from_state` takes it back."""
        values = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        return {"calibrator": self.kind, **values}

    @classmethod
    def from_state(cls: type[Self], state: dict[str, object]) -> Self:
        """The calibrator whose `state` it was."""
        kind = state.get("calibrator") if isinstance(state, dict) else None
        if kind != cls.kind:
            raise ValueError(f"This is the state of {kind!r}, not of {cls.kind!r}.")
        values = {name: value for name, value in state.items() if name != "calibrator"}
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(
                f"The state of {kind!r} has the fields {list(values)}, which do not fit ({error}); "
                "it must be what `state()` returned."
            ) from None

    def __repr__(self) -> str:
        """The class and what was fitted, in one line."""
        values = [f"{name}={brief(value)}" for name, value in list(self.state().items())[1:]]
        return f"{type(self).__name__}({', '.join(values)})"


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedPrediction(Prediction):
    """A prediction with the intervals, or prediction sets, of a calibrator.

    Mean, variances and `distribution()` stay those of the method.

    Attributes:
        calibrator: What gives the intervals.

    Examples:
        >>> mean, var = torch.zeros(3, 1), torch.ones(3, 1)
        >>> p = hs.Prediction(mean, var, torch.zeros_like(var))
        >>> calibrated = hs.calibrate.VarianceScale(torch.tensor(4.0))(p)
        >>> calibrated.std.flatten()
        tensor([2., 2., 2.])
    """

    calibrator: Calibrator | None = None

    @classmethod
    def of(
        cls, prediction: Prediction, calibrator: Calibrator, notes: tuple[str, ...] = ()
    ) -> CalibratedPrediction:
        """The prediction with intervals from a calibrator."""
        check_uncalibrated(prediction)
        values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
        values["notes"] = (*prediction.notes, *notes)
        return cls(**values, calibrator=calibrator)

    def interval(self, level: float = 0.95, **options: object) -> tuple[Any, Any]:
        """Lower and upper end of the calibrator's interval; options are the calibrator's."""
        assert self.calibrator is not None
        return self.calibrator.interval(self, level, **options)

    def sets(self, level: float = 0.9, **options: object) -> Tensor:
        """The calibrator's prediction sets, `(batch, classes, ...)`, bool."""
        sets = getattr(self.calibrator, "sets", None)
        if sets is None:
            raise TypeError("Only `ConformalClasses` gives prediction sets; use `.interval`.")
        return sets(self, level, **options)


def check_uncalibrated(prediction: Prediction) -> None:
    """An error where a second calibrator would spoil what the first one promises."""
    if isinstance(prediction, CalibratedPrediction):
        raise ValueError(
            f"The intervals of this prediction are already those of "
            f"`{type(prediction.calibrator).__name__}`, which must come last; scale variances "
            "before it."
        )


# Held-out data, checked once for all calibrators.


@dataclass(frozen=True, eq=False)
class Residuals:
    """Errors (target - mean) and total variances of held-out data, in float64 on the CPU.

    Both are (n, ...).
    """

    error: Tensor
    var: Tensor

    @classmethod
    def of(cls, prediction: Prediction, target: Tensor, *, least: int = 2) -> Residuals:
        """The errors and variances, or one clear sentence on what is wrong with them.

        Class labels of a classification become one-hot, as in the paper's likelihood.
        """
        check_uncalibrated(prediction)
        mean, var = (tensor.detach().cpu().double() for tensor in mean_and_var(prediction))
        target = torch.as_tensor(target).detach().cpu()
        if prediction.logits is not None and not target.dtype.is_floating_point:
            labels = check_labels(mean, target)
            target = F.one_hot(labels, mean.shape[1]).movedim(-1, 1)
        if target.shape != mean.shape:
            raise ValueError(
                f"The targets have shape {tuple(target.shape)}; predictions of shape "
                f"{tuple(mean.shape)} need the same."
            )
        if len(mean) < least:
            raise ValueError(f"There are {len(mean)} held-out points; give at least {least}.")
        target = target.double()
        for name, tensor in (("mean", mean), ("variance", var), ("target", target)):
            if not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"The held-out {name} contains NaN or infinity; leave those inputs out."
                )
        if bool((var < 0).any()):
            raise ValueError(
                f"The smallest held-out variance is {float(var.min()):.3g}; variances must not be "
                "negative."
            )
        return cls(target - mean, var)

    def by_output(self, per_output: bool) -> Residuals:
        """As (k, m): a row for each of the k outputs at dim 1, or one row for all."""
        if not per_output:
            return Residuals(self.error.reshape(1, -1), self.var.reshape(1, -1))
        if self.error.dim() < 2:
            raise ValueError(
                "`per_output=True` needs predictions of shape (batch, outputs, ...), not "
                f"{tuple(self.error.shape)}."
            )
        return Residuals(*(x.movedim(1, 0).flatten(1) for x in (self.error, self.var)))

    def check_variances(self, reason: str) -> None:
        """An error if any variance is 0."""
        if zeros := int((self.var == 0).sum()):
            raise ValueError(f"{zeros} of {self.var.numel()} held-out variances are 0, {reason}")

    def check_errors(self) -> None:
        """An error if all errors of an output are 0; rows are outputs."""
        if bool((self.error == 0).all(1).any()):
            raise ValueError("All held-out errors of an output are 0; are the targets predictions?")

    @property
    def scores(self) -> Tensor:
        """|error| / std; with a std of 0 a right prediction scores 0 and a wrong one infinity."""
        return torch.where(self.error == 0, 0.0, self.error.abs() / self.var.sqrt())


def mean_and_var(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """The one tensor of the mean and of the total variance, of equal shape."""
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"A calibrator takes a `Prediction`, not a {type(prediction).__name__}; make one with "
            "`Prediction(mean, data_var, model_var)`."
        )
    mean, data, model = (
        only_tensor(getattr(prediction, name), name) for name in ("mean", "data_var", "model_var")
    )
    if not mean.shape == data.shape == model.shape:
        raise ValueError(
            f"The mean has shape {tuple(mean.shape)}, `data_var` {tuple(data.shape)} and "
            f"`model_var` {tuple(model.shape)}; they must be equal."
        )
    if mean.dim() == 0:
        raise ValueError("The prediction has no batch axis; give shape (batch, ...).")
    return mean, data + model


def check_labels(scores: Tensor, target: Tensor) -> Tensor:
    """Class labels (batch, ...) as int64, for scores (batch, classes, ...)."""
    target = torch.as_tensor(target).detach().cpu()
    expected = scores.shape[:1] + scores.shape[2:]
    if scores.dim() < 2 or target.shape != expected:
        raise ValueError(
            f"The labels have shape {tuple(target.shape)}; predictions of shape "
            f"{tuple(scores.shape)} (batch, classes, ...) need {tuple(expected)}."
        )
    if target.dtype.is_floating_point or target.dtype == torch.bool:
        raise TypeError(f"The labels must be whole numbers, not {target.dtype}.")
    if target.numel() == 0:
        raise ValueError("There are no held-out points to fit on.")
    low, high = int(target.min()), int(target.max())
    if low < 0 or high >= scores.shape[1]:
        raise ValueError(
            f"The labels run from {low} to {high}, but there are {scores.shape[1]} classes."
        )
    return target.long()


def align_outputs(mean: Tensor, value: Tensor) -> Tensor:
    """A number, or one for each output, in a shape that goes with (batch, outputs, ...)."""
    value = value.to(mean)
    if value.dim() == 0:
        return value
    if mean.dim() < 2 or mean.shape[1] != len(value):
        raise ValueError(
            f"The calibrator was fitted for {len(value)} outputs; this prediction has shape "
            f"{tuple(mean.shape)}."
        )
    return value.reshape(-1, *[1] * (mean.dim() - 2))


# Variances.


@dataclass(frozen=True, eq=False, repr=False)
class VarianceScale(Calibrator):
    """Variances times `scale`; right when they are wrong by a common factor.

    scale = mean((target - mean)**2 / var) is where d/ds of the Gaussian NLL is 0, so no other
    factor has a smaller NLL on the held-out data (Laves et al. 2021, for the std).

    Attributes:
        scale: The factor, `()`, or one for each output at dim 1, `(outputs,)`.

    Examples:
        >>> p = hs.Prediction(torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2, 1))
        >>> hs.calibrate.VarianceScale.fit(p, torch.tensor([[2.0], [-2.0]]))
        VarianceScale(scale=4)
    """

    kind: ClassVar[str] = "scale"
    scale: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> VarianceScale:
        """The factor for held-out data; one for each output if `per_output`."""
        data = Residuals.of(prediction, target).by_output(per_output)
        data.check_variances(
            "which no factor can correct; use `AffineVariance`, which also adds a constant."
        )
        data.check_errors()
        scale = (data.error.square() / data.var).mean(1)
        return cls(scale if per_output else scale[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction with data and model variance times `scale`."""
        return rescale(prediction, self.scale, torch.zeros_like(self.scale))


@dataclass(frozen=True, eq=False, repr=False)
class AffineVariance(Calibrator):
    """Variances become residual_var + scale * var, residual_var and scale not negative.

    `residual_var` stands for what the method cannot see, such as noisy targets; it is data
    variance. The two minimize the Gaussian NLL on held-out data. With r = residual_var / scale
    fixed, the best scale is mean(e**2 / (r + var)) in closed form, so a search over r alone
    remains; its two ends, a factor alone and a constant alone, are candidates of their own.

    Attributes:
        scale: The factor, `()`, or one for each output at dim 1, `(outputs,)`.
        residual_var: The constant variance, likewise.

    Examples:
        >>> mean, var = torch.zeros(100, 1), torch.ones(100, 1)
        >>> p = hs.Prediction(mean, var, torch.zeros_like(var))
        >>> target = torch.linspace(-6, 6, 100)[:, None]
        >>> fitted = hs.calibrate.AffineVariance.fit(p, target)
        >>> bool(fitted(p).std[0] > 3)
        True
    """

    kind: ClassVar[str] = "affine"
    scale: Tensor
    residual_var: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> AffineVariance:
        """Factor and constant for held-out data; a pair for each output if `per_output`."""
        data = Residuals.of(prediction, target, least=3).by_output(per_output)
        data.check_errors()
        exact = int(((data.error == 0) & (data.var == 0)).sum())
        if exact:
            raise ValueError(
                f"{exact} held-out points have error 0 and variance 0, where the likelihood is "
                "unbounded; leave those out."
            )
        squared, var, unit = data.error.square(), data.var, data.var.mean(1)
        is_blind = unit == 0
        unit = torch.where(is_blind, 1.0, unit)

        def best_scale(constant: Tensor) -> Tensor:  # (k,)
            return (squared / (constant[:, None] + var)).mean(1)

        def cost(constant: Tensor) -> Tensor:  # (k,)
            return torch.log(constant[:, None] + var).mean(1) + torch.log(best_scale(constant))

        r = unit * log_minimum(lambda ratio: cost(ratio * unit), 1e-8, 1e8, per_decade=2)
        zero, mean_square = torch.zeros_like(unit), squared.mean(1)
        # A factor alone, both, and a constant alone, which wins only where it is better.
        costs = torch.stack([cost(zero) - 1e-12, cost(r), torch.log(mean_square) + 1e-12])
        scales = torch.stack([best_scale(zero), best_scale(r), zero])
        constants = torch.stack([zero, r * best_scale(r), mean_square])
        # A likelihood that a variance of 0 leaves undefined is never the best.
        best = torch.where(costs.isfinite(), costs, torch.inf).argmin(0, keepdim=True)
        scale, residual_var = (table.gather(0, best)[0] for table in (scales, constants))
        # Without any variance to learn from, the constant explains the errors and the factor is 1.
        scale = torch.where(is_blind, 1.0, scale)
        residual_var = torch.where(is_blind, mean_square, residual_var)
        return cls(scale, residual_var) if per_output else cls(scale[0], residual_var[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """Both variances times `scale`, and `residual_var` more data variance."""
        return rescale(prediction, self.scale, self.residual_var)


def rescale(prediction: Prediction, scale: Tensor, residual_var: Tensor) -> Prediction:
    """Both variances times `scale`, and `residual_var` more data variance.

    The sum of data and model variance is then scale * total + residual_var. Covariance, budget and
    standard error follow; correlations between outputs stay, apart from what `residual_var`
    dilutes.

    Args:
        prediction: What to correct.
        scale: A number, `()`, or one for each output at dim 1, `(outputs,)`.
        residual_var: Likewise.
    """
    check_uncalibrated(prediction)
    mean, var = mean_and_var(prediction)
    factor, constant = (align_outputs(mean, value) for value in (scale, residual_var))

    def mapped(tree: object, factor: Tensor, constant: Tensor | float = 0.0) -> Any:
        values = TensorTree(tree)
        return values.unflatten([tensor * factor + constant for tensor in values.tensors])

    std_error = prediction.std_error
    if std_error is not None:
        # d std' = scale * std / std' * d std, since std'**2 = scale * std**2 + constant.
        std, new_std = var.sqrt(), (factor * var + constant).sqrt()
        std_error = mapped(
            std_error, torch.where(new_std > 0, factor * std / new_std, factor.sqrt())
        )

    def details() -> Details:
        # Covariance and budget have one number for each output, in a row.
        flat_factor, flat_constant = (
            value.expand(mean.shape[1:]).reshape(-1) for value in (factor, constant)
        )
        covariance, budget = prediction.covariance, prediction.sources
        if covariance is not None:
            root = flat_factor.sqrt()
            covariance = covariance * root[:, None] * root + torch.diag(flat_constant)
        if budget is not None:
            budget = budget.scaled(flat_factor[None])
            if bool((flat_constant > 0).any()):
                budget = budget.with_constant(flat_constant.expand_as(budget.total))
        return Details(covariance, prediction.linear_share, budget)

    return replace(
        prediction,
        data_var=mapped(prediction.data_var, factor, constant),
        model_var=mapped(prediction.model_var, factor),
        error=std_error,
        details=details,
    )


# Quantiles.


@dataclass(frozen=True, eq=False, repr=False)
class IsotonicQuantiles(Calibrator):
    """Recalibrated quantiles for errors that are biased, skewed or heavy-tailed.

    Kuleshov et al. (2018) map the level p of a prediction's quantile to the share of held-out
    targets below it, by isotonic regression. Those shares rise with p, so the regression is their
    empirical distribution itself; it is kept here as the sorted z = (target - mean) / std, which
    hold up where levels in float64 are all 0 or 1 because the std is ten times too small. The i-th
    of n gets level i / (n + 1), its expectation; between them levels are linear in z. Beyond them
    nothing is known: a level below 1 / (n + 1) is an error.

    Attributes:
        z: Sorted scores, `(n,)`, or for each output at dim 1, `(outputs, n)`.

    Examples:
        >>> p = hs.Prediction(torch.zeros(99, 1), torch.ones(99, 1), torch.zeros(99, 1))
        >>> target = torch.linspace(0, 2, 99)[:, None]  # never below the mean
        >>> fitted = hs.calibrate.IsotonicQuantiles.fit(p, target)
        >>> low, high = fitted(p).interval(0.9)
        >>> bool(low[0] > 0), bool(high[0] < 2.1)
        (True, True)
    """

    kind: ClassVar[str] = "isotonic"
    z: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> IsotonicQuantiles:
        """The levels of held-out data, of all outputs together or of each if `per_output`."""
        data = Residuals.of(prediction, target).by_output(per_output)
        data.check_variances(
            "which have no quantiles; apply `AffineVariance` first, which adds a constant."
        )
        z = (data.error / data.var.sqrt()).sort(dim=1).values.contiguous()
        return cls(z if per_output else z[0])

    @property
    def count(self) -> int:
        """How many held-out scores there are, for each output."""
        return self.z.shape[-1]

    def __call__(self, prediction: Prediction) -> CalibratedPrediction:
        """The prediction with recalibrated intervals; mean and variances stay."""
        return CalibratedPrediction.of(prediction, self)

    def interval(self, prediction: Prediction, level: float = 0.95) -> tuple[Any, Any]:
        """The quantiles at (1 - level) / 2 and (1 + level) / 2."""
        if not 0 < level < 1:
            raise ValueError(f"The level of an interval must be between 0 and 1, not {level}.")
        tail = (1 - level) / 2
        return self.quantile(prediction, tail), self.quantile(prediction, 1 - tail)

    def quantile(self, prediction: Prediction, p: float) -> Any:
        """Below which a share p of targets lies: mean + std * (p-quantile of z)."""
        if not 0 < p < 1:
            raise ValueError(f"The level of a quantile must be between 0 and 1, not {p}.")
        position = p * (self.count + 1) - 1
        # Rounding in 1 - (1 - level) / 2 must not refuse the outermost point.
        if not -1e-9 <= position <= self.count - 1 + 1e-9:
            needed = max(2, math.ceil(1 / min(p, 1 - p) - 1 - 1e-9))
            raise ValueError(
                f"The quantile at level {p:g} needs at least {needed} held-out points; there are "
                f"{self.count}."
            )
        below = min(max(int(position), 0), self.count - 2)
        z = torch.lerp(self.z[..., below], self.z[..., below + 1], position - below)
        mean, var = mean_and_var(prediction)
        value = mean + var.sqrt() * align_outputs(mean, z)
        return TensorTree(prediction.mean).unflatten([value])

    def cdf(
        self,
        prediction: Prediction,
        value: Tensor,  # like the mean, or a number for all
    ) -> Tensor:
        """P(target <= value), never below 1 / (n + 1) or above n / (n + 1): what n points tell."""
        mean, var = mean_and_var(prediction)
        align_outputs(mean, self.z[..., 0])  # an error if the outputs do not fit
        z = ((torch.as_tensor(value).to(mean) - mean) / var.sqrt()).detach().cpu().double()
        z = z.nan_to_num(torch.inf)  # a std of 0, and the value is the mean
        levels = np.arange(1, self.count + 1) / (self.count + 1)
        if self.z.dim() == 1:
            return torch.from_numpy(np.interp(z, self.z, levels)).to(mean)
        outputs = zip(z.unbind(1), self.z, strict=True)
        columns = [torch.from_numpy(np.interp(x, knots, levels)) for x, knots in outputs]
        return torch.stack(columns, 1).to(mean)


# Classes.


@dataclass(frozen=True, eq=False, repr=False)
class Temperature(Calibrator):
    """Class probabilities of logits / temperature; above 1 they become less sure.

    The temperature minimizes the categorical NLL of held-out labels (Guo et al. 2017, Sec. 4.2).
    Logits with mean m and variance v become m / T and v / T**2, and the probabilities are the mean
    of their softmax. Without variances that is Guo's softmax(m / T), whose NLL is convex in 1/T.

    A method that samples averages the softmax over its samples; here it comes from the logits'
    mean and variance, so at T = 1 it may differ a little.

    Attributes:
        temperature: What logits are divided by, `()`.

    Examples:
        >>> logits = torch.tensor([[4.0, 0.0]]).repeat(4, 1)  # 98 % sure of class 0
        >>> none = torch.zeros_like(logits)
        >>> p = hs.calibrate.class_probabilities(hs.Prediction(logits, none, none))
        >>> fitted = hs.calibrate.Temperature.fit(p, torch.tensor([0, 0, 0, 1]))
        >>> fitted(p).mean[0]  # right in 3 of 4 cases
        tensor([0.7500, 0.2500])
    """

    kind: ClassVar[str] = "temperature"
    temperature: Tensor

    @classmethod
    def fit(cls, prediction: Prediction, target: Tensor) -> Temperature:
        """The temperature for held-out labels, `(n, ...)`."""
        logits = _logits(prediction)
        mean, var = (tensor.detach().cpu().double() for tensor in mean_and_var(logits))
        labels = check_labels(mean, target)
        Residuals.of(logits, mean)  # finite, not negative, enough of them

        is_uncertain = bool((var > 0).any())

        def nll(t: Tensor) -> Tensor:  # (1,)
            if not is_uncertain:
                return F.cross_entropy(mean / t, labels)[None]
            p = softmax_of(mean / t, var / t.square()).mean.gather(1, labels.unsqueeze(1))
            # Protects the logarithm of an underflowed 0.
            return -torch.log(p.clamp(min=torch.finfo(p.dtype).tiny)).mean()[None]

        # With variances it may have two minima, and which is the lower one only all inputs tell.
        # They take a quadrature for every logit: no more evaluations than 1e-6 needs.
        best = (
            log_minimum(nll, _LOW, _HIGH, per_decade=2, last_width=2e-3)
            if is_uncertain
            else log_minimum(nll, _LOW, _HIGH)
        )
        at_zero, at_infinity = float(best) < 1.5 * _LOW, float(best) > _HIGH / 1.5
        check_minimum(at_zero=at_zero, at_infinity=at_infinity)
        return cls(best[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction with logits / T and the probabilities that follow."""
        check_uncalibrated(prediction)
        logits = _logits(prediction)
        t = self.temperature.to(logits.mean)
        cooled = replace(rescale(logits, t**-2, torch.zeros_like(t)), mean=logits.mean / t)
        after, fitted = class_probabilities(cooled), prediction.temperature
        return replace(
            prediction,
            mean=after.mean,
            data_var=after.data_var,
            model_var=after.model_var,
            logits=cooled,
            expected_entropy=after.expected_entropy,
            error=None,
            details=None,
            temperature=None if fitted is None else fitted * t.to(fitted),
        )


def _logits(prediction: Prediction) -> Prediction:
    mean_and_var(prediction)
    if prediction.logits is None:
        raise ValueError(
            'A temperature needs logits; use `Uncertain(..., task="classification")`, or make the '
            "prediction with `class_probabilities(Prediction(logits, data_var, model_var))`."
        )
    return prediction.logits


def class_probabilities(logits: Prediction) -> Prediction:
    """The softmax of independent Gaussian logits, `(batch, classes, ...)`, as a prediction.

    Mean and total variance are those of the softmax rule at the logits' total variance; the total
    is divided as the rule's variances of the data and of the model part alone. The expected entropy
    is second order in the model variance: H(mean) - 1/2 sum model_var / mean.

    Logits without variances go in as `Prediction(logits, zeros, zeros)`.

    Examples:
        >>> mean, var = torch.zeros(1, 2), torch.ones(1, 2)
        >>> logits = hs.Prediction(mean, var, torch.zeros_like(var))
        >>> hs.calibrate.class_probabilities(logits).mean
        tensor([[0.5000, 0.5000]])
    """
    total = softmax_of(logits.mean, logits.total_var)
    data, model = (softmax_of(logits.mean, var).var for var in (logits.data_var, logits.model_var))
    parts = data + model
    share = torch.where(parts > 0, data / torch.where(parts > 0, parts, 1), 0.5)
    data_var, model_var = total.var * share, total.var * (1 - share)
    total_entropy = entropy(total.mean, dim=1)
    smallest = torch.finfo(total.mean.dtype).tiny  # protects 0 / 0 where a class is impossible
    spread = (model_var / total.mean.clamp(min=smallest)).sum(1)
    expected = torch.minimum((total_entropy - 0.5 * spread).clamp(min=0), total_entropy)
    return Prediction(total.mean, data_var, model_var, logits.notes, logits, expected)


def softmax_of(mean: Tensor, var: Tensor) -> Moments:
    """Moments of the softmax along dim 1; the plain one where there is no variance."""
    if not bool((var > 0).any()):
        return Moments(torch.softmax(mean, 1), torch.zeros_like(var))
    rule = find(F.softmax)
    assert rule is not None
    return rule(Moments(mean, var), 1)
