"""The metrics of a classification run, as plain numbers."""

from __future__ import annotations

from torch import Tensor

from howsure import metrics
from howsure.fit.dropout import ONE_HOT_FLOOR
from howsure.prediction import Prediction, entropy
from howsure_lab.experiments.tables import Column

# Of class probabilities' variances in the NLL, as in tuning.
FLOOR = ONE_HOT_FLOOR
# A class of probability 0 would cost infinitely much.
PROBABILITY_FLOOR = 1e-12

CLASSIFICATION = (
    Column("accuracy", "accuracy %", 2),
    Column("one_hot_nll", "per-class NLL", 2),
    Column("categorical_nll", "categorical NLL"),
    Column("brier", "Brier", 4),
    Column("ece", "ECE"),
    Column("errors_entropy", "errors: entropy"),
    Column("errors_std", "errors: std"),
)
READING = (
    "per-class NLL: Gaussian NLL of the one-hot label, mean over classes, without 1/2 log 2 pi; "
    f"variances below {FLOOR:g} are raised to it. Brier: mean over classes. errors: AUROC of "
    "finding misclassified images, by the entropy of the mean probabilities and by the std of the "
    "winning class. Further columns: AUROC of finding images of nothing, by the entropy."
)


def classification_scores(found: Prediction, target: Tensor) -> dict[str, float]:
    """All metrics of predicted class probabilities."""
    mean, var = found.mean, found.total_var
    return {
        "accuracy": 100 * float(metrics.accuracy(mean, target)),
        "one_hot_nll": float(metrics.one_hot_nll(mean, var, target, floor=FLOOR)),
        "categorical_nll": float(metrics.categorical_nll(mean, target, floor=PROBABILITY_FLOOR)),
        "brier": float(metrics.brier(mean, target)),
        "ece": float(metrics.ece(mean, target)),
        "errors_entropy": _errors(entropy(mean), mean, target),
        "errors_std": _errors(winner_var(found), mean, target),
        "count": len(target),
    }


def winner_var(found: Prediction) -> Tensor:  # (n,)
    """Variance of the probability of the class that wins."""
    return found.total_var.gather(1, found.mean.argmax(1, keepdim=True)).squeeze(1)


def _errors(uncertainty: Tensor, mean: Tensor, target: Tensor) -> float:
    """AUROC of errors; NaN if there are none, or nothing else."""
    wrong = mean.argmax(1) != target
    if bool(wrong.all()) or not bool(wrong.any()):
        return float("nan")
    return float(metrics.misclassification_auroc(uncertainty, mean, target))


def told_apart(inside: Prediction, outside: Prediction) -> float:
    """AUROC of the entropy for telling images of nothing from the test images."""
    return float(metrics.out_of_distribution_auroc(entropy(inside.mean), entropy(outside.mean)))
