"""Tables: NLL and coverage of what `fit` finds on small networks, against its rivals.

Every method gets the same held-out rows, and a factor on its variance and a residual variance that
are best for them by likelihood. `python benchmarks/shift.py uci --data DATA` runs it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import warnings
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from bench import RESULTS, markdown, record
from torch import Tensor, nn
from uci_networks import Recipe, dropout_samples, networks
from uci_splits import Table, all_tables

import howsure as hs
from howsure.files import write_atomically
from howsure.posterior.weights import best_weights
from howsure.student import central_reach, student_nll

OURS, RIVAL = "posterior, `train=`", "five networks"
# As version 0.2 did on the same networks, splits and held-out rows.
BEFORE = {"posterior, `train_inputs=`": "0.2, `train_inputs=`", OURS: "0.2, `train=`"}
MEMBERS = 5
SAMPLES = 200
# Gal & Ghahramani (2016) find rates of this size for these sets.
RATES = (0.01, 0.05)
# How far the NLL of the same network may be off by rounding.
_SAME_NETWORK = 1e-3
Moments = tuple[Tensor, Tensor]  # mean and variance, (rows, 1) each
Scores = dict[str, dict[str, float]]  # by method


def tuned(table: Table, held_out: Moments, test: Moments) -> tuple[Tensor, float]:
    """The variance of the test rows with the best factor and residual variance, and its NLL."""
    error = (held_out[0] - table.held_out[1]).double().square()[:, 0]
    terms, new = (torch.cat([torch.ones_like(var), var], 1).double() for _, var in (held_out, test))
    weights = best_weights(error, terms, torch.full((2,), math.nan, dtype=torch.float64))
    return (new @ weights)[:, None], float(student_nll(error, terms @ weights, math.inf).mean())


def scored(table: Table, predicted: Tensor, var: Tensor, nu: float = math.inf) -> dict[str, float]:
    """NLL without 1/2 log 2 pi, and coverage of 95 % intervals, on the test rows."""
    error = (predicted - table.test[1]).double().square()
    covered = (error <= central_reach(0.95, nu) ** 2 * var).double().mean()
    return {
        "nll": float(student_nll(error, var.double(), nu).mean()),
        "coverage": float(covered),
        "gaussian_nll": float(student_nll(error, var.double(), math.inf).mean()),
    }


def best_of(table: Table, candidates: list[tuple[Moments, Moments]]) -> dict[str, float]:
    """The scores of the candidate that is best on the held-out rows."""
    found = [(tuned(table, *each), each[1][0]) for each in candidates]
    (var, _), predicted = min(found, key=lambda each: each[0][1])
    return scored(table, predicted, var)


@torch.no_grad()
def rivals(table: Table, nets: dict[str, list[nn.Sequential]]) -> Scores:
    """What does not come from `fit`."""
    places = (table.held_out[0], table.test[0])
    plain = nets["plain"][0]

    def dropped(net: nn.Sequential, rate: float) -> tuple[Moments, Moments]:
        draws = (dropout_samples(net, x, rate, SAMPLES, seed=0) for x in places)
        one, two = ((each.mean(0), each.var(0)) for each in draws)
        return one, two

    def of_head(x: Tensor) -> Moments:
        value, log_var = nets["head"][0](x).split(1, 1)
        return value, log_var.exp()

    def of_all(x: Tensor) -> Moments:
        each = torch.stack([net(x) for net in nets["plain"]])
        return each.mean(0), each.var(0)

    error = (plain(places[0]) - table.held_out[1]).square().mean()
    return {
        "constant": scored(table, plain(places[1]), error.expand(len(places[1]), 1)),
        "dropout after training": best_of(table, [dropped(plain, rate) for rate in RATES]),
        "MC dropout": best_of(
            table, [dropped(net, rate) for net, rate in zip(nets["dropout"], RATES, strict=True)]
        ),
        "Kendall": best_of(table, [(of_head(places[0]), of_head(places[1]))]),
        RIVAL: best_of(table, [(of_all(places[0]), of_all(places[1]))]),
    }


def ours(table: Table, net: nn.Sequential) -> Scores:
    """What `fit` finds, with more and more data."""
    ways: dict[str, dict[str, Any]] = {
        "posterior": {},
        "posterior, `train_inputs=`": {"train_inputs": table.train[0]},
        OURS: {"train": table.train},
    }
    found = {}
    for name, options in ways.items():
        sure = hs.Uncertain(net, method="gradients")
        sure.fit([table.held_out], show_progress=False, **options)
        p = sure(table.test[0])
        found[name] = scored(table, p.mean, p.total_var, p.degrees_of_freedom)
    return found


def laplace(python: str, tables: list[Table], nets: list[nn.Sequential]) -> list[Scores]:
    """laplace-torch on the same networks, in an environment of its own."""
    asked = [
        {"weights": list(net.parameters()), "train": t.train, "at": (t.held_out[0], t.test[0])}
        for t, net in zip(tables, nets, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder) / "asked.pt", Path(folder) / "found.pt"
        torch.save(asked, given)
        script = Path(__file__).with_name("uci_laplace.py")
        subprocess.run([python, str(script), str(given), str(taken)], check=True)
        found = torch.load(taken, weights_only=True)
    return [
        {name: best_of(table, [tuple(moments)]) for name, moments in each.items()}
        for table, each in zip(tables, found, strict=True)
    ]


def judged(tables: list[Table], python: str | None) -> list[dict[str, Any]]:
    """All methods on all splits of a set."""
    x, y = (torch.stack([table.train[k] for table in tables]) for k in (0, 1))
    plain = [networks(x, y, Recipe(), seed) for seed in range(MEMBERS)]
    dropped = [networks(x, y, Recipe(dropout=rate), 0) for rate in RATES]
    heads = networks(x, y, Recipe(loss="likelihood"), 0)
    peers = laplace(python, tables, plain[0]) if python else [{} for _ in tables]
    found = []
    for k, table in enumerate(tables):
        own = {
            "plain": [each[k] for each in plain],
            "dropout": [each[k] for each in dropped],
            "head": [heads[k]],
        }
        scores = {**rivals(table, own), **peers[k], **ours(table, plain[0][k])}
        found.append({"set": table.name, "number": table.number, "scores": scores})
    return found


def judged_again(tables: list[Table], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `fit` finds now, beside what was measured of the other methods on the same networks."""
    x, y = (torch.stack([table.train[k] for table in tables]) for k in (0, 1))
    nets = networks(x, y, Recipe(), 0)
    found = []
    for table, net, before in zip(tables, nets, earlier, strict=True):
        error = (net(table.held_out[0]) - table.held_out[1]).square().mean()
        constant = scored(table, net(table.test[0]), error.expand(len(table.test[0]), 1))
        if abs(constant["nll"] - before["scores"]["constant"]["nll"]) > _SAME_NETWORK:
            raise ValueError("The networks are others than those of the file; run without --ours.")
        known = before["scores"]
        kept = {old: known.get(old, known[name]) for name, old in BEFORE.items()}
        found.append({**before, "scores": {**known, **ours(table, net), **kept}})
    return found


