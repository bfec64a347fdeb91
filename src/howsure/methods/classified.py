"""Class probabilities with their variances, through the covariance of the logits."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.estimators.gradients import Estimate
from howsure.estimators.softmax import Classes, Logits, through_softmax
from howsure.estimators.variances import Variances
from howsure.methods.activations import read
from howsure.methods.temperature import Judged
from howsure.prediction import Details, Prediction, entropy
from howsure.setup import Setup
from howsure.trees import is_tracing

if TYPE_CHECKING:
    from howsure.methods.gradients import Outcome


def classified(setup: Setup, x: Any, seen: Outcome) -> Prediction:
    """Class probabilities, from the covariance of the logits; and the logits themselves."""
    assert seen.logits is not None
    plain, found, means = seen.logits.plain, seen.logits.estimate, seen.logits.means
    own, columns = seen.variances, seen.problem.columns
    judged = judged_at(setup, x)
    t = None if judged is None else judged.temperature
    # Noise shifts the logits, and where they lie decides how much the softmax lets through: they
    # vary around their mean, whatever is predicted.
    covariances = list(found.covariances())
    estimates = [(means[0], *covariances), *_halves(found, means)]
    at_t = [
        _at_temperature(_among(plain, columns, mean), data, model, t)
        for mean, data, model in estimates
    ]
    classes, *halves = through_softmax(at_t, columns, setup.seed)
    is_mean = setup.prediction == "mean"
    probabilities = classes.mean if is_mean else _divided(plain, t).softmax(1)
    centre = _divided(_among(plain, columns, means[0]) if is_mean else plain, t)
    cooled = own if t is None else own.scale(t[:, None] ** -2)
    logits = replace(_logits(setup, cooled, centre, columns), notes=seen.notes)
    prediction = Prediction(
        probabilities,
        classes.data_var + setup.residual_var,
        classes.model_var,
        seen.notes,
        logits,
        _expected_entropy(probabilities, classes),
        std_error=_error_of_classes(cooled, classes, [half.std for half in halves]),
    )
    return with_temperature(prediction, judged)


def certain(setup: Setup, x: Any) -> Prediction:
    """The network's own class probabilities, where nothing is random; at their temperature."""
    judged = judged_at(setup, x)
    plain = read(setup, x, ()).logits if judged is None else judged.logits
    centre = plain if judged is None else judged.cooled(plain)
    probabilities, nothing = centre.softmax(1), torch.zeros_like(centre)
    prediction = Prediction(
        probabilities,
        nothing + setup.residual_var,
        nothing,
        logits=_logits(setup, Variances.zero(plain), centre, None),
        expected_entropy=entropy(probabilities, dim=1),
        std_error=nothing,
    )
    return with_temperature(prediction, judged)


def judged_at(setup: Setup, x: Any) -> Judged | None:
    """Temperature and novelty of some inputs, where they were fitted."""
    model = setup.temperature_model
    return None if model is None else model.judged(setup, x)


def with_temperature(prediction: Prediction, judged: Judged | None) -> Prediction:
    """The prediction with the temperature and the novelty of its inputs."""
    if judged is None:
        return prediction
    return replace(
        prediction,
        notes=(*prediction.notes, *judged.notes),
        novelty=judged.novelty,
        joint_novelty=judged.novelty,
        temperature=judged.temperature,
    )


def _divided(logits: Tensor, temperature: Tensor | None) -> Tensor:
    """The logits of every row divided by its temperature."""
    return logits if temperature is None else logits / temperature[:, None].to(logits)


def _among(plain: Tensor, columns: Tensor | None, mean: Tensor) -> Tensor:
    """The logits with others in place of the network's, where they vary."""
    return mean if columns is None else plain.scatter(1, columns, mean)


def _at_temperature(
    mean: Tensor, data: Tensor, model: Tensor, temperature: Tensor | None
) -> Logits:
    """Logits and their covariances at a temperature."""
    if temperature is not None:
        square = temperature[:, None, None].to(data) ** 2
        data, model = data / square, model / square
    return Logits(_divided(mean, temperature), data, model)


def _halves(found: Estimate, means: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Mean, data and model covariance of the logits by two halves of the points."""
    return [(mean, *each[1:]) for mean, each in zip(means[1:], found.halves(), strict=False)]


def _logits(setup: Setup, own: Variances, centre: Tensor, columns: Tensor | None) -> Prediction:
    """The logits with their variances; those that were held fixed have none."""

    def everywhere(flat: Tensor | None) -> Any:
        if flat is None or columns is None:
            return flat
        return torch.zeros_like(centre).to(flat).scatter(1, columns, flat)

    own, whole = own.add_constant(setup.residual_var), columns is None
    data, model, error = (everywhere(f) for f in (own.data, own.model, own.standard_error))

    def details() -> Details:
        was = own.details()
        share = everywhere(was.linear_share)
        return replace(was, linear_share=share) if whole else Details(linear_share=share)

    return Prediction(
        centre,
        data,
        model,
        std_error=error,
        details=details() if is_tracing() else functools.cache(details),
    )


# Logits are taken for Gaussian, which costs a tenth of a probability's std with any number of
# points: 0.12 besides what chance does (ResNet-20 at 2 gray levels).
_GAUSSIAN = 0.1


def _error_of_classes(own: Variances, classes: Classes, halves: list[Tensor]) -> Tensor:
    """What chance does to a probability's std, and what Gaussian logits do."""
    chance = _chance_of_classes(own, classes, halves)
    return (chance.square() + (_GAUSSIAN * classes.std).square()).sqrt()


def _chance_of_classes(own: Variances, classes: Classes, halves: list[Tensor]) -> Tensor:
    """Half the difference of what two halves of the blocks say; of one block as of its logits.

    What the classes of a row have in common counts as much as what each shows by itself, since two
    halves alone agree by chance too often.
    """
    if not halves:
        std = (own.data + own.model).sqrt().sum(1, keepdim=True)
        share = own.standard_error.sum(1, keepdim=True) / torch.where(std > 0, std, 1.0)
        return classes.std * share
    squares = (halves[0] - halves[1]).square() / 4
    variance = classes.std.square()
    total = variance.sum(1, keepdim=True)
    share = squares.sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return ((squares + share * variance) / 2).sqrt()


def _expected_entropy(probabilities: Tensor, classes: Classes) -> Tensor:
    """E[H(p)] over the masks, to second order: H(E[p]) - sum of model variance / (2 p)."""
    smallest = torch.finfo(probabilities.dtype).tiny  # protects classes of probability 0
    disagreement = (classes.model_var / (2 * probabilities.clamp(min=smallest))).sum(1)
    return (entropy(probabilities, dim=1) - disagreement).clamp(min=0)
