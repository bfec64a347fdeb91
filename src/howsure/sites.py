"""The ledger of noise sources: what enters a network from outside, and what it makes itself.

A *source* is a leaf: a sensor's reading, or the mask of a dropout layer, which is a noisy input
with mean 1 and variance c = p / (1 - p) that multiplies the activations. A *remainder* is what a
nonlinear operation adds beyond first order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.call_site import CallSites
from howsure.correlated import product, square_sum
from howsure.gaussian import Gaussian
from howsure.moments import Moments, variance_dtype
from howsure.probes import ProbeInterpreter
from howsure.registry import Rule, Target
from howsure.responses import Bend, Probed, Response
from howsure.signs import batch_axis

SENSOR, MASK = "input", "dropout"


@dataclass(frozen=True, eq=False)
class Source:
    """Noise that enters from outside.

    Attributes:
        name: The input, or the layer that is dropped.
        kind: "input" or "dropout".
        mean: The leaf with respect to which the outputs are differentiated.
        var: Its variance, which broadcasts to the mean.
        axis: The axis of `mean` that counts the inputs of the batch.
    """

    name: str
    kind: str
    mean: Tensor
    var: Tensor
    axis: int


@dataclass(frozen=True, eq=False)
class Remainder:
    """What one operation adds beyond first order.

    Attributes:
        mean: The operation's output.
        axis: The axis of `mean` that counts the inputs of the batch.
        bends: Its quadratic part with the directions behind it.
        rest: Variance beyond, independent in each element; `None` for nothing.
        shares: The data's and the model's shares of `rest`; `None` where there is one kind of
            source only.
    """

    mean: Tensor
    axis: int
    bends: tuple[Bend, ...]
    rest: Tensor | None
    shares: tuple[Tensor, Tensor] | None = None

    @property
    def has_channels_last(self) -> bool:
        """Whether the output is a batch of images whose channels are last in memory."""
        last = self.mean.dim() == 4 and self.mean.is_contiguous(memory_format=torch.channels_last)
        return last and self.axis == 0 and not self.mean.is_contiguous()


class RowsMixedError(RuntimeError):
    """The inputs of a batch share an axis with something else: analyse them one by one."""


class UndrawnMask:
    """Stands where a dropout mask would be: multiplying by it makes the noise of the mask."""

    def __init__(
        self, ledger: LedgerInterpreter, name: str, units: tuple[int, ...], rate: float
    ) -> None:
        self.ledger, self.name, self.units, self.rate = ledger, name, units, rate

    def to(self, **_: Any) -> UndrawnMask:
        """Itself: it takes dtype and device from what it multiplies."""
        return self

    def __rmul__(self, data: Any) -> Any:
        """The data with the noise of the mask."""
        return self.ledger.dropped(data, self)


class LedgerInterpreter(ProbeInterpreter):
    """Propagation that notes every source and remainder, with the means' derivatives kept.

    Without probes the variances are those of the rules, for independent elements. With sensors and
    masks both, the first `of_sensors` probes carry what the sensors cause, the others the rest.
    """

    def __init__(
        self,
        overrides: Mapping[Target, Rule] | None,
        sites: CallSites,
        fallback: str = "error",
        *,
        count: int,
        seed: int = 0,
        names: tuple[str, ...] = (),
        of_sensors: int | None = None,
    ) -> None:
        super().__init__(overrides, sites, fallback, count=count, seed=seed)
        self.of_sensors = of_sensors
        self.names = iter(names)
        self.sources: list[Source] = []
        self.masks: dict[str, Probed] = {}
        self.remainders: list[Remainder] = []

    def enter(self, moments: Moments) -> Gaussian:
        """A noisy input, noted as a source."""
        mean = moments.mean.detach().clone().requires_grad_()
        name = next(self.names, f"input {len(self.sources)}")
        self.sources.append(Source(name, SENSOR, mean, moments.var, 0))
        return super().enter(Moments(mean, moments.var))

    def sprayed(self, moments: Moments, kind: str = SENSOR) -> Probed:
        """Independent noise as probes: all of them, or those of its kind."""
        if self.of_sensors is None:
            return super().sprayed(moments)
        mean, var, none = moments.mean, moments.var, torch.zeros_like(moments.var)
        variances = (var, none) if kind == SENSOR else (none, var)
        directions = self.renewed_by_kind(self.nothing(mean), variances, mean)
        return Probed(mean, var, None, directions)

    def renewed_by_kind(
        self, probes: Tensor, variances: tuple[Tensor, Tensor], like: Tensor
    ) -> Tensor:
        """The directions with new ones of what sensors and of what masks cause."""
        assert self.of_sensors is not None
        parts = probes[: self.of_sensors], probes[self.of_sensors :]
        pairs = zip(parts, variances, strict=True)
        return torch.cat([self.renewed(part, var, like) for part, var in pairs])

    def dropped(self, data: Any, mask: UndrawnMask) -> Gaussian:
        """The data times a mask that is not drawn: E = m, J F = F + m G, r = c v."""
        x = self.as_probed(data.read() if isinstance(data, Gaussian) else _constant(data))
        if self.batch is None:
            self.batch = x.mean.shape[0]
        if mask.name not in self.masks:
            self.masks[mask.name] = self._mask(mask, x.mean)
        return self.finished(product(x, self.masks[mask.name], independent=True))

    def _mask(self, mask: UndrawnMask, like: Tensor) -> Probed:
        """A leaf of ones for every unit and input; elements that share a unit broadcast."""
        axes = like.dim() - len(mask.units)
        shape = [1] * axes + list(mask.units)
        axis = self.rows_of(like)
        shape[axis] = like.shape[axis]
        ones = torch.ones(shape, dtype=like.dtype, device=like.device, requires_grad=True)
        c = mask.rate / (1 - mask.rate)
        var = torch.full(shape, c, dtype=variance_dtype(like.dtype), device=like.device)
        self.sources.append(Source(mask.name, MASK, ones, var, axis))
        return self.sprayed(Moments(ones, var), MASK)

    @property
    def has_masks_only(self) -> bool:
        """Whether all noise is the model's."""
        return all(source.kind == MASK for source in self.sources)

    def rows_of(self, tensor: Tensor) -> int:
        """The axis that counts the inputs of the batch."""
        axis = batch_axis(tensor.shape, self.batch)
        if axis is None:
            raise RowsMixedError
        return axis

    def with_innovation(self, response: Response) -> Probed:
        """The moments after an operation, with its remainder noted."""
        out, shares = self._by_kind(response)
        if response.innovation is not None and out.mean.requires_grad:
            pairs = self.count > 1  # A form is known by pairs of different probes.
            bends = response.bends if pairs else ()
            rest = response.rest if pairs else response.innovation
            axis = self.rows_of(out.mean)
            self.remainders.append(Remainder(out.mean, axis, bends, rest, shares))
        return out

    def _by_kind(self, response: Response) -> tuple[Probed, tuple[Tensor, Tensor] | None]:
        """The moments after an operation, and the data's and the model's shares of what is new."""
        beyond = response.innovation
        if self.of_sensors is None or beyond is None:
            return super().with_innovation(response), None
        data = square_sum(response.probes[: self.of_sensors])
        model = square_sum(response.probes[self.of_sensors :])
        shares = _shares(data, model)
        new = (beyond * shares[0], beyond * shares[1])
        probes = self.renewed_by_kind(response.probes, new, response.mean)
        return Probed(response.mean, data + model + beyond, None, probes), shares


def _shares(data: Tensor, model: Tensor) -> tuple[Tensor, Tensor]:
    """1 - rho**2 and rho**2, with rho the masks' share of the first-order variance.

    Of pairs of noises that interact, rho**2 are both the masks'; all others are the data's.
    1 - rho**2 = (1 - rho) (1 + rho), which loses no digits where the masks rule.
    """
    total = data + model
    some = torch.where(total > 0, total, torch.ones_like(total))
    rho, rest = model / some, torch.where(total > 0, data / some, torch.ones_like(total))
    return rest * (1 + rho), rho.square()


def _constant(data: Tensor) -> Moments:
    return Moments(data.detach(), torch.zeros_like(data, dtype=variance_dtype(data.dtype)))
