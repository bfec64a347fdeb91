"""Tables with rows to train on, rows to tune on and rows to test on: known ones, and gaps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from howsure_lab.experiments.uci.data import DataSet, read_all

HELD_OUT = 0.15
# `fit` asks for 50 held-out rows, which is more than this share of the smallest set.
FEWEST = 50


@dataclass(frozen=True, eq=False)
class Table:
    """One split of a set, standardized by its training rows.

    Attributes:
        name: The set.
        number: The split, or the feature whose middle is missing.
        train: Inputs (rows, features) and targets (rows, 1) of the network.
        held_out: Those to tune on.
        test: Those to be judged by.
    """

    name: str
    number: int
    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def splits(data: DataSet) -> list[Table]:
    """The standard splits."""
    return [_table(data, k, *rows) for k, rows in enumerate(data.splits)]


def gaps(data: DataSet, features: range) -> list[Table]:
    """For each feature: train on its lower and its upper third, test on what lies between."""
    found = []
    for feature in features:
        order = data.x[:, feature].argsort(stable=True)
        third = len(order) // 3
        middle = order[third : len(order) - third]
        rest = torch.cat([order[:third], order[len(order) - third :]])
        found.append(_table(data, feature, rest, middle))
    return found


def _table(data: DataSet, number: int, train: Tensor, test: Tensor) -> Table:
    order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(number))]
    count = max(FEWEST, round(HELD_OUT * len(order)))
    held_out, train = order[:count], order[count:]
    # Rows of the wines are in the table more than once: those are not held out.
    seen = {tuple(row) for row in data.x[train].tolist()}
    held_out = held_out[[tuple(row) not in seen for row in data.x[held_out].tolist()]]
    x, y = data.x[train], data.y[train]
    center, scale = x.mean(0), x.std(0)
    # A column without any spread stays as it is.
    scale = torch.where(scale > 0, scale, 1.0)

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        return (data.x[rows] - center) / scale, (data.y[rows] - y.mean()) / y.std()

    return Table(data.name, number, part(train), part(held_out), part(test))


def all_tables(folder: Path) -> dict[str, list[Table]]:
    """By study and set: the standard splits, and the gaps of every other feature."""
    sets = read_all(folder)
    # The other features were used to choose the method.
    return {
        **{f"splits {data.name}": splits(data) for data in sets},
        **{f"gaps {data.name}": gaps(data, range(0, data.x.shape[1], 2)) for data in sets},
    }