def study(asked: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All sets; what an interrupted run has written is taken over with `--resume`."""
    file = RESULTS / "uci.json"
    known = json.loads(file.read_text()) if asked.resume or asked.ours else {"found": {}}
    found: dict[str, list[dict[str, Any]]] = known["found"]
    for name, tables in all_tables(Path(asked.data)).items():
        if name not in found or asked.ours:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if asked.ours:
                    found[name] = judged_again(tables, found[name])
                else:
                    found[name] = judged(tables, asked.peer_python)
            print(f"{name}: {len(tables)} splits", flush=True)
            text = json.dumps({**record(), "found": found}) + "\n"
            write_atomically(file, lambda opened, text=text: opened.write(text), text=True)
    return found


def sign_test(differences: list[float]) -> float:
    """The two-sided probability of as uneven a number of signs; 0 has none."""
    signs = [each < 0 for each in differences if each]
    fewer = min(sum(signs), len(signs) - sum(signs))
    tail = sum(math.comb(len(signs), k) for k in range(fewer + 1)) / 2 ** len(signs)
    return min(1.0, 2 * tail)


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """NLL minus that of a constant, coverage, and how often the local error is better."""
    parts = [
        [each["scores"] for name, every in found.items() if name.startswith(kind) for each in every]
        for kind in ("splits", "gaps")
    ]
    counts = [len(part) for part in parts]
    header = ("", f"{counts[0]} splits", "coverage", f"{OURS} is better", f"{counts[1]} gaps")
    rows = []
    for method in parts[0][0]:
        cells = []
        for part in parts:
            gain = [s[method]["nll"] - s["constant"]["nll"] for s in part]
            cover = 100 * mean(s[method]["coverage"] for s in part)
            cells += [f"{mean(gain):.3f} / {median(gain):.3f}", f"{cover:.0f}"]
        rows.append([method, *cells[:2], _compared(parts[0], method), *cells[2:]])
    return markdown((*header, "coverage"), rows)


def _compared(scores: list[Scores], method: str) -> str:
    if method == OURS:
        return "-"
    differences = [s[OURS]["nll"] - s[method]["nll"] for s in scores]
    wins = sum(each < 0 for each in differences)
    return f"{wins} of {len(differences)}, p = {sign_test(differences):.1g}"
