"""Trains the small steering network that ships with the package, and writes it with its record.

Run from the repository: `python -m howsure_lab.experiments.steering.ship`. Takes a few minutes on
one core. The recipe is fixed in advance: no setting was chosen by looking at the test scenes.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn import functional as F

from howsure import metrics
from howsure.files import write_atomically
from howsure_lab.experiments.runs import environment, write_json
from howsure_lab.experiments.steering.data import Counts, rendered_data
from howsure_lab.experiments.steering.model import SMALL, DroNet
from howsure_lab.experiments.training import PlainRecipe, made, train_plain

COMMAND = "python -m howsure_lab.experiments.steering.ship"
COUNTS = Counts(train=6000, validation=200, test=500)
SIZE = 64
NOISE_STD = 8 / 255
RECIPE = PlainRecipe(epochs=12, show_progress=True)


def main(folder: Path) -> int:
    """Trains, and writes trained.pt and trained.json; returns the exit code."""
    torch.set_num_threads(1)  # sums in a fixed order: the same weights on every run
    data = rendered_data(COUNTS, SIZE, NOISE_STD**2)
    model = made(lambda: DroNet(SIZE, SMALL), seed=0)
    train_plain(model, data.train, F.mse_loss, RECIPE, seed=0)
    scores = {}
    with torch.inference_mode():
        for test, (x, y) in data.tests.items():
            mean = model(x)
            rmse, eva = metrics.rmse(mean, y), metrics.explained_variance(mean, y)
            scores[test] = {"rmse": round(float(rmse), 4), "eva": round(float(eva), 4)}
    state = model.state_dict()
    write_atomically(folder / "trained.pt", lambda file: torch.save(state, file))
    record = {
        "network": "howsure_lab.experiments.steering.model.DroNet(64, SMALL)",
        "data": "howsure_lab.experiments.steering.data.rendered_data",
        "command": COMMAND,
        "counts": asdict(COUNTS),
        "noise_std": NOISE_STD,
        "recipe": {k: v for k, v in asdict(RECIPE).items() if k != "show_progress"},
        "seed": 0,
        "test": scores,
        "environment": environment(),
    }
    write_json(folder / "trained.json", record)
    print(scores)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent))
