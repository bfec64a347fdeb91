"""How the released code combines samples and scores them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsure_lab.released.formulas import released_rules


def released_options(min_variance: float = 1e-3) -> dict[str, Any]:
    """Options with which `Uncertain` computes what the released code does.

    The formulas of its layers, and the variance of the means divided by T - 1.
    """
    return {"rules": released_rules(min_variance), "unbiased": True}


def released_nll(
    mean: Tensor,  # (batch, classes)
    var: Tensor,  # (batch, classes)
    target: Tensor,  # (batch, classes), one-hot
) -> Tensor:
    """Mean of log var + (target - mean)**2 / (2 var**2) + 1/2 log 2 pi.

    Defect: the variance goes where the standard deviation belongs (`Normal(mean, scale=var)`).
    """
    normal = torch.distributions.Normal(mean, scale=var, validate_args=False)
    return -normal.log_prob(target).mean()
