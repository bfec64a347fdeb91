"""Inputs with their targets, and ordinary training, which is where howsure begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from howsure.progress import progress

if TYPE_CHECKING:
    from typing_extensions import Self

    from howsure_lab.experiments.runs import RunFolder


def evenly(total: int, count: int) -> Tensor:
    """About `count` of `total` positions, evenly spread; all if there are fewer."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()


class Pairs(NamedTuple):
    """Inputs and targets of a part of the data."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n, ...)

    def at(self, index: Tensor | slice) -> Self:
        """Those of some positions."""
        return type(self)(self.x[index], self.y[index])

    def with_noise(self, var: float, seed: int) -> Pairs:
        """The inputs as a sensor with noise of variance `var` reads them; same seed, same noise."""
        generator = torch.Generator().manual_seed(seed)
        return Pairs(self.x + var**0.5 * torch.randn(self.x.shape, generator=generator), self.y)

    def every(self, count: int) -> Self:
        """About `count` pairs, evenly spread."""
        return self.at(evenly(len(self.y), count))

    def batches(self, size: int) -> list[tuple[Any, Tensor]]:
        """Batches in order."""
        return list(zip(self.x.split(size), self.y.split(size), strict=True))

    def shuffled(self, size: int, seed: int) -> DataLoader[Any]:
        """A loader with another order in every epoch; same seed, same orders."""
        generator = torch.Generator().manual_seed(seed)
        data = TensorDataset(self.x, self.y)
        return DataLoader(data, size, shuffle=True, generator=generator, drop_last=len(data) > size)


P = TypeVar("P", bound=Pairs)


def joined(parts: Sequence[P]) -> P:
    """All pairs of several parts."""
    return type(parts[0])(*(torch.cat(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class PlainRecipe:
    """AdamW with a one-cycle learning rate."""

    epochs: int
    batch: int = 32
    lr: float = 3e-3  # the largest
    decay: float = 1e-4
    show_progress: bool = False


def train_plain(
    model: nn.Module,
    data: Pairs,
    loss: Callable[[Any, Tensor], Tensor],
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


def trained_once(
    folder: RunFolder,
    name: str,
    model: nn.Module,
    data: Pairs,
    loss: Callable[[Any, Tensor], Tensor],
    recipe: PlainRecipe,
    seed: int,
) -> nn.Module:
    """The model, trained in the first run and then read from the folder's part of this name."""
    folder.trained(name, model, lambda model: train_plain(model, data, loss, recipe, seed))
    return model.requires_grad_(False)
