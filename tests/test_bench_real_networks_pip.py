"""How the benchmark of networks from PyPI judges a std; the packages themselves are not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks/real_networks_pip"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's modules, which import each other by name."""
    for folder in (FOLDER.parent, FOLDER):
        monkeypatch.syspath_prepend(str(folder))
    import measure
    import page

    yield SimpleNamespace(measure=measure, page=page)
    for name in ("measure", "page"):
        sys.modules.pop(name, None)


def case_of(bench, model, x, **options):
    return bench.measure.Case("it", "here", lambda: model, lambda: x, 0.1, **options)


def test_a_linear_network_has_ratio_and_rank_one(bench):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(5, 40).eval(), torch.randn(3, 5)
    case = case_of(bench, model, x, samples=4000)
    halves = bench.measure.truth(case, model, x)
    exact = 0.1 * model.weight.square().sum(1).sqrt().detach().expand(3, -1).double()
    prediction = SimpleNamespace(mean=model(x).detach())
    found = bench.measure.against_truth(exact, halves, prediction)
    assert found["ratio"] == pytest.approx(1, abs=0.02)
    assert found["rank"] == pytest.approx(found["limit"], abs=0.01)
    doubled = bench.measure.against_truth(2 * exact, halves, prediction)
    assert doubled["ratio"] == pytest.approx(2, abs=0.04)
    upside_down = bench.measure.against_truth(1 / exact, halves, prediction)
    assert upside_down["rank"] == pytest.approx(-found["rank"])


def test_all_steps_run_on_a_small_network_and_are_on_the_page(bench):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    ).eval()
    steps = ("predict", "check", "budget", "fit")
    *_, found = bench.measure.measured(case_of(bench, model, torch.randn(4, 6), samples=200), steps)
    assert {step: found[step].get("error") for step in steps} == dict.fromkeys(steps)
    environment = {"date": "today", "python": "3", "packages": {"torch": "2"}}
    text = bench.page.written({"environment": environment, "networks": {"it": found}})
    assert "Of 1 networks 1 run by default settings" in text


def test_an_error_is_told_with_its_step(bench):
    def step():
        raise ValueError("a first line\nand more")

    found = bench.measure.attempt(step)
    assert found["error"] == "ValueError: a first line" and not found["ok"]


@pytest.mark.parametrize(
    ("ratio", "rank", "limit", "good"),
    [
        (1.05, 0.95, 0.99, True),
        (1.15, 0.95, 0.99, False),
        (0.85, 0.95, 0.99, False),
        (1.0, 0.85, 0.99, False),
        (1.0, 0.85, 0.86, True),
    ],
)
def test_what_counts_as_reached(bench, ratio, rank, limit, good):
    row = {"predict": {"ok": True, "ratio": ratio, "rank": rank, "limit": limit}}
    assert bench.page.reached(row) is good
    assert not bench.page.reached({"predict": {"ok": False}})


def test_every_network_of_the_page_is_within_its_tolerance_or_has_a_reason(bench):
    import json

    NOTES, is_near = bench.page.NOTES, bench.page.is_near

    path = FOLDER.parent / "results/everyday_networks.json"
    kept = json.loads(path.read_text())["networks"]
    rows = {name: row["predict"] for name, row in kept.items()}
    off = {name for name, row in rows.items() if row["ok"] and not is_near(row)}
    assert off <= set(NOTES)
    assert sum(map(is_near, rows.values())) >= 30
