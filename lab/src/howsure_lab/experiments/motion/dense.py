"""Which method is right about a whole field of flow, by Monte Carlo.

A backward pass for every output, as "gradients" needs, is out of reach for a field. What remains is
sampling with the paired split of data and model variance, and the paper's diagonal propagation
(with sampled masks for dropout). The judge is Monte Carlo with many more samples. Compared are the
standard deviations of all cells that an object covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from howsure import metrics
from howsure.methods import MethodName
from howsure.noise import NoiseLike
from howsure.prediction import Prediction
from howsure.uncertain import Uncertain
from howsure_lab.experiments.motion.objects import ObjectPairs, covered
from howsure_lab.experiments.tables import markdown, number

_SAMPLES = 20
_LABELS = {
    "sampling": f"sampling, {_SAMPLES} passes, paired split",
    "diagonal": f"diagonal ADF (the paper), {_SAMPLES} masks",
    "probes": "32 probes, one pass",  # of version 0.1, which older results contain
}
_PARTS = {"data": "sensor noise", "model": "dropout", "total": "both"}


@dataclass(frozen=True, eq=False)
class Field:
    """A network that predicts fields, with its noise.

    Attributes:
        model: The network.
        noise: Variance of its input.
        rate: Dropout rate.
        seed: Of all draws.
    """

    model: nn.Module
    noise: NoiseLike
    rate: float
    seed: int = 0

    def predicted(self, x: Tensor, method: MethodName, **options: object) -> Prediction:
        """The whole field by a method."""
        # Masks for each object of its own: one draw for all would make one error for all.
        chosen = {"noise": self.noise, "rate": self.rate, "seed": self.seed, "shared_masks": False}
        chosen |= options
        return Uncertain(self.model, method=method, **chosen)(x)


def compared(field: Field, pairs: ObjectPairs, passes: int) -> list[dict[str, object]]:
    """One line per method and part of the variance, against Monte Carlo with `passes` passes."""
    truth = _parts(field.predicted(pairs.x, "noise_sampling", samples=passes, seed=field.seed + 1))
    found = {
        "sampling": _parts(field.predicted(pairs.x, "noise_sampling", samples=_SAMPLES)),
        "diagonal": _parts(field.predicted(pairs.x, "sampled_adf", samples=_SAMPLES)),
    }
    inside = covered(pairs.y[:, 2]).unsqueeze(1).expand_as(pairs.y[:, :2])
    return [
        {"method": method, "part": part, **_agreement(variances[part][inside], truth[part][inside])}
        for part in _PARTS
        for method, variances in found.items()
    ]


def _parts(prediction: Prediction) -> dict[str, Tensor]:
    data, model = prediction.data_var, prediction.model_var
    return {"data": data, "model": model, "total": data + model}


def _agreement(var: Tensor, truth: Tensor) -> dict[str, float]:
    """Ratio of std (the median), typical factor by which a std is off, and rank correlation."""
    floor = torch.finfo(truth.dtype).tiny  # protects the logarithm where a split is cut at 0
    ratio = (var.clamp(min=floor) / truth.clamp(min=floor)).sqrt()
    off = torch.exp(ratio.log().abs().median())
    rank = float(metrics.rank_correlation(var, truth))
    return {"ratio": float(ratio.median()), "off": float(off), "rank": rank}


def dense_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The comparison as Markdown."""
    rows = [
        [
            _PARTS[line["part"]],
            _LABELS[line["method"]],
            number(line["ratio"], 3),
            number(line["off"], 2),
            number(line["rank"], 2),
        ]
        for line in lines
    ]
    return markdown(["variance from", "method", "std / true std", "off by factor", "rank"], rows)
