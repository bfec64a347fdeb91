"""A variance that the network has learned, with dropout for its own (Kendall & Gal 2017).

mean = 1/T sum mu_t, data_var = 1/T sum exp(log_var_t), model_var = 1/T sum (mu_t - mean)**2
(their Eq. 9). Without dropout it is one pass and the model variance is 0.

Classification: the head is the variance of the logits (their Eq. 12). Where they draw logits, the
probabilities' moments come here from the softmax rule. Loquercio et al. 2020 report that they
could not make it converge; `howsure_lab.training` starts from the trained network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.gaussian_output import Gaussian
from howsure.isolation import isolated
from howsure.methods.method import Fits, Method
from howsure.methods.propagation import (
    Pass,
    has_active_sites,
    prediction,
    sampled,
    spread,
    zeros_like_each,
)
from howsure.methods.variance_head import HeteroscedasticModel
from howsure.moments.rule import find
from howsure.moments.value import Moments
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.trees import TensorTree, as_call, clone_tensors

_UNUSED_NOISE = (
    'method "heteroscedastic": `noise` is not used; the data variance is the one that the head '
    "has learned from its training data."
)


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with the learned data variance, and model variance if there is dropout."""
    form = Gaussian(log_var=1) if isinstance(setup.model, HeteroscedasticModel) else setup.output
    if not isinstance(form, Gaussian):
        raise TypeError(
            'The method "heteroscedastic" needs a model that predicts its variance, not a '
            f"{type(setup.model).__name__}: say where it is with `output=hs.Gaussian(log_var=1)`, "
            "or make one with `add_variance_head(model, x)` and train it with "
            "`howsure_lab.training.train_heteroscedastic`."
        )
    setup = setup.replace(output=None)  # The variance is read here, from every pass.
    run = Pass(setup, x)
    run.notes = () if setup.noise is None else (_UNUSED_NOISE,)
    with torch.no_grad():
        if not setup.has_masks(x) or not has_active_sites(setup, x):
            means, variances = _halves(_one_pass(run, form))
            return prediction(setup, run, means, variances, zeros_like_each(variances))
        means, variances = _halves(sampled(setup, x, lambda _: _one_pass(run, form)))
        return prediction(
            setup,
            run,
            [mean.mean(0) for mean in means],
            [var.mean(0) for var in variances],
            [spread(setup, mean) for mean in means],
            samples=means[0],
        )


def _one_pass(run: Pass, form: Gaussian) -> tuple[Tensor, ...]:
    """Means and then variances; for classification of (probabilities, logits)."""
    args, kwargs = as_call(clone_tensors(run.x), run.setup.model)
    output = isolated(run.setup.model)(*args, **kwargs)
    run.parts = TensorTree(form(output))
    means, variances = run.parts.tensors, TensorTree(form.variance(output)).tensors
    if run.setup.task == "regression":
        return (*means, *variances)
    if len(means) != 1:
        raise TypeError(
            f"Classification needs a model that returns one tensor of logits, not {len(means)}."
        )
    rule = find(F.softmax)
    assert rule is not None
    probabilities = rule(Moments(means[0], variances[0]), 1)
    return probabilities.mean, means[0], probabilities.var, variances[0]


def _halves(outputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    half = len(outputs) // 2
    return outputs[:half], outputs[half:]


METHOD = Method("heteroscedastic", predict, fits=Fits.RATE)
