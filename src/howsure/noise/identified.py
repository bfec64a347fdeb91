"""What is found out about a sensor from its readings, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.arrays import brief
from howsure.noise.base import Noise
from howsure.noise.constant import Constant
from howsure.noise.signal import PoissonGaussian
from howsure.noise.structure import Structure


@dataclass(frozen=True, eq=False, repr=False)
class Identified:
    """A noise of constant variance, estimated from readings.

    Attributes:
        noise: The noise, in the units of the readings.
        std_error: Standard error of `noise.var`, of the same shape; it says how far chance alone
            moves the estimate, not how wrong its assumptions are.
        structure: How elements vary together; `None` where the readings do not tell.
    """

    noise: Constant
    std_error: float | Tensor
    structure: Structure | None = None

    def __repr__(self) -> str:
        """The noise and its error in one line."""
        words = ", correlated" if self.correlated.is_correlated else ""
        return f"Identified({self.noise}, standard error {brief(self.std_error)}{words})"

    @property
    def correlated(self) -> Noise:
        """The noise with what elements clearly have in common; of the same variance as `noise`."""
        if self.structure is None or not self.structure.is_correlated:
            return self.noise
        return self.structure.noise(self.noise.var)

    def numbers(self) -> dict[str, Tensor]:
        """Std, variance, and what elements have in common, with standard errors, in float64."""
        var, var_error = _double(self.noise.var), _double(self.std_error)
        std = var.sqrt()
        # d std = d var / (2 std), to first order
        std_error = var_error / (2 * std.clamp(min=torch.finfo(torch.float64).tiny))
        shared = {} if self.structure is None else self.structure.numbers()
        own = {"std": std, "std_error": std_error, "var": var, "var_error": var_error}
        return own | {name: _double(value) for name, value in shared.items()}

    def in_words(self) -> str:
        """The numbers in one line; in a second one how elements vary together."""
        shown = {name: _shown(value) for name, value in self.numbers().items()}
        numbers = "std {std} +- {std_error}, variance {var} +- {var_error}".format(**shown)
        return numbers if self.structure is None else f"{numbers}\n{self.structure.in_words()}"


@dataclass(frozen=True, eq=False, repr=False)
class CameraFit:
    """A camera's noise, fitted to readings; one fit, or one for each channel.

    Attributes:
        noise: The noise, in the units of the readings.
        gain_error: Standard error of `noise.gain`.
        read_var_error: Standard error of `noise.read_std**2`.
        rejected: The share of pixels left out because their variance does not fit.
    """

    noise: PoissonGaussian
    gain_error: float | Tensor
    read_var_error: float | Tensor
    rejected: float | Tensor

    def __repr__(self) -> str:
        """The noise and the share of pixels left out, in one line."""
        return f"CameraFit({self.noise}, rejected {brief(self.rejected)})"

    def numbers(self) -> dict[str, Tensor]:
        """Gain and variance in the dark with their standard errors, and the share left out."""
        return {
            "gain": _double(self.noise.gain),
            "gain_error": _double(self.gain_error),
            "read_var": _double(self.noise.read_std).square(),
            "read_var_error": _double(self.read_var_error),
            "rejected": _double(self.rejected),
        }

    def in_words(self) -> str:
        """The model and its numbers in two lines."""
        numbers = self.numbers()
        shown = {name: _shown(value) for name, value in numbers.items()}
        return (
            "variance = gain * (reading - black level) + read variance\n"
            "gain {gain} +- {gain_error}, read variance {read_var} +- {read_var_error}, "
        ).format(**shown) + f"{_shown(100 * numbers['rejected'])} % of the pixels left out"


def _double(value: float | Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def _shown(values: Tensor) -> str:
    """One number; of several the range."""
    if values.numel() == 1:
        return f"{float(values):.4g}"
    return f"{float(values.min()):.4g} to {float(values.max()):.4g}"
