"""The first screen: README and home page show one code, whose figures are those that it gives."""

import re
from pathlib import Path

import pytest
import torch

import howsure as hs
from howsure_lab.demo.study import BATCH, CLEAR, Roads, study
from howsure_lab.experiments.steering.model import load_trained
from old_torch import TORCH

ROOT = Path(__file__).parents[1]
FIRST = [ROOT / "README.md", ROOT / "docs" / "index.md"]
UNSEEN = ("night", "fog", "no lane")
SENTENCE = re.compile(
    r"cover (\d+), (\d+) and (\d+) % at night, in fog and with no lane markings"
    r"(?:, where one fixed error bar covers (\d+), (\d+) and (\d+) %)?"
)


def prose(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").replace("*", "").split())


def first_code(page: Path) -> str:
    return re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]


def test_both_pages_show_the_same_code_and_figures():
    assert first_code(FIRST[0]) == first_code(FIRST[1])
    pages = [*FIRST, ROOT / "docs" / "methods.md", ROOT / "docs" / "faq.md"]
    figures = {SENTENCE.search(prose(page)).groups()[:3] for page in pages}
    assert len(figures) == 1


def test_the_readme_is_one_screen_of_words():
    text = re.sub(r"```.*?```", "", FIRST[0].read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(text.split()) <= 450


@pytest.mark.skipif(TORCH < "2.13", reason="the page has the figures of torch 2.13")
def test_the_numbers_beside_the_code_are_its_own():
    roads = Roads(100, 0)
    names = {
        "model": load_trained(),
        "val_loader": list(roads.held_out().batches(BATCH)),
        "image": roads.read(CLEAR).x[2:3],
    }
    exec(first_code(FIRST[0]), names)
    p, code = names["p"], first_code(FIRST[0])
    mean, std = map(float, re.search(r"([\d.]+) ± ([\d.]+) rad", code).groups())
    assert abs(float(p.mean) - mean) < 0.01 and abs(float(p.std) - std) < 0.01
    low, high = map(float, re.search(r"([\d.]+) … ([\d.]+)", code).groups())
    assert abs(float(p.interval()[0]) - low) < 0.02 and abs(float(p.interval()[1]) - high) < 0.02
    assert abs(float(p.novelty) - float(re.search(r"# ([\d.]+) here", code)[1])) < 0.3
    assert torch.equal(p.aleatoric + p.epistemic, p.total_var)


@pytest.mark.slow
def test_the_coverage_is_that_of_the_demonstration():
    found = study(Roads(100, 0))
    by_name = {outcome.name: outcome for outcome in found.outcomes}
    ours, fixed = [], []
    for outcome in (by_name[name] for name in UNSEEN):
        error = outcome.pairs.y.flatten() - outcome.prediction.mean.flatten()
        ours.append(round(100 * outcome.coverage))
        one = hs.metrics.coverage(
            torch.zeros_like(error), torch.full_like(error, found.one_std**2), error, level=0.95
        )
        fixed.append(round(100 * float(one)))
    stated = [int(number) for number in SENTENCE.search(prose(FIRST[0])).groups()]
    # Training data, weights and roads are fixed; rounding differs between machines.
    assert all(abs(a - b) <= 2 for a, b in zip([*ours, *fixed], stated, strict=True))
