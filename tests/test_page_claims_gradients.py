"""What sentences say of the std's accuracy is what benchmarks/results/accuracy.json has."""

import re

import pytest

from claims import ROOT, TOP_CLASS, Claims, accuracy, each_page, listed, result, words_of

CONVOLUTIONAL = ("ResNet-20", "ResNet-32", "DroNet")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def std_is_right() -> str:
    name = "ResNet-20, 2 gray levels"
    ratio, error, rank, passes = (
        accuracy(name, measure) for measure in ("ratio", "log_error", "rank", "forward_passes")
    )
    return (
        f"predicted std / true std has a median of {ratio:.3f}, a mean log error of {error:.3f} "
        f"and a rank correlation of {rank:.3f}, at the cost (in FLOPs) of {passes:.0f} forward "
        "passes"
    )


def of_paper(case: str) -> float:
    """The ratio of its std to the true one."""
    return accuracy(case, "ratio", "diagonal ADF (paper)")


def independence_fails() -> str:
    return f"the std is {1 / of_paper('MLP, 0.05'):.0f} times too small"


def digits_lose_most() -> str:
    """By the table of docs/migrating.md, which another test measures."""
    page = (ROOT / "docs" / "migrating.md").read_text()
    (row,) = re.findall(r"^\| 0\.1 \|.*$", page, re.MULTILINE)
    kept = row.split("|")[6].split()[0]
    return (
        f"the logits, {kept} of the true std is left. Other networks lose more: an MLP on 24 "
        f"numbers keeps {of_paper('MLP, 0.05'):.2f} of it"
    )


def network_is_not_the_mean() -> str:
    apart = accuracy("ResNet-20, 2 gray levels", "mean_error", "plain network")
    return f"with 2 gray levels of noise, the two differ by {apart:.2f} standard deviations"


def strong_noise_moves_the_mean() -> str:
    apart = [accuracy(f"{name}, 0.1", "mean_error", "plain network") for name in CONVOLUTIONAL]
    return f"{min(apart):.1f} to {max(apart):.1f} standard deviations at a noise of 0.1"


def strong_noise_is_hard() -> str:
    from accuracy_bounds import rows

    asked = {(row.case, row.measure): row for row in rows(result("accuracy")["cases"])}
    rank = asked["DroNet, 0.1", "rank"]
    assert rank.holds is False
    times = [
        accuracy(f"{name}, 0.1", "log_error") / accuracy(f"{name}, 2 gray levels", "log_error")
        for name in CONVOLUTIONAL
    ]
    return (
        f"DroNet at a noise of 0.1 has a rank correlation of {rank.found:.3f}; the target was "
        f"{rank.least}. The log error is {min(times):.1f} to {max(times):.1f} times as large at "
        "0.1 as at 2 gray levels"
    )


def stated_error_is_too_small() -> str:
    channel, top = (
        accuracy(f"ResNet-20, {case}", "stated_error")
        / accuracy(f"ResNet-20, {case}", "actual_error")
        for case in ("channel-wise dropout 0.5%", f"0.1{TOP_CLASS}")
    )
    return (
        f"stated error is {channel:.2f} of the actual one for channel-wise dropout at 0.5 %, and "
        f"{top:.2f} of it for the top class at a noise of 0.1"
    )


def against_logits(noise: str) -> float:
    """How many times as large the log error of the top class's std is."""
    name = f"ResNet-20, {noise}"
    return accuracy(name + TOP_CLASS, "log_error") / accuracy(name, "log_error")


def top_class_is_hard() -> str:
    noises = ("2 gray levels", "8 gray levels")
    errors = listed(f"{accuracy(f'ResNet-20, {n}{TOP_CLASS}', 'log_error'):.3f}" for n in noises)
    times = listed(f"{against_logits(noise):.1f}" for noise in noises)
    return (
        f"log error of the top class's std is {errors} at 2 and 8 gray levels, {times} times that "
        "of the logits"
    )


def probabilities_are_harder_than_logits() -> str:
    times = [against_logits(noise) for noise in ("2 gray levels", "8 gray levels", "0.1")]
    return f"std is {min(times):.1f} to {max(times):.1f} times that of the logits"


CLAIMS: Claims = {
    std_is_right: ["docs/index.md"],
    independence_fails: ["docs/faq.md"],
    digits_lose_most: ["docs/concepts.md"],
    network_is_not_the_mean: ["docs/faq.md"],
    strong_noise_moves_the_mean: ["docs/gradients.md"],
    strong_noise_is_hard: ["docs/method.md"],
    stated_error_is_too_small: ["docs/method.md"],
    top_class_is_hard: ["docs/method.md"],
    probabilities_are_harder_than_logits: ["docs/gradients.md"],
}


@each_page(CLAIMS)
def test_claim_is_what_the_results_give(claim, page):
    assert claim() in words_of(page)
