"""What is found out about a sensor from its readings, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from howsure.noise.constant import Constant
from howsure.noise.signal import PoissonGaussian
from howsure.values.brief import brief


@dataclass(frozen=True, eq=False, repr=False)
class Identified:
    """A noise of constant variance, estimated from readings.

    Attributes:
        noise: The noise, in the units of the readings.
        std_error: Standard error of `noise.var`, of the same shape; it says how far chance alone
            moves the estimate, not how wrong its assumptions are.
    """

    noise: Constant
    std_error: float | Tensor

    def __repr__(self) -> str:
        """The noise and its error in one line."""
        return f"Identified({self.noise}, standard error {brief(self.std_error)})"


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
