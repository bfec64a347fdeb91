"""Class probabilities with their variances, through the covariance of the logits."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsure.errors import warn
from howsure.estimators.softmax import (
    Classes,
    Logits,
    class_logits,
    entropy_of,
    is_elementwise,
    probabilities_of,
    through_sigmoid,
    through_softmax,
)
from howsure.estimators.variances import Variances
from howsure.methods.activations import read
from howsure.posterior.temperature import ClassScores, cool
from howsure.prediction import Details, Prediction, class_dim
from howsure.settings import Task
from howsure.setup import Setup
from howsure.trees import has_values, is_tracing

if TYPE_CHECKING:
    from howsure.methods.gradients import Outcome
    from howsure.problem import Problem


def class_outputs(output: Any, task: Task, *, entropy: bool = False) -> Any:
    """The model's output; for classification the probabilities, and the logits.

    With their entropy, (batch, 1, ...), if asked for.
    """
    if task == "regression":
        return output
    if not isinstance(output, Tensor):
        raise TypeError(
            "Classification needs a model that returns one tensor of logits, not a "
            f"{type(output).__name__}."
        )
    check_classes(output, task)
    probabilities = probabilities_of(output, task)
    if not entropy:
        return probabilities, output
    entropies = entropy_of(probabilities, task)
    if not is_elementwise(output, task):
        entropies = entropies.unsqueeze(class_dim(output))
    return probabilities, output, entropies


def check_classes(logits: Tensor, task: Task) -> None:
    """An error for a single class; a warning if the outputs look like probabilities."""
    if is_elementwise(logits, task):
        return
    axis = class_dim(logits)
    if logits.shape[axis] == 1:
        raise ValueError(
            "Classification needs a logit for each class, and the model returns only one, whose "
            'softmax is always 1. For two classes with one logit, use `task="binary"`.'
        )
    if not has_values(logits) or not logits.numel() or bool((logits < 0).any()):
        return
    rounding = 8 * torch.finfo(logits.dtype).eps
    if bool(((logits.double().sum(axis) - 1).abs() <= rounding).all()):
        warn(
            "The outputs look like probabilities: nonnegative, with sum 1. Classification applies "
            "the softmax itself, so give logits: `output=torch.log` if the model has none."
        )


def classified(setup: Setup, outcome: Outcome, scores: ClassScores | None) -> Prediction:
    """Class probabilities, from the covariance of the logits; and the logits themselves.

    They are averaged over the noise, unless the network's own are requested.
    """
    assert outcome.logits is not None
    plain, estimate, means = outcome.logits.plain, outcome.logits.estimate, outcome.logits.means
    variances, columns = outcome.variances, outcome.problem.columns
    elementwise = is_elementwise(plain, setup.task)
    t = plain.new_ones(len(plain), 1) if scores is None else scores.temperature[:, None].to(plain)
    # Noise shifts the logits, and where they lie decides how much the softmax lets through: they
    # vary around their mean, whatever is predicted.
    halves = [(mean, *half[1:]) for mean, half in zip(means[1:], estimate.halves(), strict=False)]
    estimates = [
        Logits(
            _scatter(plain, columns, mean) / t, data / t[..., None] ** 2, model / t[..., None] ** 2
        )
        for mean, data, model in [(means[0], *estimate.covariances()), *halves]
    ]
    if elementwise:
        classes, *halves = through_sigmoid(estimates, setup.seed)
    else:
        classes, *halves = through_softmax(estimates, columns, setup.seed)
    is_mean = setup.prediction != "network"
    probabilities = classes.mean if is_mean else probabilities_of(plain / t, setup.task)
    center = (_scatter(plain, columns, means[0]) if is_mean else plain) / t
    cooled = variances if scores is None else variances.scale(t.double() ** -2)
    logits = replace(_logits(setup, cooled, center, columns), notes=outcome.notes)
    prediction = Prediction(
        probabilities,
        classes.data_var + setup.residual_var_at(plain),
        classes.model_var,
        outcome.notes,
        logits,
        _expected_entropy(probabilities, classes, setup.task),
        error=_error_of_classes(cooled, classes, [half.std for half in halves]),
    )
    return _reshape(prediction, outcome.problem) if elementwise else prediction


def _reshape(prediction: Prediction, problem: Problem) -> Prediction:
    """A prediction of flat outputs in the shape of the model's own."""
    assert problem.structure is not None and prediction.logits is not None
    shape = problem.structure.tensors[0].shape

    def reshape(part: Prediction, *names: str) -> Prediction:
        names = ("mean", "data_var", "model_var", *names)
        assert part.std_error is not None
        error = part.std_error.reshape(shape)
        return replace(part, **{n: getattr(part, n).reshape(shape) for n in names}, error=error)

    logits = reshape(prediction.logits)
    return replace(reshape(prediction, "expected_entropy"), logits=logits)


