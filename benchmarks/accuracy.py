"""How close each method's standard deviation is to Monte Carlo, on real trained networks.

    python benchmarks/accuracy.py --data PATH [--only NAME] [--must-hold]

PATH holds `cifar10`, `cifar10_resnets`, `dronet` and `udacity`. Writes
`benchmarks/results/accuracy.json` and the tables of `docs/gradients.md`. Monte Carlo takes hours on
one core and is kept in the temporary folder, as are the weights of networks that are trained here;
the methods themselves take minutes. `--must-hold` measures nothing and says which bounds hold.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import accuracy_bounds
import torch
from accuracy_measures import Truth, average, cost, measures
from bench import DOCS, RESULTS, into_page, markdown, record
from real_networks import CASES, Case, images_of, linear_part, model_of, noise_var, truth
from torch import nn

from howsure.methods import METHODS
from howsure.multipliers import Placement
from howsure.setup import Setup
from howsure_lab.experiments.runs import write_json

PAGE = DOCS / "gradients.md"
PROBABILITY = ", top class"
# The same points serve all inputs, so that the inputs of one run share its luck.
SEEDS = 4
TOLERANCE = 0.05
AT_ONCE = 10
_COLUMNS = {
    "std ratio": "ratio",
    "log error": "log_error",
    "rank": "rank",
    "mean error": "mean_error",
    "stated error": "stated_error",
    "actual error": "actual_error",
    "Monte Carlo error": "own_error",
    "its rank": "rank_limit",
}


def names() -> list[str]:
    """All cases; the classifier's top probability is one of its own, with the logits' truth."""
    classes = [f"{c.name}{PROBABILITY}" for c in CASES if c.network == "ResNet-20" and not c.rate]
    return [*(case.name for case in CASES), *classes]


def case_of(name: str) -> Case:
    """The network and its noise."""
    return next(case for case in CASES if case.name == name.removesuffix(PROBABILITY))


def setup_of(name: str, model: nn.Module, **options: Any) -> Setup:
    """The case's noise, dropout and task."""
    case = case_of(name)
    noise = noise_var(case) if case.noise_std else None
    placement = Placement("existing") if case.rate else Placement()
    task = "classification" if name.endswith(PROBABILITY) else "regression"
    return Setup(model, noise, placement=placement, rate=case.rate or None, task=task, **options)


def methods_of(name: str) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """What is compared on a case: label to method, number of seeds and options."""
    case = case_of(name)
    sampling = "mc_dropout" if case.rate else "noise_sampling"
    found: dict[str, tuple[str, int, dict[str, Any]]] = {
        f"gradients, {points} points": ("gradients", SEEDS, {"samples": points})
        for points in (4, 8, 16)
    }
    if name.endswith(PROBABILITY):
        around = {"samples": 8, "prediction": "mean"}
        found["gradients, 8 points, around the mean"] = ("gradients", SEEDS, around)
    if case.network in ("LSTM", "MLP"):
        label = f"gradients, tolerance={TOLERANCE}"
        found[label] = ("gradients", SEEDS, {"tolerance": TOLERANCE})
    for samples in (20, 200):
        found[f"{samples} samples"] = (sampling, 1, {"samples": samples})
    if case.noise_std:
        found["linear"] = ("linear", 1, {})
        found["diagonal ADF (paper)"] = ("adf", 1, {})
    return found


def compared(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """All methods on one case, or those that were asked for."""
    case, is_probability = case_of(name), name.endswith(PROBABILITY)
    model = model_of(asked.data, case)
    x = images_of(asked.data, case.network, asked.images)
    with torch.no_grad():
        plain = torch.cat([model(part) for part in x.split(AT_ONCE)])
    drawn = truth(asked.data, case, asked.images, asked.samples)
    linear = linear_part(asked.data, case, asked.images, asked.samples)
    exact = Truth.of(drawn, plain, is_probability, linear)
    limits = {"own_error": exact.own_error, "rank_limit": exact.rank_limit}
    rows: dict[str, Any] = {"plain network": {"mean_error": exact.mean_error(plain), **limits}}
    around = {} if is_probability else {"prediction": "mean"}
    for label, (method, seeds, options) in methods_of(name).items():
        if asked.methods not in label:
            continue
        runs = []
        for seed in range(min(seeds, asked.seeds)):
            setup = setup_of(name, model, seed=seed, **{**around, **options})
            parts = [METHODS[method](setup, part) for part in x.split(AT_ONCE)]
            mean, std = (torch.cat([getattr(p, field) for p in parts]) for field in ("mean", "std"))
            errors = [p.std_error for p in parts]
            error = None if errors[0] is None else torch.cat(errors)
            # Where checks refuse the gradients, the method samples.
            refused = sum(p.method not in ("", None, method) for p in parts) / len(parts)
            runs.append({**measures(exact, mean, std, error), "refused": refused})
        setup = setup_of(name, model, **options)
        METHODS[method](setup, x[:1])  # the checks of the first call are not counted
        passes = cost(lambda s=setup, m=method: METHODS[m](s, x[:1]), model, x[:1])
        rows[label] = {**average(runs), "forward_passes": passes, "seeds": len(runs)}
    return rows


def table(results: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    lines = []
    for name, rows in results.items():
        for label, row in rows.items():
            cells = [f"{row[key]:.3f}" if key in row else "" for key in _COLUMNS.values()]
            cells.append(f"{row['forward_passes']:.1f}" if "forward_passes" in row else "")
            refused = f" (refused: {row['refused']:.0%})" if row.get("refused") else ""
            lines.append((name, label + refused, *cells))
            name = ""
    return markdown(("network and noise", "method", *_COLUMNS, "forward passes"), lines)


def main() -> int:
    """Parses the arguments, measures, writes; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with data and weights")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--samples", type=int, default=2000, help="of Monte Carlo")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--must-hold", action="store_true", help="only say which bounds hold")
    parser.add_argument("--methods", default="", help="methods whose label contains this")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most so many")
    given = parser.parse_args()
    before = json.loads((RESULTS / "accuracy.json").read_text())
    known, made = before["cases"], before["made"]
    if not given.must_hold:
        if given.data is None:
            parser.error("--data is needed to measure.")
        for name in (each for each in names() if given.only in each):
            found = compared(given, name)
            print(table({name: found}), flush=True)
            rows = {**known.get(name, {}), **found}
            order = ["plain network", *methods_of(name)]
            known[name] = {label: rows[label] for label in order if label in rows}
            known = {each: known[each] for each in names() if each in known}
            made[name] = record(list(range(given.seeds)))
            sizes = {"images": given.images, "samples": given.samples}
            write_json(RESULTS / "accuracy.json", {**sizes, "made": made, "cases": known})
            into_page(PAGE, "accuracy", table(known))
            into_page(PAGE, "bounds", accuracy_bounds.table(accuracy_bounds.rows(known)))
    found = accuracy_bounds.rows(known)
    print(accuracy_bounds.report(found))
    return int(any(row.holds is False for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
