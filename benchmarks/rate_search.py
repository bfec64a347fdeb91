"""The dropout rate by closed form against the grid search, on real data.

    python benchmarks/rate_search.py --data PATH

PATH holds `uci`, `udacity` and `dronet`. Both searches see the same
held-out inputs. Costs are counted operations of convolutions and matrix products, in plain forward
passes per input. Writes `benchmarks/results/rate_search.json` and the table of `docs/gradients.md`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from operations import operations_of
from page import into_page
from real_networks import images_of
from record import record
from torch import Tensor, nn

import howsure as hs
from howsure.fit import DEFAULT_RATES, Fit
from howsure_lab.experiments.folder import write_json
from howsure_lab.experiments.steering.model import load_weights

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "rate_search.json"
PAGE = HERE.parent / "docs" / "gradients.md"
GRID = [rate for rate in DEFAULT_RATES if rate > 0]


@dataclass(frozen=True, eq=False)
class Case:
    """A trained network with held-out data.

    Attributes:
        model: The network.
        x: Held-out inputs.
        y: Their targets.
        method: What is tuned.
        noise: The sensor's variance.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    method: str = "mc_dropout"
    noise: float | None = None


def uci(data: Path, name: str) -> Case:
    """A small network trained on four fifths of the first training split; the rest is held out."""
    folder = data / "uci" / name / "data"
    table = np.loadtxt(folder / "data.txt")
    features, target, rows = (
        np.loadtxt(folder / f"index_{part}.txt").astype(int)
        for part in ("features", "target", "train_0")
    )
    chosen = torch.as_tensor(table[rows], dtype=torch.float32)
    cut = int(0.8 * len(chosen))
    chosen = (chosen - chosen[:cut].mean(0)) / chosen[:cut].std(0).clamp(min=1e-6)
    x, y = chosen[:, features], chosen[:, [int(target)]]
    noise = 0.01  # of features with unit variance
    generator = torch.Generator().manual_seed(0)
    noisy = x + noise**0.5 * torch.randn(x.shape, generator=generator)
    return Case(_trained(noisy[:cut], y[:cut]), noisy[cut:], y[cut:], "sampled_adf", noise)


def _trained(x: Tensor, y: Tensor, epochs: int = 60) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1)]
    model = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            (model(x[rows]) - y[rows]).square().mean().backward()
            optimiser.step()
    return model.eval()


def steering(data: Path, count: int = 100) -> Case:
    """The authors' DroNet on frames of the Udacity test drive."""
    x = images_of(data, "DroNet", count)
    with (data / "udacity/test_ch2_001/steering.csv").open() as file:
        angles = {row["frame"]: float(row["steering_angle"]) for row in csv.DictReader(file)}
    files = sorted((data / "udacity/test_ch2_001/center").glob("*.jpg"))
    chosen = files[:: len(files) // count][:count]
    y = torch.tensor([[angles.get(f.name, angles.get(f.stem, math.nan))] for f in chosen])
    return Case(load_weights(data / "dronet" / "dronet_torch.pt"), x, y)


CASES: dict[str, Callable[[Path], Case]] = {
    "UCI concrete, MLP": lambda data: uci(data, "concrete"),
    "UCI energy, MLP": lambda data: uci(data, "energy"),
    "UCI Boston housing, MLP": lambda data: uci(data, "bostonHousing"),
    "UCI yacht, MLP": lambda data: uci(data, "yacht"),
    "UCI red wine, MLP": lambda data: uci(data, "wine-quality-red"),
    "Udacity, DroNet": steering,
}


def compared(case: Case, samples: int) -> dict[str, Any]:
    """Both searches on one case."""
    plain = operations_of(lambda: case.model(case.x[:1]))
    rows = {}
    for search in ("grid", "closed_form"):
        fits: list[Fit] = []
        count = operations_of(lambda s=search, f=fits: f.append(_fit(case, s, samples)))
        fit = fits[0]
        rows[search] = {
            "rate": fit.rate,
            "nll": fit.best_nll,
            "confirmed_nll": fit.confirmed_nll,
            "forward_passes": count / plain / len(case.x),
        }
    # The confirming run is not part of the search.
    rows["steps_apart"] = abs(_position(rows["grid"]) - _position(rows["closed_form"]))
    rows["times_cheaper"] = rows["grid"]["forward_passes"] / rows["closed_form"]["forward_passes"]
    return {"inputs": len(case.x), "method": case.method, **rows}


def _fit(case: Case, search: str, samples: int) -> Fit:
    sure = hs.Uncertain(case.model, case.noise, case.method)
    batches = list(zip(case.x.split(25), case.y.split(25), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"samples": samples if search == "grid" else 0, "fit_residual_var": False}
        return sure.fit(batches, search=search, **options)


def _position(row: dict[str, float]) -> float:
    """Where a rate lies on the grid, in steps."""
    return math.log(max(row["rate"], GRID[0]) / GRID[0]) / math.log(GRID[1] / GRID[0])


def table(results: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| data, network | method | inputs | rate by grid | in closed form | grid steps apart | "
        "forward passes per input: grid | closed form | times cheaper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        grid, closed = row["grid"], row["closed_form"]
        cells = [
            name,
            f"`{row['method']}`",
            str(row["inputs"]),
            f"{grid['rate']:.4f}",
            f"{closed['rate']:.4f}",
            f"{row['steps_apart']:.2f}",
            f"{grid['forward_passes']:.0f}",
            f"{closed['forward_passes']:.1f}",
            f"{row['times_cheaper']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parses the arguments, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with data and weights")
    parser.add_argument("--samples", type=int, default=50, help="per rate of the grid")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}, "made": {}}
    known, made = before["cases"], before["made"]
    for name, case in CASES.items():
        if given.only in name:
            known[name] = compared(case(given.data), given.samples)
            print(table({name: known[name]}), flush=True)
            results = {each: known[each] for each in CASES if each in known}
            made[name] = record()
            write_json(RESULTS, {"samples": given.samples, "made": made, "cases": results})
            into_page(PAGE, "rates", table(results))


if __name__ == "__main__":
    main()
