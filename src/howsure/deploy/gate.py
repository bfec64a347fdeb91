"""Decides when to accept a prediction: a threshold, with hysteresis, or a blend with a fallback."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from howsure.moments.value import Moments
from howsure.posterior.novelty import quantile_at
from howsure.posterior.temperature import TemperatureModel
from howsure.posterior.variance_model import VarianceModel
from howsure.prediction import Prediction
from howsure.trees import brief, has_values

By = Literal["std", "variance", "novelty"]


@dataclass(frozen=True, eq=False, repr=False)
class Gate:
    """Accepts a prediction if its uncertainty is at most a threshold.

    The paper's closed-loop controller applies its network only where the uncertainty is at most
    five times its mean on held-out data (Loquercio, Segu & Scaramuzza 2020, Sec. IV-A, Table IV).
    `Gate.fit` sets that threshold. The paper does not say what the uncertainty of several outputs
    is; here it is their mean, or each output has its own threshold.

    Attributes:
        threshold: Largest uncertainty that is accepted; a number, or one for each output.
        shape: The shape of one sample's outputs; `()` for a single number.
        by: Whether the uncertainty is a std, a variance, or the novelty of a prediction.
        joint: Whether the outputs of a sample are accepted together, by their mean uncertainty.

    Examples:
        >>> held_out, new = torch.full((100, 1), 0.01), torch.tensor([[0.01], [4.0]])
        >>> gate = hs.Gate.fit(held_out, k=5)  # variances: at most 5 times the mean std
        >>> gate(new)
        tensor([ True, False])
    """

    threshold: float | Tensor
    shape: tuple[int, ...] = ()
    by: By = "std"
    joint: bool = True

    def __repr__(self) -> str:
        """What is trusted, in one line."""
        outputs = "" if self.joint else ", each output by itself"
        return f"Gate({self.by} up to {brief(self.threshold)}{outputs})"

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(f"`by` is {self.by!r}; it must be one of {get_args(By)}.")
        if not bool((torch.as_tensor(self.threshold) > 0).all()):
            raise ValueError(
                f"The threshold is {self.threshold} and must be positive. If it was fitted, all "
                "held-out variances of an output are 0: were noise and dropout on?"
            )

    @classmethod
    def fit(
        cls,
        variances: Tensor | Iterable[Tensor],  # (N, ...), or batches of it
        *,
        k: float = 5.0,
        by: By = "std",
        joint: bool = True,
    ) -> Gate:
        """The gate at `k` times the mean uncertainty of held-out predictions.

        Args:
            variances: Total variances of held-out predictions, one row for each sample; a tensor,
                or anything that gives batches, such as a generator over a loader.
            k: How many times the mean uncertainty is accepted.
            by: Whether `k` counts stds or variances. 5 times the std is 25 times the variance.
            joint: Accept all outputs of a sample or none, by their mean uncertainty.
        """
        if not 0 < k < float("inf"):
            raise ValueError(f"`k` is {k}; give a positive number, such as 5.")
        total, count = None, 0
        for batch in [variances] if isinstance(variances, Tensor) else variances:
            if batch.dim() == 0 or not bool(((batch >= 0) & batch.isfinite()).all()):
                raise ValueError(
                    "`variances` has no batch dimension, or is negative, NaN or infinite "
                    "somewhere; give the total variances of held-out predictions, (N, ...)."
                )
            value = batch.detach().cpu().double()  # not every device has float64
            part = (value.sqrt() if by == "std" else value).sum(0)
            if total is not None and part.shape != total.shape:
                raise ValueError(
                    f"`variances` has outputs of the shapes {tuple(total.shape)} and "
                    f"{tuple(part.shape)}; all batches must have the same."
                )
            total, count = part if total is None else total + part, count + len(batch)
        if total is None or count == 0:
            raise ValueError("`variances` is empty; give the variances of held-out predictions.")
        mean = (total / count).to(torch.get_default_dtype())
        return cls(k * (mean.mean() if joint else mean), tuple(mean.shape), by, joint)

    @classmethod
    def on_novelty(
        cls, model: VarianceModel | TemperatureModel | None, *, level: float = 0.99
    ) -> Gate:
        """The gate that rejects inputs that are more novel than nearly all held-out ones.

        Examples:
            >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
            >>> x = torch.randn(200, 3)
            >>> y = model(x).detach() + 0.1 * torch.randn(200, 1)
            >>> sure = hs.Uncertain(model)
            >>> found = sure.fit(x, y, show_progress=False)
            >>> gate = hs.Gate.on_novelty(sure.setup.variance_model)
            >>> gate(sure(torch.full((1, 3), 50.0)).joint_novelty)
            tensor([False])

        Args:
            model: What `fit` found: `sure.setup.variance_model`, or `temperature_model` for
                classes.
            level: Share of the held-out inputs that pass, between 0 and 1.
        """
        quantiles = None if model is None else model.novelty_quantiles
        if quantiles is None:
            raise ValueError(
                "There is no novelty: fit a posterior first, or for classes a temperature that "
                "depends on the input, `sure.fit(held_out)`."
            )
        if not 0 < level <= 1:
            raise ValueError(f"`level` must be between 0 and 1, not {level}.")
        return cls(quantile_at(quantiles, level), by="novelty")

    def uncertainty(self, var: Tensor) -> Tensor:
        """What is compared with the threshold: `(...)` if joint, else `(..., *shape)`."""
        batch_dims = var.dim() - len(self.shape)
        if batch_dims < 0 or tuple(var.shape[batch_dims:]) != self.shape:
            raise ValueError(
                f"`var` has shape {tuple(var.shape)} and the gate was made for outputs of shape "
                f"{self.shape}, with or without a batch in front."
            )
        value = var.sqrt() if self.by == "std" else var
        return value.flatten(batch_dims).mean(-1) if self.joint and self.shape else value

    def __call__(self, var: Tensor | Prediction) -> Tensor:
        """Whether to accept: a bool for each sample if joint, else for each output.

        Of a prediction it takes the total variance, or the joint novelty. A variance that is NaN or
        negative is rejected.
        """
        if isinstance(var, Prediction) and self.by == "novelty":
            if var.joint_novelty is None:
                raise ValueError("This prediction has no novelty; `fit` the model first.")
            var = var.joint_novelty
        elif isinstance(var, Prediction):
            var = var.total_var
        value, limit = self.uncertainty(var), self.threshold
        limit = limit.to(value.device) if isinstance(limit, Tensor) else limit
        return (value <= limit) & (value >= 0)

    def select(self, mean: Tensor, var: Tensor, fallback: float | Tensor = 0.0) -> Tensor:
        """`mean` where it is accepted, else `fallback`."""
        trusted = self(var)
        if self.joint:
            trusted = trusted.reshape(trusted.shape + (1,) * len(self.shape))
        return torch.where(trusted, mean, torch.as_tensor(fallback).to(mean))

    def with_hysteresis(self, *, ratio: float = 0.6, hold: int = 1) -> HysteresisGate:
        """The gate that starts to reject at this threshold and accepts again at `ratio` times it.

        With k = 5 and the default ratio it rejects from 5 times the mean, and accepts below 3
        times.
        """
        if not 0 < ratio <= 1:
            raise ValueError(f"`ratio` is {ratio}; give a number above 0 and at most 1.")
        return HysteresisGate(
            enter=dataclasses.replace(self, threshold=ratio * self.threshold), leave=self, hold=hold
        )


class HysteresisState(NamedTuple):
    """The state of a `HysteresisGate` between two steps."""

    trusted: Tensor  # bool, like what `Gate` returns
    calm: Tensor  # how many steps in a row `enter` has passed


@dataclass(frozen=True, eq=False)
class HysteresisGate:
    """A gate that does not chatter; made by `Gate.with_hysteresis`.

    Attributes:
        enter: Gate that must pass before predictions are accepted again.
        leave: Gate that must pass while predictions are accepted; its threshold is higher.
        hold: How many steps in a row `enter` must pass.
    """

    enter: Gate
    leave: Gate
    hold: int = 1

    def __post_init__(self) -> None:
        if self.hold < 1:
            raise ValueError(f"`hold` is {self.hold}; give at least 1 step.")

    def update(self, state: HysteresisState | None, var: Tensor) -> tuple[HysteresisState, Tensor]:
        """The next state, and whether to accept now; start with `None`, which accepts nothing.

        Pure: `state` is not changed, so keep the one that is returned.
        """
        enters, stays = self.enter(var), self.leave(var)
        calm = enters.long() if state is None else torch.where(enters, state.calm + 1, 0)
        wins = calm >= self.hold
        trusted = wins if state is None else torch.where(state.trusted, stays, wins)
        return HysteresisState(trusted, calm), trusted


def blend(
    mean: Tensor, var: Tensor, fallback_mean: float | Tensor, fallback_var: float | Tensor
) -> Moments:
    """Mean and variance of two independent estimates of the same thing, weighted by precision.

    mean = (m1 / v1 + m2 / v2) / (1 / v1 + 1 / v2), var = 1 / (1 / v1 + 1 / v2): the product of two
    Gaussians. A variance of 0 takes its mean exactly, an infinite one leaves it out; of two equal
    variances, also both 0 or both infinite, each mean counts half. Where the errors of the two are
    correlated, the variance is too small.

    Examples:
        >>> sure, fallback = torch.tensor([1.0]), torch.tensor([3.0])
        >>> hs.blend(sure, torch.tensor([0.1]), fallback, 0.1).mean
        tensor([2.])
    """
    m1, m2 = torch.broadcast_tensors(mean, torch.as_tensor(fallback_mean).to(mean))
    v1, v2 = torch.broadcast_tensors(var, torch.as_tensor(fallback_var).to(var))
    if has_values(v1) and has_values(v2) and bool(((v1 < 0) | (v2 < 0)).any()):
        raise ValueError("`var` or `fallback_var` is negative; give variances of 0 or more.")
    equal, low, high = v1 == v2, torch.minimum(v1, v2), torch.maximum(v1, v2)
    weight = torch.where(equal, 0.5, 1 / (1 + v1 / v2)).to(m1.dtype)
    blended = torch.where(equal, v1 / 2, low / (1 + low / high))
    mixed = torch.lerp(m2, m1, weight)
    # An estimate of weight 0 may be NaN or infinite.
    return Moments(torch.where(weight == 0, m2, torch.where(weight == 1, m1, mixed)), blended)
