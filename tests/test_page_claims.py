"""Figures inside sentences are those of the committed results; nothing is measured here.

Each function writes a part of a sentence from the results. The pages have to contain it.
"""

from pathlib import Path
from statistics import mean, median

import pytest

ROOT = Path(__file__).parents[1]
# Of every seed or split, by method.
Rows = list[dict]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def accuracy_of_the_default(case: str, measure: str) -> float:
    from accuracy_bounds import DEFAULT
    from figures import result

    return result("accuracy")["cases"][case][DEFAULT][measure]


def independence_fails() -> str:
    from figures import result

    ratio = result("accuracy")["cases"]["MLP, 0.05"]["diagonal ADF (paper)"]["ratio"]
    return f"the std is {1 / ratio:.0f} times too small"


def unknown_inputs_are_new() -> str:
    from figures import result

    scores = result("shift")["cifar"]["scores"]
    digits, noise = (
        mean(seed["by distance"][kind]["auroc_novelty"] for seed in scores)
        for kind in ("digits", "noise")
    )
    return f"AUROC by novelty is {digits:.3f} for digits and {noise:.3f} for uniform noise"


def stated_by_actual(case: str) -> str:
    stated, actual = (
        accuracy_of_the_default(case, f"{kind}_error") for kind in ("stated", "actual")
    )
    return f"{stated / actual:.2f}"


def covered(scores: Rows, method: str) -> dict[str, float]:
    """Mean coverage in percent of every condition."""
    count = len(scores)
    return {
        condition: 100 * sum(each[method][condition]["coverage"] for each in scores) / count
        for condition in scores[0][method]
    }


def std_is_right() -> str:
    name = "ResNet-20, 2 gray levels"
    ratio, error, rank, passes = (
        accuracy_of_the_default(name, measure)
        for measure in ("ratio", "log_error", "rank", "forward_passes")
    )
    return (
        f"predicted std / true std has a median of {ratio:.3f}, a mean log error of {error:.3f} "
        f"and a rank correlation of {rank:.3f}, for {passes:.0f} forward passes in operations"
    )


def cost_of_five_percent() -> str:
    from figures import result

    case = result("time_to_accuracy")["cases"]["DroNet"]["result"]
    noise, eight = case["noise"]["2 gray levels"], case["settings"]["gradients"].index(8)
    plain, errors = case["plain_seconds"], noise["errors"]
    points = case["seconds"]["gradients"][eight] / plain
    sampled = noise["seconds_to_precise"]["Monte Carlo"] / plain
    return (
        f"8 points take as long as {points:.0f} plain forward passes, and the std is "
        f"{100 * errors['gradients'][eight]:.1f} % off. Monte Carlo is within 5 % after "
        f"{sampled:.0f}. Linearisation is {100 * errors['linear'][0]:.0f} % off"
    )


def roads_are_covered() -> str:
    from figures import result

    scores = result("shift")["roads"]["scores"]
    found = [covered(scores, name) for name in ("posterior", "dropout + residual_var")]
    ours, dropout = (
        f"{by['night']:.0f}, {by['fog']:.0f} and {by['no lane']:.0f} %" for by in found
    )
    return (
        f"95 % intervals cover {found[0]['clear']:.0f} % on clear roads, and {ours} at night, in "
        f"fog and without a lane, which nobody announced. With dropout these are {dropout}"
    )


def architectures_that_run() -> str:
    from figures import result

    status = [model["status"] for model in result("coverage")["models"]]
    return f"{status.count('ok')} of {len(status)} architectures"


def dronet_ranks_too_little() -> str:
    rank = accuracy_of_the_default("DroNet, 0.1", "rank")
    return f"DroNet at a noise of 0.1 has a rank correlation of {rank:.3f}"


def stated_error_is_too_small() -> str:
    cases = ("channel-wise dropout 0.5%", "0.1, top class")
    channel, top = (stated_by_actual(f"ResNet-20, {case}") for case in cases)
    return (
        f"stated error is {channel} of the actual one for channel-wise dropout at 0.5 %, and {top} "
        "of it for the top class at a noise of 0.1"
    )


def top_class_is_hard() -> str:
    two, eight = (
        accuracy_of_the_default(f"ResNet-20, {noise}, top class", "log_error")
        for noise in ("2 gray levels", "8 gray levels")
    )
    return f"log error of the top class's std is {two:.3f} and {eight:.3f} at 2 and 8 gray levels"


def of_tables(start: str, without: str | None = None) -> Rows:
    """The scores of every split or gap whose name begins so."""
    from figures import result

    every = result("uci")["found"].items()
    chosen = [
        part for name, part in every if name.startswith(start) and not (without and without in name)
    ]
    return [each["scores"] for part in chosen for each in part]


