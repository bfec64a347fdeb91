"""Class probabilities of uncertain logits, and logits divided by a temperature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.calibrate.base import Calibrator, check_uncalibrated
from howsure.calibrate.held_out import HeldOut, check_labels, mean_and_var
from howsure.fit.temperature import check_minimum
from howsure.line_search import log_minimum, log_refine
from howsure.moments.rule import find
from howsure.moments.value import Moments
from howsure.prediction import Prediction, entropy

_LOW, _HIGH = 1e-3, 1e3
# The softmax of uncertain logits is a quadrature; this many inputs are enough for a first guess.
_FEW = 500


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
    """

    kind: ClassVar[str] = "temperature"
    temperature: Tensor

    @classmethod
    def fit(cls, prediction: Prediction, target: Tensor) -> Temperature:
        """The temperature for held-out labels, `(n, ...)`."""
        logits = _logits(prediction)
        mean, var = (tensor.detach().cpu().double() for tensor in mean_and_var(logits))
        labels = check_labels(mean, target)
        HeldOut.of(logits, mean)  # finite, not negative, enough of them

        has_variance = bool((var > 0).any())

        def nll(t: Tensor, every: int = 1) -> Tensor:  # (1,)
            """Of the labels at a temperature; of one input in `every`."""
            if not has_variance:
                return F.cross_entropy(mean / t, labels)[None]
            rows = slice(None, None, every)
            p = softmax_of(mean[rows] / t, var[rows] / t.square()).mean
            p = p.gather(1, labels[rows].unsqueeze(1))
            # Protects the logarithm of an underflowed 0.
            return -torch.log(p.clamp(min=torch.finfo(p.dtype).tiny)).mean()[None]

        stride = -(-len(mean) // _FEW) if has_variance else 1
        best = log_minimum(lambda t: nll(t, stride), _LOW, _HIGH)
        if stride > 1 and 10 * _LOW < float(best) < _HIGH / 10:
            best = log_refine(nll, best, width=0.2, rounds=4)
        elif stride > 1:
            # Few inputs may all be right where many are not.
            best = log_minimum(nll, _LOW, _HIGH)
        at_zero, at_infinity = float(best) < 1.5 * _LOW, float(best) > _HIGH / 1.5
        check_minimum(at_zero=at_zero, at_infinity=at_infinity)
        return cls(best[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction with logits / T and the probabilities that follow."""
        check_uncalibrated(prediction)
        logits = _logits(prediction)
        t = self.temperature.to(logits.mean)
        cooled = replace(
            logits,
            mean=logits.mean / t,
            data_var=logits.data_var / t.square(),
            model_var=logits.model_var / t.square(),
        )
        fitted = prediction.temperature
        return replace(
            class_probabilities(cooled),
            notes=prediction.notes,
            novelty=prediction.novelty,
            joint_novelty=prediction.joint_novelty,
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
