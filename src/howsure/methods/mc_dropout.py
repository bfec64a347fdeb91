"""Monte-Carlo dropout on the plain network (Gal & Ghahramani 2016).

mean = 1/T sum f_t(x), model_var = 1/T sum (f_t(x) - mean)**2, data_var = residual_var, a constant.
"""

from __future__ import annotations

from typing import Any

import torch

from howsure.methods.method import Method
from howsure.methods.sampling import predict_by_sampling
from howsure.prediction import Prediction
from howsure.progress import keep_freed_memory
from howsure.setup import Setup


@torch.inference_mode(False)
def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with model variance and the constant data variance `residual_var`."""
    keep_freed_memory()
    rates = setup.rates(setup.sites(x))
    if setup.samples == 1:
        raise ValueError(
            "`samples` is 1, and one sample has no variance; use at least 2, or the method "
            '"adf" without dropout.'
        )
    return predict_by_sampling(setup.with_(noise=None, rate=rates), x, is_biased=not setup.unbiased)


METHOD = Method(
    "mc_dropout",
    predict,
    has_data_var=False,
    has_rate=True,
    in_closed_form=True,
    draws_masks=True,
    is_sampling=True,
    audited=({"samples": 20},),
)
