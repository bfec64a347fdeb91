"""Tables of numbers with their standard splits: UCI folders, or scikit-learn's diabetes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from howsure_lab.experiments.training import Pairs
from howsure_lab.optional import imported


@dataclass(frozen=True, eq=False)
class DataSet:
    """A table with its splits; each is a pair of positions (train, test)."""

    name: str
    x: Tensor  # (n, features)
    y: Tensor  # (n, 1)
    splits: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, eq=False)
class Split:
    """One split, standardized by its training part; `scale` is the targets' std."""

    train: Pairs
    validation: Pairs
    test: Pairs
    center: float
    scale: float


def read_folder(folder: Path) -> DataSet:
    """A data set in the layout of the standard splits: data.txt and index_*.txt."""
    table = np.loadtxt(folder / "data.txt", ndmin=2)
    features = np.loadtxt(folder / "index_features.txt", ndmin=1).astype(int)
    target = int(np.loadtxt(folder / "index_target.txt"))
    splits = []
    while (folder / f"index_train_{len(splits)}.txt").is_file():
        k = len(splits)
        parts = [np.loadtxt(folder / f"index_{part}_{k}.txt") for part in ("train", "test")]
        train, test = (torch.from_numpy(part.astype(np.int64)) for part in parts)
        if set(train.tolist()) & set(test.tolist()):
            raise ValueError(f"Split {k} in `{folder}` has rows that both train and test.")
        splits.append((train, test))
    if not splits:
        raise FileNotFoundError(f"There is no `index_train_0.txt` in `{folder}`.")
    name = folder.parent.name if folder.name == "data" else folder.name
    x, y = (torch.from_numpy(table[:, columns]).float() for columns in (features, [target]))
    return DataSet(name, x, y, tuple(splits))


def read_all(folder: Path) -> tuple[DataSet, ...]:
    """Every data set in a folder or below it."""
    tables = sorted(folder.glob("**/index_features.txt"))
    if not tables:
        raise FileNotFoundError(
            f"There is no data set in `{folder}`: one has `data.txt`, `index_features.txt`, "
            "`index_target.txt` and the splits `index_train_0.txt`, `index_test_0.txt`, ..."
        )
    return tuple(read_folder(table.parent) for table in tables)


def diabetes() -> DataSet:
    """The diabetes data of scikit-learn with 20 random splits, a tenth for testing."""
    needed = "sklearn.datasets", "The diabetes data needs scikit-learn", "scikit-learn"
    datasets = imported(*needed)
    x, y = datasets.load_diabetes(return_X_y=True)
    splits = []
    for k in range(20):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(k))
        tested = round(0.1 * len(y))
        splits.append((order[tested:], order[:tested]))
    features = torch.as_tensor(x, dtype=torch.float32)
    return DataSet("diabetes", features, torch.as_tensor(y).float().unsqueeze(1), tuple(splits))


def split(data: DataSet, k: int) -> Split:
    """Split k: a fifth of its training rows is held out for tuning."""
    train, test = data.splits[k]
    order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(k))]
    held_out = round(0.2 * len(order))
    validation, train = order[:held_out], order[held_out:]
    mean, std = data.x[train].mean(0), data.x[train].std(0)
    # A column without any spread stays as it is.
    std = torch.where(std > 0, std, torch.ones_like(std))
    center, scale = float(data.y[train].mean()), float(data.y[train].std())

    def part(rows: Tensor) -> Pairs:
        return Pairs((data.x[rows] - mean) / std, (data.y[rows] - center) / scale)

    return Split(part(train), part(validation), part(test), center, scale)
