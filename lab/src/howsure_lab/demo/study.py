"""The demonstration's work: what the camera reads, what howsure says of it, beside what is true."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import howsure as hs
from howsure import Gate, metrics, report
from howsure.fit import PosteriorFit
from howsure.metrics import rank_correlation
from howsure.prediction import Prediction, concatenated
from howsure.report import Report
from howsure.uncertain import Uncertain
from howsure_lab.experiments.steering.model import load_trained
from howsure_lab.experiments.steering.scenes import draw_scenes, render, steering
from howsure_lab.experiments.steering.ship import NOISE_STD, SIZE
from howsure_lab.experiments.training import Pairs

BATCH = 50


@dataclass(frozen=True)
class Condition:
    """A name, the kind of scenes, and the camera's noise, which howsure is told."""

    name: str
    scenes: str  # one of `howsure_lab.experiments.steering.scenes.CONDITIONS`
    noise_std: float = NOISE_STD

    @property
    def noise(self) -> hs.noise.Noise:
        """The noise as howsure is told it."""
        return hs.noise.std(self.noise_std)


CLEAR = Condition("clear", "clear")
NOISY = Condition("noisy", "clear", 3 * NOISE_STD)
# The network was trained on clear scenes only; of these three nobody has told it anything.
UNSEEN = (
    Condition("night", "night"),
    Condition("fog", "fog"),
    Condition("no lane", "missing_lane"),
)
CONDITIONS = (CLEAR, NOISY, *UNSEEN)


@dataclass(frozen=True)
class Roads:
    """Which roads: every condition shows the same ones, with the same vehicles on them."""

    count: int
    # No seed from 0 up gives roads of the training, validation or test data of the steering
    # experiment.
    seed: int

    def clean(self, condition: Condition = CLEAR) -> Pairs:
        """Images without the camera's noise, (count, 1, 64, 64), and angles, (count, 1)."""
        return _drawn(self.count, 1000 * (self.seed + 1), condition.scenes)

    def read(self, condition: Condition = CLEAR) -> Pairs:
        """Images as the camera reads them; the report draws the same noise from the seed."""
        clean = self.clean(condition)
        generator = torch.Generator().manual_seed(self.seed)
        parts = [condition.noise.sample(part, generator) for part in clean.x.split(BATCH)]
        return Pairs(torch.cat(parts), clean.y)

    def held_out(self) -> Pairs:
        """Twice as many other clear roads, with the camera's noise, to fit on."""
        clean = _drawn(2 * self.count, 1000 * (self.seed + 1) + 1, CLEAR.scenes)
        return clean.with_noise(NOISE_STD**2, 1000 * (self.seed + 1) + 2)


def _drawn(count: int, seed: int, condition: str) -> Pairs:
    scenes = draw_scenes(count, seed, condition)
    return Pairs(render(scenes, SIZE), steering(scenes))


class Outcome:
    """Readings of a condition, their true angles, and the predictions; angles are in radians."""

    def __init__(self, condition: Condition, pairs: Pairs, prediction: Prediction) -> None:
        self.name, self.condition = condition.name, condition
        self.pairs, self.prediction = pairs, prediction
        self.mean = prediction.mean.flatten()  # (n,), predicted angles
        self.var = prediction.total_var.flatten()
        self.std = self.var.sqrt()
        self.mean_std = float(self.std.mean())
        self.true = pairs.y.flatten()  # the driver's angles
        self.rmse = float(metrics.rmse(self.mean, self.true))
        nu = prediction.degrees_of_freedom
        # Without 1/2 log 2 pi.
        self.nll = float(metrics.nll(self.mean, self.var, self.true, degrees_of_freedom=nu))
        low, high = (end.flatten() for end in prediction.interval(0.95))
        self.coverage = float(((low <= self.true) & (self.true <= high)).double().mean())
        # Of the variance from the camera's noise; the network has the rest.
        self.sensor_share = float(prediction.data_var.sum() / prediction.total_var.sum())
        novelty = prediction.joint_novelty
        # How new each scene is: above 1 for a quarter of the held-out roads; NaN without a fit.
        self.novelties = torch.full_like(self.var, math.nan) if novelty is None else novelty
        self.novelty = float(self.novelties.median())

    def nll_of_one_std(self, std: float) -> float:
        """The NLL if every prediction had this std."""
        return float(metrics.nll(self.mean, torch.full_like(self.var, std**2), self.true))

    def coverage_of_one_std(self, std: float) -> float:
        """The share of true angles inside the 95 % interval if every prediction had this std."""
        var = torch.full_like(self.var, std**2)
        return float(metrics.coverage(self.mean, var, self.true, level=0.95))

    @property
    def rank(self) -> float:
        """Rank correlation of predicted std and absolute error."""
        return float(rank_correlation(self.std, (self.mean - self.true).abs()))

    def rejected(self, gate: Gate) -> float:
        """Share of the scenes that a gate on the novelty does not trust."""
        return float((~gate(self.novelties)).float().mean())

    @property
    def rank_if_right(self) -> float:
        """What the rank correlation would be, on average, if every std were exactly right.

        Errors are random: even then a scene with a large std may have a small error.
        """
        generator = torch.Generator().manual_seed(0)
        draws = torch.randn(200, len(self.std), generator=generator).abs()
        return float(torch.stack([rank_correlation(self.std, d * self.std) for d in draws]).mean())

    def auroc_against(self, other: Outcome) -> float:
        """AUROC: how often a scene of this condition has a larger std than one of the other."""
        return float(metrics.out_of_distribution_auroc(other.std, self.std))

    @property
    def by_certainty(self) -> list[int]:
        """Positions of the scenes, the smallest predicted std first."""
        return self.var.argsort(stable=True).tolist()