def coverage(rows: Rows, method: str) -> float:
    """Its mean in percent."""
    return 100 * mean(row[method]["coverage"] for row in rows)


def gaps_are_not_covered() -> str:
    from uci import OURS

    ours, five = (coverage(of_tables("gaps"), name) for name in (OURS, "five networks"))
    return (
        f"intervals cover {ours:.0f} % in gaps of UCI tables, those of five networks {five:.0f} %"
    )


def gaps_of_energy_rule() -> str:
    from uci import OURS

    energy, others = of_tables("gaps energy"), of_tables("gaps", without="energy")
    most = max(coverage(energy, method) for method in energy[0])
    ours, five = (coverage(others, name) for name in (OURS, "five networks"))
    return (
        f"no method covers more than {most:.0f} % there; in the {len(others)} other gaps `train=` "
        f"covers {ours:.0f} %, five networks {five:.0f} %"
    )


def some_splits_of_energy_are_worse() -> str:
    from uci import OURS

    gains = [row[OURS]["nll"] - row["constant"]["nll"] for row in of_tables("splits energy")]
    worse = [gain for gain in gains if gain > 0]
    return (
        f"median is {median(gains):.2f}, and {len(worse)} of {len(gains)} splits are worse than a "
        f"constant by {min(worse):.1f} to {max(worse):.1f}"
    )


def wine_is_better_with_other_means() -> str:
    from uci import OURS

    rows = of_tables("splits wine")
    wins = [
        sum(row[name]["nll"] < row[OURS]["nll"] for row in rows)
        for name in ("MC dropout", "five networks")
    ]
    return f"are better in {wins[0]} and {wins[1]} of {len(rows)} splits"


def gain_on_corruptions_differs() -> str:
    from figures import result

    scores = result("shift")["cifar"]["scores"]

    def change(corruption: str) -> str:
        ways = ("temperature", "by distance")
        before, after = (mean(seed[way][corruption]["nll"] for seed in scores) for way in ways)
        return f"{before:.2f} to {after:.2f}"

    return (
        f"NLL {change('motion')} for motion blur and {change('zoom')} for zoomed images, "
        f"{change('rotated')} for rotated ones, and a loss where all images are darker "
        f"(gamma, {change('gamma')})"
    )


def rates_agree() -> str:
    from figures import result

    rows = result("rate_search")["cases"].values()
    cheaper = [row["times_cheaper"] for row in rows]
    apart = max(row["steps_apart"] for row in rows)
    return (
        f"agree within {apart:.2f} steps of the grid, at a {min(cheaper):.0f}th to a "
        f"{max(cheaper):.0f}th of the cost"
    )


def night_is_not_covered() -> str:
    from figures import result

    found = covered([result("dense")["scores"]], "posterior, all layers")
    return f"depth at night is covered at {found['night']:.0f} %"


def corruptions_gain_little() -> str:
    from figures import result

    held = result("shift")["cifar"]["must_hold"]
    ratio, ece = held["NLL on corruptions, ratio"], held["ECE on corruptions"]
    assert not ratio["holds"] and ece["holds"]
    return (
        f"NLL on corruptions is {ratio['found']:.3f} of that of a constant temperature, where "
        f"{ratio['most']:.3f} was asked for"
    )


CLAIMS = {
    std_is_right: ["README.md", "docs/index.md"],
    cost_of_five_percent: ["README.md", "docs/index.md", "docs/method.md"],
    independence_fails: ["docs/faq.md"],
    unknown_inputs_are_new: ["docs/faq.md"],
    roads_are_covered: ["README.md", "docs/index.md", "docs/methods.md", "docs/faq.md"],
    architectures_that_run: ["README.md"],
    dronet_ranks_too_little: ["docs/method.md"],
    stated_error_is_too_small: ["docs/method.md"],
    top_class_is_hard: ["docs/method.md"],
    gaps_are_not_covered: ["README.md", "docs/method.md"],
    night_is_not_covered: ["README.md", "docs/method.md", "docs/methods.md"],
    corruptions_gain_little: ["docs/method.md"],
    gaps_of_energy_rule: ["docs/model.md"],
    some_splits_of_energy_are_worse: ["docs/model.md"],
    wine_is_better_with_other_means: ["docs/model.md"],
    gain_on_corruptions_differs: ["docs/model.md"],
    rates_agree: ["docs/gradients.md"],
}


@pytest.mark.parametrize(
    "claim, page",
    [(claim, page) for claim, pages in CLAIMS.items() for page in pages],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_claim_is_what_the_results_give(claim, page):
    assert claim() in " ".join((ROOT / page).read_text().split())