def certain(setup: Setup, x: Any) -> Prediction:
    """The network's own class probabilities, where nothing is random; at their temperature."""
    scores = class_scores(setup, x)
    plain = read(setup, x, ()).logits if scores is None else scores.logits
    center = plain if scores is None else cool(plain, scores.temperature)
    probabilities, nothing = probabilities_of(center, setup.task), torch.zeros_like(center)
    prediction = Prediction(
        probabilities,
        nothing + setup.residual_var_at(nothing),
        nothing,
        logits=_logits(setup, Variances.zero(plain), center, None),
        expected_entropy=entropy_of(probabilities, setup.task),
        error=nothing,
    )
    return with_temperature(prediction, scores)


def class_scores(setup: Setup, x: Any) -> ClassScores | None:
    """Temperature and novelty of some inputs, where they were fitted."""
    model = setup.temperature_model
    if model is None:
        return None
    activations = read(setup, x, model.layers)
    classes = class_logits(activations.logits, setup.task)
    return model.scores(activations.logits, classes, activations.inputs)


def with_temperature(prediction: Prediction, scores: ClassScores | None) -> Prediction:
    """The prediction with temperature, novelty and model variance of its inputs.

    Of what the noise leaves of the variance p (1 - p) of a label, the model has a share; of the
    entropy it has the same one.
    """
    if scores is None:
        return prediction
    p, before = prediction.mean, prediction.total_var
    share = scores.model_share.reshape(-1, *(1,) * (p.dim() - 1)).to(before)
    added = share * (p * (1 - p) - before).clamp(min=0)
    std = (before + added).sqrt()
    expected, error = prediction.expected_entropy, prediction.std_error
    assert expected is not None and error is not None
    kept = 1 - scores.model_share.reshape(-1, *(1,) * (expected.dim() - 1)).to(expected)
    return replace(
        prediction,
        model_var=prediction.model_var + added,
        expected_entropy=kept * expected,
        error=error
        * torch.where(std > 0, (1 - share) * before.sqrt() / torch.where(std > 0, std, 1.0), 1.0),
        notes=(*prediction.notes, *scores.notes),
        novelty=scores.novelty,
        joint_novelty=scores.novelty,
        temperature=scores.temperature,
    )


def _scatter(plain: Tensor, columns: Tensor | None, mean: Tensor) -> Tensor:
    """The logits with others in place of the network's, where they vary."""
    return mean if columns is None else plain.scatter(1, columns, mean)


def _logits(
    setup: Setup, variances: Variances, center: Tensor, columns: Tensor | None
) -> Prediction:
    """The logits with their variances; those that were held fixed have none."""

    def everywhere(flat: Tensor | None) -> Any:
        if flat is None or columns is None:
            return flat
        return torch.zeros_like(center).to(flat).scatter(1, columns, flat)

    variances, whole = variances.add_constant(setup.residual_var), columns is None
    data, model, error = (
        everywhere(f) for f in (variances.data, variances.model, variances.standard_error)
    )

    def details() -> Details:
        was = variances.details()
        share = everywhere(was.linear_share)
        return replace(was, linear_share=share) if whole else Details(linear_share=share)

    return Prediction(
        center,
        data,
        model,
        error=error,
        details=details() if is_tracing() else functools.cache(details),
    )


# Logits are taken for Gaussian, which costs a tenth of a probability's std with any number of
# points: 0.12 besides what chance does (ResNet-20 at 2 gray levels).
_GAUSSIAN = 0.1


def _error_of_classes(variances: Variances, classes: Classes, halves: list[Tensor]) -> Tensor:
    """What chance does to a probability's std, and what Gaussian logits do.

    By chance half the difference of what two halves of the blocks say; of one block as of its
    logits. What the classes of a row have in common counts as much as what each shows by itself,
    since two halves alone agree by chance too often.
    """
    if halves:
        squares = (halves[0] - halves[1]).square() / 4
        variance = classes.std.square()
        total = variance.sum(1, keepdim=True)
        share = squares.sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
        chance = ((squares + share * variance) / 2).sqrt()
    else:
        std = (variances.data + variances.model).sqrt().sum(1, keepdim=True)
        share = variances.standard_error.sum(1, keepdim=True) / torch.where(std > 0, std, 1.0)
        chance = classes.std * share
    return (chance.square() + (_GAUSSIAN * classes.std).square()).sqrt()


def _expected_entropy(probabilities: Tensor, classes: Classes, task: Task) -> Tensor:
    """E[H(p)] over the masks, to second order: H(E[p]) - sum of model variance / (2 p)."""
    smallest = torch.finfo(probabilities.dtype).tiny  # protects classes of probability 0
    disagreement = classes.model_var / (2 * probabilities.clamp(min=smallest))
    if is_elementwise(probabilities, task):
        disagreement = disagreement + classes.model_var / (
            2 * (1 - probabilities).clamp(min=smallest)
        )
    else:
        disagreement = disagreement.sum(1)
    return (entropy_of(probabilities, task) - disagreement).clamp(min=0)
