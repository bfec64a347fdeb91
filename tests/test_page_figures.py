"""The figures on the pages are those of the committed results; nothing is measured here."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, BENCHMARKS = ROOT / "docs", ROOT / "benchmarks"
MARK = re.compile(r"^<!-- ([\w-]+):begin -->$", re.MULTILINE)
MARKED = [
    (page.name, name)
    for page in sorted(DOCS.glob("*.md"))
    for name in MARK.findall(page.read_text())
]
# Of every seed, split or condition.
Rows = list[dict]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_marked_table_is_compared():
    from figures import TABLES

    assert set(MARKED) == set(TABLES)


@pytest.mark.parametrize("page, name", MARKED, ids=lambda part: part)
def test_table_is_what_the_results_give(page, name):
    from figures import TABLES
    from page import in_page

    # After a new run: python benchmarks/figures.py
    assert in_page(DOCS / page, name) == TABLES[page, name]()


def test_page_of_the_rules_is_what_the_results_give():
    from figures import accuracy_page

    assert (DOCS / "accuracy.md").read_text() == accuracy_page()


def test_page_of_the_benchmarks_is_what_the_results_give(tmp_path):
    pytest.importorskip("matplotlib")
    from figures import RESULTS, result
    from speed import must_hold, page

    page.write(RESULTS, tmp_path / "benchmarks.md", tmp_path / "img")
    assert (tmp_path / "benchmarks.md").read_text() == (DOCS / "benchmarks.md").read_text()
    assert must_hold.rows(RESULTS) == result("must_hold")["rows"]


def test_page_of_the_architectures_is_what_the_results_give():
    from figures import RESULTS, result

    # By its path: the installed package `coverage` hides the folder.
    path = BENCHMARKS / "coverage" / "table.py"
    spec = importlib.util.spec_from_file_location("coverage_table", path)
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    found = result("coverage")
    text = table.markdown(found["models"], found["versions"], found["command"])
    assert (RESULTS / "coverage.md").read_text() == text


def test_a_changed_figure_is_noticed(tmp_path):
    from figures import TABLES
    from page import in_page, into_page

    page, table = tmp_path / "page.md", TABLES["model.md", "roads"]()
    page.write_text("Before.\n<!-- roads:begin -->\n<!-- roads:end -->\nAfter.\n")
    into_page(page, "roads", table)
    assert in_page(page, "roads") == table
    page.write_text(page.read_text().replace("-3.05", "-3.06"))
    assert in_page(page, "roads") != table


def accuracy_of_the_default(case: str, measure: str) -> float:
    from accuracy_bounds import DEFAULT
    from figures import result

    return result("accuracy")["cases"][case][DEFAULT][measure]


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
    cases = ("element-wise dropout 0.5%", "channel-wise dropout 0.5%")
    element, channel = (stated_by_actual(f"ResNet-20, {case}") for case in cases)
    vit = stated_by_actual("ViT, 2 gray levels")
    return (
        f"stated error is {vit} of the actual one for the ViT at 2 gray levels, and {element} and "
        f"{channel} of it for element-wise and channel-wise dropout at 0.5 %"
    )


def top_class_is_hard() -> str:
    two, eight = (
        accuracy_of_the_default(f"ResNet-20, {noise}, top class", "log_error")
        for noise in ("2 gray levels", "8 gray levels")
    )
    return f"log error of the top class's std is {two:.3f} and {eight:.3f} at 2 and 8 gray levels"


def gaps_are_not_covered() -> str:
    from figures import result
    from uci import OURS

    every = result("uci")["found"].items()
    gaps = [each["scores"] for name, part in every if name.startswith("gaps") for each in part]
    ours, five = (
        100 * sum(each[method]["coverage"] for each in gaps) / len(gaps)
        for method in (OURS, "five networks")
    )
    return (
        f"intervals cover {ours:.0f} % in gaps of UCI tables, those of five networks {five:.0f} %"
    )


def night_is_not_covered() -> str:
    from figures import result

    found = covered([result("dense")["scores"]], "posterior, all layers")
    return f"depth at night is covered at {found['night']:.0f} %"


def corruptions_gain_little() -> str:
    from figures import result

    held = result("shift")["cifar"]["must_hold"]
    ratio, ece = held["NLL on corruptions, ratio"], held["ECE on corruptions"]
    assert not ratio["holds"] and not ece["holds"]
    return (
        f"NLL on corruptions is {ratio['found']:.2f} of that of a constant temperature, where "
        f"{ratio['most']:.2f} was asked for, and the ECE {100 * ece['found']:.1f} %, where "
        f"{100 * ece['most']:.0f} % was"
    )


CLAIMS = {
    std_is_right: ["README.md", "docs/index.md"],
    cost_of_five_percent: ["README.md", "docs/index.md", "docs/method.md"],
    roads_are_covered: ["README.md", "docs/index.md"],
    architectures_that_run: ["README.md"],
    dronet_ranks_too_little: ["docs/method.md"],
    stated_error_is_too_small: ["docs/method.md"],
    top_class_is_hard: ["docs/method.md"],
    gaps_are_not_covered: ["README.md", "docs/method.md"],
    night_is_not_covered: ["README.md", "docs/method.md"],
    corruptions_gain_little: ["docs/method.md"],
}


@pytest.mark.parametrize(
    "claim, page",
    [(claim, page) for claim, pages in CLAIMS.items() for page in pages],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_claim_is_what_the_results_give(claim, page):
    assert claim() in " ".join((ROOT / page).read_text().split())
