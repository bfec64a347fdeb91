"""A temperature for every input, from its distances to the inputs that the network knows.

    log T       = log T0 + growth_1 (u_1 - q_1)_+ + growth_2 (u_2 - q_2)_+
    log novelty = u_1 / 2 + u_2 + r (q_E - E)_+ - its held-out quantile

T0 is best for held-out data. u_1 is the log squared distance to the 6th neighbor among the known
inputs, by the normalized input of the last layer; u_2 the log of the squared Mahalanobis distance
of what goes into each layer, averaged over places, per number and over layers. Of the layers with
places the first half is left out: its averages are colors and brightness. E is the log-sum-exp of
the logits (Liu et al. 2020, "Energy-based out-of-distribution detection"). q is the 75 % quantile
on held-out inputs: known ones keep T0, others get probabilities that are less sure.
Where every pixel or token has classes of its own, all of an input have its temperature, by the
distance over all layers, and the temperature grows from the 90 % quantile.

The temperature also says how much of the uncertainty is the model's. Let the logits be Gaussian
around the network's, so that the mean of the softmax is p = softmax(logits / T), for logits that
are those of T_r = min(T0, 1) when nothing is in doubt. Since d softmax_k / d logit_k is
q_k (1 - q_k), the mean of q_k (1 - q_k) is the derivative of that mean, p_k (1 - p_k) T_r / T, and

    Var q_k = p_k (1 - p_k) (1 - T_r / T),

for any number of classes. With T_r = T0 a network's overconfidence on held-out data would be no
doubt at all; with T_r = 1 the variance follows the disagreement of two networks (docs/model.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.line_search import log_minimum
from howsure.posterior.distances import Distances
from howsure.posterior.novelty import KNOWN

# Beyond, the likelihood has no minimum that data could show.
_LOW, _HIGH = 1e-3, 1e3
# Halvings that leave a relative error of 1e-12.
_HALVINGS = 44
# By how much log T grows with each distance, unless it is fitted; also its weight in the novelty.
GROWTH = (0.5, 1.0)
# The quantile of the held-out distances from which the temperature grows where every pixel has
# classes; elsewhere it is the one at which a novelty is 1.
_OF_IMAGES = 0.9


@dataclass(frozen=True, eq=False)
class TemperatureModel:
    """What `fit` found for classes.

    Attributes:
        temperature: T0, for inputs like the known ones.
        classes: How many there are.
        distances: The known inputs; `None` if the temperature is the same for all.
        growth: How fast log T grows with either distance.
        thresholds: The distances from which it grows, (2,).
        energy: The weight r of the energy in the novelty, and the energy q_E below which it counts.
        known: The held-out quantile of the score that is a novelty of 1.
        quantiles: Of the held-out inputs' novelty in equal steps.
        notes: What a user should know about it.
        dense: Whether every pixel or token has classes of its own.
    """

    temperature: float
    classes: int
    distances: Distances | None
    growth: tuple[float, float]
    thresholds: Tensor
    energy: tuple[float, float]
    known: float
    quantiles: Tensor
    notes: tuple[str, ...] = ()
    dense: bool = False

    @property
    def novelty_quantiles(self) -> Tensor | None:
        """Of the held-out inputs' novelty, for a gate; `None` without distances."""
        return None if self.distances is None else self.quantiles

    def at(self, logs: Tensor) -> Tensor:  # (rows, 2) -> (rows,)
        """The temperature for inputs at these distances."""
        beyond = (logs - self.thresholds.to(logs)).clamp(min=0)
        return self.temperature * (beyond @ logs.new_tensor(self.growth)).exp()

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers whose inputs have to be read."""
        return () if self.distances is None else self.distances.wanted

    def scores(
        self, logits: Tensor, classes: Tensor, activations: Mapping[str, Tensor]
    ) -> ClassScores:
        """Temperature and novelty of some inputs.

        Args:
            logits: What the network says.
            classes: The same as one logit for every class, (rows, classes, ...).
            activations: What goes into the layers, (rows, features) each.
        """
        if classes.shape[1] != self.classes:
            raise ValueError(
                f"The model returns {classes.shape[1]} logits, and the temperature was fitted "
                f"for {self.classes} classes; fit again."
            )
        dtype = logits.dtype if logits.dtype == torch.float64 else torch.float32
        temperature = torch.full((len(logits),), self.temperature, dtype=dtype).to(logits.device)
        novelty = None
        if self.distances is not None:
            logs = self.distances.logs(activations, len(logits))
            temperature = self.at(logs).to(dtype)
            score = novelty_score(logs, energy_of(classes), self.energy)
            novelty = (score - self.known).exp().to(dtype)
        share = 1 - min(self.temperature, 1.0) / temperature
        return ClassScores(logits, temperature, novelty, share.clamp(min=0), self.notes)


@dataclass(frozen=True, eq=False)
class ClassScores:
    """What `fit` says about some inputs.

    Attributes:
        logits: What the network says, (rows, classes) or more axes.
        temperature: (rows,).
        novelty: (rows,); `None` if nothing is known about distances.
        model_share: The model's share of p (1 - p), (rows,).
        notes: What a user should know.
    """

    logits: Tensor
    temperature: Tensor
    novelty: Tensor | None
    model_share: Tensor
    notes: tuple[str, ...]


def cool(logits: Tensor, temperature: Tensor) -> Tensor:  # (points * rows, classes, ...), (rows,)
    """Logits at one or several points divided by the temperature of their input."""
    points = len(logits) // max(1, len(temperature))
    return logits / temperature.to(logits).repeat(points).reshape(-1, *(1,) * (logits.dim() - 1))


def threshold_quantile(*, dense: bool) -> float:
    """The quantile of the held-out distances from which the temperature grows."""
    return _OF_IMAGES if dense else KNOWN


def energy_of(logits: Tensor) -> Tensor:  # (rows, classes, ...) -> (rows,)
    """The log-sum-exp of the logits, averaged over pixels, tokens or labels."""
    return logits.double().logsumexp(1).reshape(len(logits), -1).mean(1)


def novelty_score(logs: Tensor, energy: Tensor, weights: tuple[float, float]) -> Tensor:  # (rows,)
    """The log of the novelty but for a constant: both log distances, and a lack of energy.

    More energy than known inputs have makes nothing less new: far from all known inputs a network
    of ReLUs is surer without end (Hein et al. 2019).
    """
    weight, level = weights
    return logs @ logs.new_tensor(GROWTH) + weight * (level - energy.to(logs)).clamp(min=0)


def weigh_energy(logs: Tensor, energy: Tensor) -> tuple[float, float]:
    """The weight of the energy beside the distances, and the energy of most held-out inputs.

    By their interquartile ranges it counts twice as much as the distances. With one time as much
    the mean AUROC of nine unknown sets is .966 and not .973 on ResNet-20, .957 and not .958 on -32.
    """
    level, distances = float(energy.quantile(KNOWN)), logs @ logs.new_tensor(GROWTH)
    low, high = torch.stack([distances, energy]).quantile(logs.new_tensor([1 - KNOWN, KNOWN]), 1)
    spread = high - low
    return (float(2 * spread[0] / spread[1]), level) if spread[1] > 0 else (0.0, level)


def best_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """The temperature of least categorical NLL; `None` if the labels contradict no prediction.

    Of one draw, (1, labels, classes) or (labels, classes), by halving: the NLL is convex in
    b = 1 / T, and its slope is the mean of E[logit] - logit of the label, E by softmax(b logits).
    Of several draws the probabilities are averaged.
    """
    logits = logits.double().reshape(-1, *logits.shape[-2:])
    index = labels.long().expand(len(logits), -1)[..., None]
    chosen = logits.gather(2, index)[..., 0]

    def slope(log_t: float) -> float:
        p = (logits / math.exp(log_t)).softmax(2)
        return float(((p * logits).sum(2) - chosen).mean())

    def nll(t: Tensor) -> Tensor:  # (1,)
        log_p = (logits / t.to(logits.device)).log_softmax(2).gather(2, index)[..., 0]
        return -log_p.logsumexp(0).mean()[None]

    low, high = math.log(_LOW), math.log(_HIGH)
    if slope(low) <= 0:
        return None
    check_minimum(at_zero=False, at_infinity=slope(high) >= 0)
    if len(logits) > 1:
        return float(log_minimum(nll, _LOW, _HIGH))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) < 0 else (middle, high)
    return math.exp((low + high) / 2)


def check_minimum(*, at_zero: bool, at_infinity: bool) -> None:
    """An error if no finite temperature has the least NLL."""
    if at_zero:
        raise ValueError(
            "The held-out NLL keeps falling toward temperature 0: all predictions are right. Give "
            "more held-out data, with some mistakes in it."
        )
    if at_infinity:
        raise ValueError(
            "The held-out NLL keeps falling toward infinite temperature: the predictions are no "
            "better than chance. Do the labels belong to these inputs?"
        )
