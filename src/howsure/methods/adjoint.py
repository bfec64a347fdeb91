"""No sampling: one forward pass with probes, one backward pass per output (docs/adjoint.md).

Sensors and dropout masks are sources of noise alike; a mask has mean 1 and variance p / (1 - p).
By the law of total variance what the sensors cause at given masks is data variance, also where the
two interact; what the masks cause alone is model variance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.budget import CONSTANT, REMAINDER, Budget
from howsure.concrete import has_values
from howsure.methods.analysis import Analysis, analyse
from howsure.methods.combine import prediction
from howsure.methods.passes import Pass, no_gradients
from howsure.methods.setup import Setup
from howsure.prediction import Prediction, entropy
from howsure.sites import MASK, SENSOR

# Where less of the variance than this is first order, brute force is advised; docs/adjoint.md has
# the measurements.
DOUBTFUL = 0.4


def predict(setup: Setup, x: Any) -> Prediction:
    """The prediction with data and model variance, covariance, budget and trust."""
    found = analyse(setup, x)
    data, model = split(found)
    centres = found.mean if setup.prediction == "adf" else _plain(setup, x)
    flat = (centres, *_everywhere(found, data, model))
    result = prediction(setup, found.run, *(shaped(found, each) for each in flat))
    return _with_sources(setup, result, found)


def split(found: Analysis) -> tuple[Tensor, Tensor]:
    """Data and model variance of the chosen outputs, (batch, chosen)."""
    reading = found.reading
    data, model = found.by_kind(SENSOR), found.by_kind(MASK)
    return data + reading.data_remainder, model + reading.model_remainder


def _everywhere(found: Analysis, data: Tensor, model: Tensor) -> tuple[Tensor, Tensor]:
    """The variances of all outputs: of those that were not chosen the probes' own."""
    chosen = list(found.chosen)
    if len(chosen) == found.mean.shape[1]:
        return data, model
    if SENSOR in found.kinds and MASK in found.kinds:
        raise ValueError(
            "With `outputs` a subset and both sensor noise and dropout, the variance of the other "
            "outputs cannot be split; choose all outputs, or sample."
        )
    whole, nothing = found.forward_var.clone(), torch.zeros_like(found.forward_var)
    whole[:, chosen] = data + model
    return (nothing, whole) if MASK in found.kinds else (whole, nothing)


def _plain(setup: Setup, x: Any) -> Tensor:
    """The plain network's outputs, flat."""
    with no_gradients():
        return torch.cat([out.reshape(out.shape[0], -1) for out in Pass(setup, x).plain()], 1)


def shaped(found: Analysis, flat: Tensor) -> list[Tensor]:
    """Flat outputs in the shapes of the model's."""
    assert found.run.parts is not None
    shapes = [(flat.shape[0], *part.shape[1:]) for part in found.run.parts.tensors]
    sizes = [part[0].numel() for part in found.run.parts.tensors]
    return [p.reshape(shape) for p, shape in zip(flat.split(sizes, 1), shapes, strict=True)]


def _with_sources(setup: Setup, result: Prediction, found: Analysis) -> Prediction:
    """The prediction with covariance, budget and trust; for classification the logits' as well."""
    first_order = found.by_kind(SENSOR) + found.by_kind(MASK)
    total = first_order + found.reading.remainder
    trust = first_order / torch.where(total > 0, total, torch.ones_like(total))
    trust = torch.where(total > 0, trust, torch.ones_like(trust))
    covariance = found.reading.covariance + torch.diag_embed(_constant(setup, found))
    budget = _budget(setup, found)

    def of(columns: slice, prediction: Prediction) -> Prediction:
        return replace(
            prediction,
            notes=(*result.notes, *doubts(trust[:, columns])),
            covariance=covariance[:, columns, columns],
            sources=budget.of_outputs(columns),
            trust=trust[:, columns],
        )

    if result.logits is None:
        return of(slice(None), result)
    # Probabilities come first, then logits; a subset of outputs may leave some out.
    classes = found.mean.shape[1] // 2
    cut = sum(index < classes for index in found.chosen)
    return replace(
        of(slice(cut), result),
        logits=of(slice(cut, None), result.logits),
        expected_entropy=_expected_entropy(result),
    )


def _expected_entropy(result: Prediction) -> Tensor:
    """E[H(p)] over the masks, to second order: H(E[p]) - sum of model variance / (2 p)."""
    smallest = torch.finfo(result.mean.dtype).tiny  # protects classes of probability 0
    disagreement = (result.model_var / (2 * result.mean.clamp(min=smallest))).sum(1)
    return (entropy(result.mean, dim=1) - disagreement).clamp(min=0)


def _constant(setup: Setup, found: Analysis) -> Tensor:
    """The constant variance of every chosen output."""
    return torch.as_tensor(setup.tau).to(found.mean).expand_as(found.mean)[:, list(found.chosen)]


def _budget(setup: Setup, found: Analysis) -> Budget:
    names, kinds = [*found.names, REMAINDER], [*found.kinds, "remainder"]
    variances = [*found.reading.by_source, found.reading.remainder]
    if isinstance(setup.tau, Tensor) or setup.tau != 0:
        names, kinds = [*names, CONSTANT], [*kinds, "constant"]
        variances.append(_constant(setup, found))
    elements = zip(found.names, found.kinds, found.reading.elements, strict=True)
    maps = {name: each for name, kind, each in elements if kind == SENSOR}
    return Budget(tuple(names), tuple(kinds), torch.stack(variances), maps)


def doubts(trust: Tensor) -> tuple[str, ...]:
    """A note where the variance is not to be relied on; none inside a trace."""
    if not has_values(trust):
        return ()
    doubtful = int((trust < DOUBTFUL).sum())
    if not doubtful:
        return ()
    return (
        f"For {doubtful} of {trust.numel()} outputs more than {100 * (1 - DOUBTFUL):.0f} % of the "
        "variance is beyond first order, where this method is not reliable; sample with "
        '`method="noise_sampling"` or `method="control_variate"`.',
    )
