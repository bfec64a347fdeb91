"""How close each method's standard deviation is to brute force, on real trained networks.

    python benchmarks/accuracy.py --data PATH

PATH holds `cifar10`, `cifar10_resnets`, `dronet` and `udacity`. Writes
`benchmarks/results/accuracy.json` and the tables of `docs/adjoint.md`. Brute force takes hours on
one core and is kept in the temporary folder; the methods themselves take minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from operations import cost
from page import into_page
from real_networks import CASES, Case, images_of, model_of, noise_var, truth
from torch import Tensor, nn

from howsure.dropout import Placement
from howsure.methods import METHODS
from howsure.methods.adjoint import DOUBTFUL
from howsure.prediction import Prediction
from howsure.setup import Setup

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "accuracy.json"
PAGE = HERE.parent / "docs" / "adjoint.md"
OURS = "adjoint, 8 probes"


def measures(mean: Tensor, std: Tensor, draws: Tensor) -> dict[str, float]:
    """Ratio of std, mean absolute log error, rank correlation, error of the mean in std."""
    true_mean, true_std = draws.mean(0), draws.std(0)
    ratio = (std / true_std).flatten()
    return {
        "ratio": float(ratio.median()),
        "log_error": float(ratio.log().abs().mean()),
        "rank": _rank_correlation(std.flatten(), true_std.flatten()),
        "mean_error": float(((mean - true_mean) / true_std).abs().mean()),
    }


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([t.argsort().argsort().double() for t in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def setup_of(case: Case, model: nn.Module, **options: Any) -> Setup:
    """The case's noise and dropout."""
    noise = noise_var(case) if case.noise_std else None
    placement = Placement("existing") if case.rate else Placement()
    return Setup(model, noise, placement=placement, rate=case.rate or None, **options)


def methods_of(case: Case) -> dict[str, tuple[str, dict[str, Any]]]:
    """What is compared on a case: label to method and options."""
    ours = {
        OURS: ("adjoint", {"probes": 8}),
        "adjoint, 4 probes": ("adjoint", {"probes": 4}),
        "adjoint, no probes": ("adjoint", {"probes": 0}),
    }
    if case.rate:
        return ours
    return {"diagonal ADF (paper)": ("adf", {}), "linear": ("linear", {}), **ours}


def compared(data: Path, case: Case, images: int, samples: int) -> dict[str, Any]:
    """All methods on one case."""
    draws = truth(data, case, images, samples)
    model, x = model_of(data, case), images_of(data, case.network, images)
    rows: dict[str, Any] = {}
    plain = torch.cat([model(part) for part in x.split(10)])
    rows["plain network"] = {
        "mean_error": measures(plain, draws.std(0), draws)["mean_error"],
    }
    for label, (name, options) in methods_of(case).items():
        setup = setup_of(case, model, **options)
        found = [METHODS[name](setup, part) for part in x.split(10)]
        rows[label] = {
            **measures(_joined(found, "mean"), _joined(found, "std"), draws),
            "forward_passes": cost(lambda s=setup, n=name: METHODS[n](s, x[:1]), model, x[:1]),
        }
        if found[0].trust is not None:
            trust = _joined(found, "trust")
            rows[label]["doubted"] = float((trust < DOUBTFUL).float().mean())
            rows[label]["beyond_first_order"] = float(1 - trust.median())
        if label == OURS:
            rows[label]["by_trust"] = by_trust(found, draws)
    rows["20 samples"] = {
        **measures(draws[:20].mean(0), draws[:20].std(0), draws),
        "forward_passes": 20.0,
    }
    return rows


def by_trust(found: list[Prediction], draws: Tensor) -> list[list[float]]:
    """For trust from 0 to 1 in tenths: count, summed absolute log error, summed mean error."""
    trust, std, mean = (_joined(found, name).flatten() for name in ("trust", "std", "mean"))
    true_mean, true_std = draws.mean(0).flatten(), draws.std(0).flatten()
    log_error = (std / true_std).log().abs()
    mean_error = ((mean - true_mean) / true_std).abs()
    tenth = (10 * trust).long().clamp(max=9)
    rows = [tenth == index for index in range(10)]
    return [[float(r.sum()), float(log_error[r].sum()), float(mean_error[r].sum())] for r in rows]


def trust_table(results: dict[str, Any]) -> str:
    """Errors by trust over all cases, as a Markdown table."""
    ours = [rows[OURS] for rows in results.values() if "by_trust" in rows.get(OURS, {})]
    parts = [torch.tensor(row["by_trust"]) for row in ours]
    lines = ["| trust | outputs | log error | mean error |", "|---|---|---|---|"]
    for index, (count, log_error, mean_error) in enumerate(torch.stack(parts).sum(0).tolist()):
        if count:
            label = f"{index / 10:.1f} to {(index + 1) / 10:.1f}"
            cells = f"{log_error / count:.3f} | {mean_error / count:.3f}"
            lines.append(f"| {label} | {count:.0f} | {cells} |")
    return "\n".join(lines)


def _joined(found: list[Prediction], name: str) -> Tensor:
    return torch.cat([getattr(each, name).detach() for each in found])


def table(results: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| network and noise | method | std ratio | log error | rank | mean error | "
        "forward passes | doubted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in results.items():
        for label, row in rows.items():
            cells = [_cell(row, key) for key in ("ratio", "log_error", "rank", "mean_error")]
            cells.append(f"{row['forward_passes']:.1f}" if "forward_passes" in row else "")
            cells.append(f"{100 * row['doubted']:.0f} %" if "doubted" in row else "")
            lines.append(f"| {name} | {label} | {' | '.join(cells)} |")
            name = ""
    return "\n".join(lines)


def _cell(row: dict[str, float], key: str) -> str:
    return f"{row[key]:.3f}" if key in row else ""


def write(results: dict[str, Any], images: int, samples: int) -> None:
    """The results as JSON and as the table of the page."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"images": images, "samples": samples, "cases": results}, indent=1) + "\n"
    )
    into_page(PAGE, "accuracy", table(results))
    into_page(PAGE, "trust", trust_table(results))


def main() -> None:
    """Parses the arguments, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with data and weights")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--samples", type=int, default=2000, help="of brute force")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    results = {}
    for case in CASES:
        if given.only in case.name:
            known[case.name] = compared(given.data, case, given.images, given.samples)
            print(table({case.name: known[case.name]}), flush=True)
        results = {each.name: known[each.name] for each in CASES if each.name in known}
        write(results, given.images, given.samples)


if __name__ == "__main__":
    main()
