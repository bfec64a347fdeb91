"""What a fit of the temperature is asked for, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from howsure.fit.options import KnownOptions
from howsure.fit.stress import Stress
from howsure.methods.temperature import TemperatureModel
from howsure.posterior.variance_model import LEVELS, quantile_at


@dataclass(frozen=True, kw_only=True)
class TemperatureSearch(KnownOptions):
    """The options of `Uncertain.fit(model="temperature")`: those of `KnownOptions`.

    Without `stress` log T grows by 0.5 and 1 times the log distances; without `growth` it is one
    for all inputs.

    Attributes:
        stress: As for others; "auto" takes those of images for some of the inputs, if they look
            like images and have one label each.
    """

    stress: Stress | None = "auto"


@dataclass(frozen=True, eq=False, repr=False)
class TemperatureFit:
    """What was found, and how well it does on the held-out data.

    Attributes:
        model: The temperature model.
        count: Held-out inputs.
        known: Inputs to which distances are taken.
        cross_fitted: Whether these were the held-out ones, in folds.
        accuracy: Of the network.
        nll: Mean categorical NLL of the held-out labels.
        constant_nll: At the constant temperature.
        plain_nll: At temperature 1: what the network says by itself.
        ece: Expected calibration error, a share of 1.
        plain_ece: At temperature 1.
        stressed_nll: Mean NLL on the corrupted inputs, where there were any.
        constant_stressed_nll: At the constant temperature.
    """

    model: TemperatureModel
    count: int
    known: int
    cross_fitted: bool
    accuracy: float
    nll: float
    constant_nll: float
    plain_nll: float
    ece: float
    plain_ece: float
    stressed_nll: float | None = None
    constant_stressed_nll: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """What was found as plain data, without the known inputs themselves."""
        model = self.model
        return {
            "temperature": model.temperature,
            "growth": list(model.growth),
            "thresholds": model.thresholds.tolist(),
            "layers": [] if model.distances is None else list(model.distances.wanted),
            "novelty_quantiles": {level: quantile_at(model.quantiles, level) for level in LEVELS},
            "notes": list(model.notes),
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"},
        }

    def __repr__(self) -> str:
        """The temperature, the NLL and what it was found on, in one line."""
        found = f"temperature {self.model.temperature:.3g}, NLL {self.nll:.3f}"
        return f"TemperatureFit({found}, {self.count} inputs)"

    def __str__(self) -> str:
        """What was fitted and on what, in words."""
        lines = [
            f"temperature {self.model.temperature:.4g} fitted on {self.count} held-out inputs: NLL "
            f"{self.constant_nll:.4f}, of the network itself {self.plain_nll:.4f}; accuracy "
            f"{100 * self.accuracy:.1f} %",
            f"calibration error (ECE) {100 * self.ece:.1f} %, of the network itself "
            f"{100 * self.plain_ece:.1f} %",
            *self._distances(),
            *self.model.notes,
        ]
        if self.stressed_nll is not None:
            lines.append(
                f"NLL on the corrupted inputs {self.stressed_nll:.4f}, at the constant temperature "
                f"{self.constant_stressed_nll:.4f}"
            )
        return "\n".join(lines)

    def _distances(self) -> list[str]:
        found = self.model.distances
        if found is None:
            return []
        where = "the held-out inputs, in five folds" if self.cross_fitted else "unlabelled inputs"
        one, two = self.model.growth
        near = ""
        if found.neighbours is not None:
            kept = len(found.neighbours)
            near = f"{one:g} times the log squared distance to the 6th of {kept} neighbours, and "
        return [
            f"it grows with the distance from {self.known} of {where}, NLL {self.nll:.4f}: by "
            f"{near}{two:g} times the log Mahalanobis distance over {len(found.layers)} layers, "
            f"beyond that of {100 * self.model.grows_from:.0f} % of the held-out inputs",
        ]
