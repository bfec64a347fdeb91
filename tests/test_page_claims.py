"""Figures inside sentences are those of the committed results; nothing is measured here.

Each function writes a part of a sentence from the results. The pages have to contain it.
"""

import math
from statistics import mean

import pytest

from claims import ROOT, Claims, coverage, covered, each_page, of_tables, result, words_of


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def cost_of_five_percent() -> str:
    case = result("time_to_accuracy")["cases"]["DroNet"]["result"]
    noise, eight = case["noise"]["2 gray levels"], case["settings"]["gradients"].index(8)
    plain, errors = case["plain_seconds"], noise["errors"]
    points = case["seconds"]["gradients"][eight] / plain
    sampled = noise["seconds_to_precise"]["Monte Carlo"] / plain
    return (
        f"8 points take as long as {points:.0f} plain forward passes, and the std is "
        f"{100 * errors['gradients'][eight]:.1f} % off. Monte Carlo is within 5 % after "
        f"{sampled:.0f}. Linearization is {100 * errors['linear'][0]:.0f} % off"
    )


def log_errors_are_factors() -> str:
    case = result("time_to_accuracy")["cases"]["MLP"]["result"]
    (error,) = case["noise"]["noise 0.05"]["errors"]["ADF"]
    return f"({100 * error:.0f} % is a factor of {math.exp(error):.0f})"


def unknown_inputs_are_new() -> str:
    scores = result("shift")["cifar"]["scores"]
    digits, noise = (
        mean(seed["by distance"][kind]["auroc_novelty"] for seed in scores)
        for kind in ("digits", "noise")
    )
    return f"AUROC by novelty is {digits:.3f} for digits and {noise:.3f} for uniform noise"


def gaps_are_not_covered() -> str:
    from uci import OURS

    ours, five = (coverage(of_tables("gaps"), name) for name in (OURS, "five networks"))
    return (
        f"intervals cover {ours:.0f} % in gaps of UCI tables, those of five networks {five:.0f} %"
    )


def night_is_not_covered() -> str:
    found = covered([result("dense")["scores"]], "posterior, Student-t")
    return f"depth at night is covered at {found['night']:.0f} %"


def corruptions_gain_little() -> str:
    held = result("shift")["cifar"]["must_hold"]
    ratio, ece = held["NLL on corruptions, ratio"], held["ECE on corruptions"]
    assert not ratio["holds"] and ece["holds"]
    return (
        f"NLL on corruptions is {ratio['found']:.3f} of that of a constant temperature; the target "
        f"was {ratio['most']:.3f}"
    )


def few_bits_cost_little() -> str:
    found = result("exactness")["cases"]["bfloat16 variance"]["result"]["difference"]
    return f"The result is within 1 % ({100 * max(found.values()):.2f} % on DroNet)"


def large_batches_are_faster() -> str:
    speeds = {
        name: case["rows_per_processor_second"] for name, case in result("scoring")["cases"].items()
    }
    faster = [
        speeds[f"sampled_adf, batch {name}"] / speeds["sampled_adf, batch 256"] - 1
        for name in ("256, chunk 20", "4096")
    ]
    return f"make the paper's method {100 * mean(faster):.0f} % faster"


CLAIMS: Claims = {
    cost_of_five_percent: ["docs/index.md", "docs/method.md"],
    log_errors_are_factors: ["docs/methods.md"],
    unknown_inputs_are_new: ["docs/faq.md"],
    gaps_are_not_covered: ["docs/method.md"],
    night_is_not_covered: ["docs/method.md", "docs/methods.md"],
    corruptions_gain_little: ["docs/method.md"],
    few_bits_cost_little: ["docs/deployment.md"],
    large_batches_are_faster: ["docs/scoring.md"],
}


@each_page(CLAIMS)
def test_claim_is_what_the_results_give(claim, page):
    assert claim() in words_of(page)