@dataclass(frozen=True, eq=False)
class Study:
    """The tuned network and what it says under every condition."""

    roads: Roads  # what the camera looks at
    sure: Uncertain  # the network with howsure around it, tuned on held-out clear roads
    one_std: float  # the network's RMSE on those: the best std that is the same for all scenes
    outcomes: tuple[Outcome, ...]  # one for each condition, clear first

    @property
    def clear(self) -> Outcome:
        """The condition that the network knows."""
        return self.outcomes[0]

    @property
    def fit(self) -> PosteriorFit:
        """What was fitted on the held-out roads."""
        fit = self.sure.last_fit
        assert isinstance(fit, PosteriorFit)
        return fit

    @property
    def gate(self) -> hs.Gate:
        """What rejects roads that are newer than 95 % of the held-out ones."""
        return hs.Gate.on_novelty(self.sure.setup.variance_model, level=0.95)

    def told(self, outcome: Outcome) -> str:
        """What howsure was told about a condition."""
        if outcome is self.clear:
            return "(known)"
        return "(noise level given)" if outcome.condition.name == NOISY.name else "(unseen)"

    @property
    def method(self) -> str:
        """The method that made the predictions; several where "auto" chose differently."""
        return ", ".join(dict.fromkeys(outcome.prediction.method for outcome in self.outcomes))

    def report(self) -> Report:
        """The report on clear roads, with a slider over cameras up to the noisy one."""
        factors = (0.5, 1.0, 2.0, NOISY.noise_std / CLEAR.noise_std)
        options = report.Options(
            title="How sure is the steering network?",
            noise_levels=factors,
            inputs="clean",
            names=("steering angle in radians",),
            images=self.clear.pairs.x,
        )
        batches = self.roads.clean().batches(BATCH)
        return report.build(self.sure, batches, options=options, show_progress=sys.stderr.isatty())


def study(roads: Roads, conditions: Sequence[Condition] = CONDITIONS) -> Study:
    """Tunes the shipped network and lets it steer under every condition."""
    sure, one_std = tuned(roads.held_out(), roads.seed)
    read = [(condition, roads.read(condition)) for condition in conditions]
    return Study(roads, sure, one_std, _predicted(sure, read))


def tuned(held_out: Pairs, seed: int) -> tuple[Uncertain, float]:
    """The network that ships with howsure, fitted; and its RMSE on that data.

    The network was trained on images with the camera's noise, so its own output is the better
    prediction: the mean over still more noise, `prediction="mean"`, had an RMSE of 0.041 in place
    of 0.040 on 600 clear roads of `Roads(600, 0)`, and of 0.109 in place of 0.089 with three times
    the noise.
    """
    net = load_trained()
    sure = Uncertain(net, noise=CLEAR.noise, prediction="network", seed=seed)
    sure.fit(held_out.batches(BATCH), show_progress=sys.stderr.isatty())
    with torch.inference_mode():
        return sure, float(hs.metrics.rmse(net(held_out.x), held_out.y))


def _predicted(sure: Uncertain, read: Sequence[tuple[Condition, Pairs]]) -> tuple[Outcome, ...]:
    from tqdm import tqdm

    # One for each camera: every new one has to look at the network first.
    told: dict[float, Uncertain] = {}
    outcomes = []
    total = sum(len(pairs.y) for _, pairs in read)
    with tqdm(total=total, desc="predict", unit="scene", leave=False, disable=None) as bar:
        for condition, pairs in read:
            if condition.noise_std not in told:
                told[condition.noise_std] = _told(sure, condition)
            batches = []
            for x in pairs.x.split(BATCH):
                with torch.no_grad():
                    batches.append(told[condition.noise_std](x))
                bar.update(len(x))
            outcomes.append(Outcome(condition, pairs, concatenated(batches)))
    return tuple(outcomes)


def _told(sure: Uncertain, condition: Condition) -> Uncertain:
    """The tuned network, told the noise of this condition's camera."""
    how = {"prediction": sure.setup.prediction, "seed": sure.setup.seed}
    told = Uncertain(sure.model, noise=condition.noise, **how)
    told.setup = told.setup.replace(variance_model=sure.setup.variance_model)
    return told
