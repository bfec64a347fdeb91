"""Under which conditions the camera looks at the road, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import howsure as hs
from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.steering.render import render
from howsure_lab.experiments.steering.scenes import draw_scenes, steering
from howsure_lab.experiments.steering.ship import NOISE_STD, SIZE

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
    """Which roads: every condition shows the same ones, with the same vehicles on them.

    Attributes:
        count: How many.
        seed: No seed from 0 up gives roads of the training, validation or test data of the
            steering experiment.
    """

    count: int
    seed: int

    def clean(self, condition: Condition = CLEAR) -> Pairs:
        """Images without the camera's noise, (count, 1, 64, 64), and angles, (count, 1)."""
        scenes = draw_scenes(self.count, 1000 * (self.seed + 1), condition.scenes)
        return Pairs(render(scenes, SIZE), steering(scenes))

    def read(self, condition: Condition = CLEAR) -> Pairs:
        """Images as the camera reads them; the report draws the same noise from the seed."""
        clean = self.clean(condition)
        generator = torch.Generator().manual_seed(self.seed)
        parts = [condition.noise.sample(part, generator) for part in clean.x.split(BATCH)]
        return Pairs(torch.cat(parts), clean.y)

    def held_out(self) -> Pairs:
        """Twice as many other clear roads, with the camera's noise, to fit on."""
        scenes = draw_scenes(2 * self.count, 1000 * (self.seed + 1) + 1)
        clean = Pairs(render(scenes, SIZE), steering(scenes))
        return clean.with_noise(NOISE_STD**2, 1000 * (self.seed + 1) + 2)
