"""Ordinary training of a network, which is where howsure begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from howsure.progress import progress
from howsure_lab.experiments.pairs import Pairs


@dataclass(frozen=True)
class PlainRecipe:
    """AdamW with a one-cycle learning rate.

    Attributes:
        epochs: Rounds through the data.
        batch: Inputs per step.
        lr: The largest learning rate.
        decay: Weight decay.
        show_progress: Show a bar.
    """

    epochs: int
    batch: int = 32
    lr: float = 3e-3
    decay: float = 1e-4
    show_progress: bool = False


def train_plain(
    model: nn.Module,
    data: Pairs,
    loss: Callable[[Tensor, Tensor], Tensor],
    recipe: PlainRecipe,
    seed: int = 0,
) -> None:
    """Trains the model in place and leaves it in eval mode; the seed orders the batches."""
    loader = data.shuffled(recipe.batch, seed)
    optimizer = torch.optim.AdamW(model.parameters(), recipe.lr, weight_decay=recipe.decay)
    steps = recipe.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=steps)
    model.train()
    for _ in progress(range(recipe.epochs), recipe.show_progress, "train"):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            schedule.step()
    model.eval().requires_grad_(False)


def made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model with random weights from a seed, which leaves torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
