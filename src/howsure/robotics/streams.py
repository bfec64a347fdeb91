"""Intervals for a stream of predictions whose noise drifts: adaptive conformal inference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure.calibrate.calibrators import Residuals, mean_and_var
from howsure.calibrate.conformal import interval_around
from howsure.files import check_archive, write_atomically
from howsure.prediction import Prediction

_FORMAT = "howsure adaptive conformal 1"


@dataclass(eq=False, repr=False)
class AdaptiveConformal:
    """Intervals mean -+ q * std that hold their coverage on a stream, however it drifts.

    q is the quantile of the last `window` scores |target - mean| / std at the level 1 - alpha, and
    alpha follows the misses: alpha <- alpha + rate * (1 - level - missed), 1 for a miss and 0
    for a hit (Gibbs & Candes 2021, "Adaptive conformal inference under distribution shift"). Over
    any T steps, without assumptions on the data, the share of misses is within
    (max(level, 1 - level) + rate) / (rate * T) of 1 - level. The price: after many misses an
    interval may be infinite (alpha <= 0), after many hits empty (alpha >= 1).

    Each output has its own alpha and is covered by itself. Memory does not grow: `window` scores
    for each output.

    Attributes:
        level: The share of targets to cover.
        rate: How fast alpha follows; larger reacts faster and makes the width less steady. The
            paper takes 0.005.
        window: How many scores are kept.
        scores: Those kept, oldest first; `None` before the first target.
        alpha: The share of misses aimed at, for each output.
        missed: How many targets were missed, for each output.
        steps: How many targets came.

    Examples:
        >>> online = hs.robotics.AdaptiveConformal(level=0.9)
        >>> p = hs.Prediction(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1))
        >>> low, high = online.interval(p)
        >>> online.update(p, torch.tensor([[0.5]]))
        AdaptiveConformal(level 0.9, 1 steps, 100 % covered)
    """

    level: float = 0.9
    rate: float = 0.005
    window: int = 500
    scores: Tensor | None = field(default=None, init=False)  # (n, *outputs), n <= window
    alpha: Tensor | None = field(default=None, init=False)  # (*outputs)
    missed: Tensor | None = field(default=None, init=False)  # (*outputs)
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not (0 < self.level < 1 and 0 < self.rate < 1):
            raise ValueError(
                f"`level` is {self.level} and `rate` is {self.rate}; give numbers between 0 and 1."
            )
        # With fewer scores, even the widest is below the quantile and every interval infinite.
        least = math.ceil(1 / (1 - self.level)) - 1
        if not self.window >= max(1, least):
            raise ValueError(
                f"`window` is {self.window}; a level of {self.level} needs at least {least} scores."
            )

    def __repr__(self) -> str:
        """The level and what was seen: `AdaptiveConformal(level 0.9, 1000 steps, 89.8 %)`."""
        covered = f", {100 * float(self.coverage.mean()):.3g} % covered" if self.steps else ""
        return f"AdaptiveConformal(level {self.level:g}, {self.steps} steps{covered})"

    @property
    def coverage(self) -> Tensor:
        """The share of targets that were covered so far, for each output."""
        if self.missed is None or self.steps == 0:
            raise ValueError("No targets yet; `update` brings them.")
        return 1 - self.missed.double() / self.steps

    def interval(self, prediction: Prediction) -> tuple[Any, Any]:
        """Lower and upper end for each input; infinite while there are too few scores.

        An empty interval, where alpha is 1 or more, is NaN at both ends.
        """
        mean, _ = mean_and_var(prediction)
        return interval_around(prediction, self._quantile(tuple(mean.shape[1:])).to(mean))

    def update(self, prediction: Prediction, target: Tensor) -> AdaptiveConformal:
        """Learns from targets, row by row in their order; changes the stream and returns it.

        Call it after `interval` with the same prediction. A target that comes late is judged by
        the interval that it would have now.
        """
        scores = Residuals.of(prediction, target, least=1).scores
        if self.scores is None:
            self._begin(scores[:0])
        for score in scores:
            self._step(score)
        return self

    def start(self, prediction: Prediction, target: Tensor) -> AdaptiveConformal:
        """Takes the scores of held-out data, so that the first intervals are finite."""
        scores = Residuals.of(prediction, target).scores[-self.window :]
        self.reset()._begin(scores.clone())
        return self

    def reset(self) -> AdaptiveConformal:
        """Forgets everything but the options: for a new sensor, or a new place."""
        self.scores = self.alpha = self.missed = None
        self.steps = 0
        return self

    def state(self) -> dict[str, object]:
        """Options and memory as plain data, which `torch.load(..., weights_only=True)` reads."""
        names = ("level", "rate", "window", "scores", "alpha", "missed", "steps")
        return {"format": _FORMAT, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AdaptiveConformal:
        """The stream whose `state()` it was."""
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
            raise ValueError("This is not the state of an `AdaptiveConformal`.")
        stream = cls(state["level"], state["rate"], state["window"])
        scores, alpha, missed = (state[name] for name in ("scores", "alpha", "missed"))
        if scores is None:
            return stream
        # Parts that do not fit would give a wrong interval.
        fit = alpha.shape == missed.shape == scores.shape[1:] and len(scores) <= stream.window
        if not (fit and bool((scores >= 0).all()) and bool(alpha.isfinite().all())):
            raise ValueError(
                "The state is damaged: its scores, alpha and counts do not fit together."
            )
        stream.scores, stream.alpha, stream.missed = scores.clone(), alpha.clone(), missed.clone()
        stream.steps = int(state["steps"])
        return stream

    def save(self, path: str | Path) -> None:
        """Writes the state, whole or not at all."""
        write_atomically(Path(path), lambda file: torch.save(self.state(), file))

    @classmethod
    def load(cls, path: str | Path) -> AdaptiveConformal:
        """The stream that was saved; such a file cannot run code."""
        check_archive(Path(path))
        return cls.from_state(torch.load(Path(path), weights_only=True))

    def _begin(self, scores: Tensor) -> None:
        self.scores = scores
        self.alpha = scores.new_full(scores.shape[1:], 1 - self.level)
        self.missed = torch.zeros_like(self.alpha, dtype=torch.int64)

    def _step(self, score: Tensor) -> None:
        assert self.scores is not None and self.alpha is not None and self.missed is not None
        # Nothing is inside an empty interval, whose quantile is NaN.
        missed = ~(score <= self._quantile(tuple(score.shape)))
        self.alpha = self.alpha + self.rate * (1 - self.level - missed.double())
        self.missed = self.missed + missed
        self.steps += 1
        self.scores = torch.cat([self.scores, score[None]])[-self.window :]

    def _quantile(self, shape: tuple[int, ...]) -> Tensor:  # (*outputs)
        """The k-th smallest score, k = ceil((n + 1)(1 - alpha)); infinite beyond the last."""
        if self.scores is None or self.alpha is None:
            return torch.full(shape, math.inf, dtype=torch.float64)
        if tuple(self.scores.shape[1:]) != shape:
            raise ValueError(
                f"The stream has outputs of shape {tuple(self.scores.shape[1:])}; this prediction "
                f"has {shape}. `reset()` starts over."
            )
        n = len(self.scores)
        k = torch.ceil((n + 1) * (1 - self.alpha)).long()
        ends = self.scores.new_full((1, *shape), math.inf)
        ordered = torch.cat([self.scores.sort(0).values, ends])
        q = ordered.gather(0, (k.clamp(1, n + 1) - 1)[None])[0]
        return torch.where(self.alpha >= 1, math.nan, torch.where(self.alpha <= 0, math.inf, q))
