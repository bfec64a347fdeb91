"""Several networks as one: total variance = mean of variances + variance of means.

A mixture of M Gaussians with equal weights (Lakshminarayanan et al. 2017, section 2.4), split as in
Loquercio et al. 2020, Eq. 16:

    mean = 1/M sum mean_m,  data_var = 1/M sum data_m
    model_var = 1/M sum model_m + 1/M sum (mean_m - mean)**2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from howsure.methods import heteroscedastic
from howsure.methods.choice import choose
from howsure.methods.method import Method, Uses
from howsure.methods.propagation import CONSTANT
from howsure.methods.variance_head import HeteroscedasticModel
from howsure.prediction import Details, Prediction
from howsure.setup import Setup
from howsure.trees import TensorTree


def predict(setup: Setup, x: Any) -> Prediction:
    """The mixture of the predictions of every model in `setup.model`, an `nn.ModuleList`.

    Each member is predicted with the setup's noise, rate and samples, by the method that suits it:
    "heteroscedastic" if it has a variance head, "constant" without noise and rate, else as "auto".
    """
    if not isinstance(setup.model, (nn.ModuleList, list, tuple)) or not len(setup.model):
        raise TypeError(
            'The method "ensemble" needs several models; pass them as `Uncertain(nn.ModuleList('
            '[...]), method="ensemble")`, or combine wrapped ones with `Ensemble([...])`.'
        )
    members = [
        # Own sites, since members may differ, and own seeds, so that their masks are independent.
        setup.replace(model=model, seed=setup.seed + index, _cache={})
        for index, model in enumerate(setup.model)
    ]
    return mixture([_predict_member(member, x) for member in members])


def _predict_member(setup: Setup, x: Any) -> Prediction:
    if isinstance(setup.model, HeteroscedasticModel):
        return heteroscedastic.METHOD(setup, x)
    certain = setup.noise is None and setup.rate is None
    if certain and setup.placement.kind != "existing":
        return CONSTANT(setup, x)
    method, chosen, _ = choose(setup, x)
    return method(chosen, x)


def mixture(members: Sequence[Prediction]) -> Prediction:
    """The prediction of an equally weighted mixture of predictions."""
    if not members:
        raise ValueError("An ensemble needs at least one member.")
    centers = _stack(members, "mean")
    parts = TensorTree(members[0].mean)
    logits = [member.logits for member in members if member.logits is not None]
    entropies = [m.expected_entropy for m in members if m.expected_entropy is not None]
    within = [var.mean(0) for var in _stack(members, "model_var")]
    model_vars = [v + c.var(0, correction=0) for v, c in zip(within, centers, strict=True)]
    return Prediction(
        parts.unflatten([center.mean(0) for center in centers]),
        _unflatten(members[0].data_var, [v.mean(0) for v in _stack(members, "data_var")]),
        _unflatten(members[0].model_var, model_vars),
        tuple(dict.fromkeys(note for member in members for note in member.notes)),
        mixture(logits) if len(logits) == len(members) else None,
        torch.stack(entropies).mean(0) if len(entropies) == len(members) else None,
        details=Details(_covariance(members)),
        novelty=_novelty(members),
        joint_novelty=_mean([member.joint_novelty for member in members]),
        temperature=_mean([member.temperature for member in members]),
    )


def _novelty(members: Sequence[Prediction]) -> Any:
    """The mean over the members, in the structure of their output; `None` where one has none."""
    if any(member.novelty is None for member in members):
        return None
    return _unflatten(members[0].novelty, [v.mean(0) for v in _stack(members, "novelty")])


def _mean(tensors: Sequence[Tensor | None]) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(given).mean(0) if len(given) == len(tensors) else None


def _unflatten(like: Any, values: list[Tensor]) -> Any:
    return TensorTree(like).unflatten(values)


def _stack(members: Sequence[Prediction], name: str) -> list[Tensor]:
    """One tensor for each output, the members in front; an error if their outputs differ."""
    columns = [TensorTree(getattr(member, name)).tensors for member in members]
    first = _shapes(members[0].mean)
    for index, member in enumerate(members):
        if _shapes(member.mean) != first:
            raise ValueError(
                f"The members of an ensemble must have the same outputs: member {index} returns "
                f"{_shapes(member.mean)[1]}, member 0 {first[1]}. Wrap those that differ."
            )
    return [torch.stack(column) for column in zip(*columns, strict=True)]


def _shapes(output: Any) -> tuple[str, str]:
    """The structure of an output, and the shapes of its tensors in words."""
    parts = TensorTree(output)
    shapes = [tuple(tensor.shape) for tensor in parts.tensors]
    return str(parts.unflatten(shapes)), f"shape {shapes[0]}" if len(shapes) == 1 else f"{shapes}"


def _covariance(members: Sequence[Prediction]) -> Tensor | None:
    """Mean of the covariances + covariance of the means, where every member has one."""
    covariances = [member.covariance for member in members if member.covariance is not None]
    if len(covariances) != len(members) or not isinstance(members[0].mean, Tensor):
        return None
    centers = torch.stack([member.mean for member in members])  # (members, batch, outputs)
    away = (centers - centers.mean(0)).flatten(2)
    return torch.stack(covariances).mean(0) + torch.einsum("mbi,mbj->bij", away, away) / len(
        members
    )


METHOD = Method("ensemble", predict, Uses.RULES | Uses.MODEL)
