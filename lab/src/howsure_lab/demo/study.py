"""The demonstration's work: wraps the trained network, fits, predicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import howsure as hs
from howsure import report
from howsure.fit import PosteriorFit
from howsure.prediction import concatenated
from howsure.report import Report
from howsure.uncertain import Uncertain
from howsure_lab.demo.conditions import BATCH, CLEAR, CONDITIONS, NOISY, Condition, Roads
from howsure_lab.demo.outcome import Outcome
from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.steering.model import load_trained


@dataclass(frozen=True, eq=False)
class Study:
    """The tuned network and what it says under every condition.

    Attributes:
        roads: What the camera looks at.
        sure: The network with howsure around it, tuned on held-out clear roads.
        one_std: The network's RMSE on those: the best std that is the same for all scenes.
        outcomes: One for each condition, clear first.
    """

    roads: Roads
    sure: Uncertain
    one_std: float
    outcomes: tuple[Outcome, ...]

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
        return report.build(self.sure, batches, options=options, show_progress=_on_a_terminal())


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
    sure.fit(held_out.batches(BATCH), show_progress=_on_a_terminal())
    with torch.inference_mode():
        return sure, float(hs.metrics.rmse(net(held_out.x), held_out.y))


def _predicted(sure: Uncertain, read: Sequence[tuple[Condition, Pairs]]) -> tuple[Outcome, ...]:
    from tqdm import tqdm

    total = sum(len(pairs.y) for _, pairs in read)
    with tqdm(total=total, desc="predict", unit="scene", leave=False, disable=None) as bar:
        # One for each camera: every new one has to look at the network first.
        told = {condition.noise_std: _told(sure, condition) for condition, _ in read}

        def outcome(condition: Condition, pairs: Pairs) -> Outcome:
            found = []
            for x, _ in pairs.batches(BATCH):
                found.append(told[condition.noise_std](x))
                bar.update(len(x))
            return Outcome(condition, pairs, concatenated(found))

        with torch.no_grad():
            return tuple(outcome(condition, pairs) for condition, pairs in read)


def _told(sure: Uncertain, condition: Condition) -> Uncertain:
    """The tuned network, told the noise of this condition's camera."""
    setup = sure.setup
    told = Uncertain(
        sure.model, noise=condition.noise, prediction=setup.prediction, seed=setup.seed
    )
    told.setup = told.setup.replace(variance_model=setup.variance_model)
    return told


def _on_a_terminal() -> bool:
    return sys.stderr.isatty()
