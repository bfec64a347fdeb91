"""One factor on the variance, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from howsure.calibrate.base import Calibrator
from howsure.calibrate.held_out import held_out
from howsure.calibrate.rescale import rescaled
from howsure.prediction import Prediction


@dataclass(frozen=True, eq=False, repr=False)
class VarianceScale(Calibrator):
    """Variances times `scale`; right when they are wrong by a common factor.

    scale = mean((target - mean)**2 / var) is where d/ds of the Gaussian NLL is 0, so no other
    factor has a smaller NLL on the held-out data (Laves et al. 2021, for the std).

    Attributes:
        scale: The factor, `()`, or one for each output at dim 1, `(outputs,)`.
    """

    kind: ClassVar[str] = "scale"
    scale: Tensor

    @classmethod
    def fit(
        cls, prediction: Prediction, target: Tensor, *, per_output: bool = False
    ) -> VarianceScale:
        """The factor for held-out data; one for each output if `per_output`."""
        data = held_out(prediction, target).by_output(per_output)
        zeros = int((data.var == 0).sum())
        if zeros:
            raise ValueError(
                f"{zeros} of {data.var.numel()} held-out variances are 0, which no factor can "
                "correct; use `AffineVariance`, which also adds a constant."
            )
        scale = (data.error.square() / data.var).mean(1)
        if bool((scale == 0).any()):
            raise ValueError("All held-out errors of an output are 0; are the targets predictions?")
        return cls(scale if per_output else scale[0])

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction with data and model variance times `scale`."""
        return rescaled(prediction, self.scale, torch.zeros_like(self.scale))
