"""Trains the network that reads digits, and writes its checkpoint with its record beside it.

Run from the repository: `.venv/bin/python examples/train_digits.py`. Takes under a minute on one
core. The recipe is fixed in advance: no setting was chosen by looking at the held-out digits.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import safetensors
import sklearn
import torch
from safetensors.torch import save
from torch.nn import functional as F
from tqdm import trange

from howsure_lab.digits.data import HELD_OUT, SPLIT_SEED, Digits, load_digits, split
from howsure_lab.digits.model import CHECKPOINT, DigitNet

DIGITS = Path(__file__).parents[1] / "src" / "howsure" / "digits"


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights depend on, besides data and versions."""

    seed: int = 0
    epochs: int = 30
    batch_size: int = 50
    learning_rate: float = 0.01
    weight_decay: float = 1e-4


def train(digits: Digits, recipe: Recipe) -> DigitNet:
    """A network trained by AdamW with a one-cycle learning rate."""
    torch.manual_seed(recipe.seed)
    model = DigitNet().train()
    steps = recipe.epochs * (len(digits.labels) // recipe.batch_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=steps
    )
    for _ in trange(recipe.epochs, desc="Training", unit="epoch"):
        order = torch.randperm(len(digits.labels))
        for batch in order.split(recipe.batch_size):
            loss = F.cross_entropy(model(digits.images[batch]), digits.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.inference_mode()
def accuracy(model: DigitNet, digits: Digits) -> float:
    """The share of digits that the network reads right."""
    return (model(digits.images).argmax(1) == digits.labels).double().mean().item()


def write(path: Path, content: bytes) -> None:
    """Writes under a temporary name and renames: nobody meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def main() -> None:
    """Trains, and writes the weights with their record beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DIGITS, help="directory of the checkpoint")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in a fixed order: the same weights on every run

    digits, recipe = load_digits(), Recipe(seed=options.seed)
    parts = split(len(digits.labels))
    training, held_out = (Digits(digits.images[i], digits.labels[i]) for i in parts)
    model = train(training, recipe)

    record = {
        "network": "howsure_lab.digits.model.DigitNet",
        "data": "sklearn.datasets.load_digits",
        "split": {"seed": SPLIT_SEED, "held_out": HELD_OUT},
        "recipe": asdict(recipe),
        "accuracy": {"train": accuracy(model, training), "held_out": accuracy(model, held_out)},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "safetensors": safetensors.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }
    weights = options.out / CHECKPOINT
    write(weights, save(model.state_dict()))
    write(weights.with_suffix(".json"), (json.dumps(record, indent=2) + "\n").encode())
    print(json.dumps(record["accuracy"]))
    print(f"Wrote {weights}")


if __name__ == "__main__":
    main()
