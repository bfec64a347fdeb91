"""Dropout as written in the model: the identity in eval mode."""

from __future__ import annotations

from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.rule import STRUCTURAL, Draw, Kind, Sample, rule, spellings
from howsure.moments.value import Moments


def _eval_mode(draw: Draw) -> list[Sample]:
    image = draw.moments(2, 3, 4)
    return [Sample(image, 0.5, False), Sample(image, p=0.2, training=False)]


_FIRST = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
)
_NAMES = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")


@rule(
    *_FIRST,
    *(target for target in spellings(*_NAMES) if target not in _FIRST),
    name="dropout",
    fidelity=STRUCTURAL,
    samples=_eval_mode,
    kind=Kind.STRUCTURAL,
)
def dropout(
    input: Moments, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Moments:
    """The identity in eval mode.

    Assumes: eval mode; sampling masks is the business of howsure's methods.

    Source: Srivastava et al. 2014.
    """
    if training and p > 0:
        raise NoRuleError(
            "Dropout in train mode draws a random mask. Call `model.eval()`; howsure places and "
            "samples dropout by itself."
        )
    return input
