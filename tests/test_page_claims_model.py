"""What docs/model.md says of its tables is what the committed results give."""

from statistics import mean, median

import pytest

from claims import ROOT, Claims, coverage, covered, each_page, listed, of_tables, result, words_of

FIVE = "five networks"
# Of the drive, as a sentence names them.
CONDITIONS = {
    "clean": "on clean frames",
    "dark": "in the dark",
    "fog": "in fog",
    "blur": "blurred",
    "low contrast": "with little contrast",
    "noise": "with noise",
    "occlusion": "with occlusions",
}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def drive_is_covered() -> str:
    scores = result("shift")["drive"]["scores"]
    ours, constant, dropout = (
        f"{min(by.values()):.0f} to {max(by.values()):.0f} %"
        for by in (
            covered(scores, name) for name in ("posterior", "constant", "dropout + residual_var")
        )
    )
    return (
        f"cover {ours} under every condition, where those of a constant cover {constant} and those "
        f"of dropout {dropout}"
    )


def drive_by_likelihood() -> str:
    (scores,) = result("shift")["drive"]["scores"]
    behind = {
        name: scores["posterior"][name]["nll"] - scores["dropout + residual_var"][name]["nll"]
        for name in CONDITIONS
    }
    shifted = [scores["posterior"][name]["nll"] for name in CONDITIONS if name != "clean"]
    ahead = listed(words for name, words in CONDITIONS.items() if behind[name] < 0)
    not_ahead = listed(
        f"{words} by {behind[name]:.2f}" for name, words in CONDITIONS.items() if behind[name] > 0
    )
    return (
        f"By NLL the posterior is ahead of dropout {ahead}; dropout is ahead {not_ahead}. The "
        f"posterior's mean NLL over the six conditions is {mean(shifted):.2f}"
    )


def some_shifts_are_missed() -> str:
    scores = result("image_tasks")["scores"]

    def of(shift: str, measure: str) -> list[float]:
        return [mean(each["posterior"][shift][measure] for each in scores[t]) for t in scores]

    glare, clutter = (
        listed(f"{100 * share:.0f}" for share in of(shift, "coverage"))
        for shift in ("glare", "clutter")
    )
    return (
        f"the intervals cover {glare} % under glare and {clutter} % with clutter (digits and "
        "clothes)"
    )


def harmless_shifts_cost() -> str:
    found = result("image_tasks")

    def of(part: str, shift: str) -> str:
        tasks = found[part].values()
        nll = mean(mean(each["posterior"][shift]["nll"] for each in task) for task in tasks)
        return f"{nll:.2f}"

    return listed(
        f"{shift} ({of('before', shift)} to {of('scores', shift)})"
        for shift in ("stripes", "speckle", "three grays")
    )


def gaps_are_covered_better() -> str:
    from uci import OURS

    gaps = of_tables("gaps")
    ours, five = (f"{coverage(gaps, name):.0f} %" for name in (OURS, FIVE))
    medians = listed(
        f"{median(row[name]['nll'] - row['constant']['nll'] for row in gaps):.3f}"
        for name in (OURS, FIVE)
    )
    return (
        f"In the gaps the intervals of `train=` cover {ours}, those of five networks {five}, at a "
        f"median NLL of {medians}"
    )


def gaps_of_energy_rule() -> str:
    from uci import OURS

    energy, others = of_tables("gaps energy"), of_tables("gaps", without="energy")
    most = max(coverage(energy, method) for method in energy[0])
    ours, five = (coverage(others, name) for name in (OURS, FIVE))
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
        f"constant by {min(worse):.2f} to {max(worse):.2f}"
    )


def tables_without_student() -> str:
    from uci import BEFORE, OURS

    rows, inputs = of_tables("splits"), "posterior, `train_inputs=`"
    gains = [
        mean(row[name]["gaussian_nll"] - row["constant"]["nll"] for row in rows)
        for name in (OURS, inputs)
    ]
    wins = [
        sum(row[name][kind] < row[BEFORE[name]]["nll"] for row in rows)
        for kind in ("nll", "gaussian_nll")
        for name in (OURS, inputs)
    ]
    return (
        f"It is ahead of version 0.2 in {wins[0]} and {wins[1]} of {len(rows)} splits with "
        f"`train=` and `train_inputs=`; as a Gaussian of the same variance in {wins[2]} and "
        f"{wins[3]}, with means of {gains[0]:.3f} and {gains[1]:.3f}"
    )


def wine_is_better_with_other_means() -> str:
    from uci import OURS

    rows = of_tables("splits wine")
    wins = [
        sum(row[name]["nll"] < row[OURS]["nll"] for row in rows) for name in ("MC dropout", FIVE)
    ]
    return f"are better in {wins[0]} and {wins[1]} of {len(rows)} splits"


def targets_of_classes() -> str:
    found = result("shift")["cifar"]
    *held, digits, noise, average, scenes = (
        found["must_hold"][name]
        for name in (
            "clean NLL above a constant temperature",
            "ECE on corruptions",
            "1 - AUROC of digits",
            "1 - AUROC of noise",
            "1 - mean AUROC",
            "1 - AUROC of scenes",
        )
    )
    ratio = found["must_hold"]["NLL on corruptions, ratio"]
    unknown = (digits, noise, average, scenes)
    assert all(each["holds"] for each in (*held, *unknown)) and not ratio["holds"]
    clean, ece = held
    entropy = mean(seed["by distance"]["digits"]["auroc_entropy"] for seed in found["scores"])
    return (
        f"clean NLL within {clean['most']} of a constant temperature (measured: "
        f"{clean['found']:.3f}), an ECE on corruptions of at most {100 * ece['most']:.0f} % ("
        f"{100 * ece['found']:.1f} %) and an AUROC of unknown inputs of {1 - digits['most']:.2f} "
        f"by novelty ({1 - digits['found']:.3f} and {1 - noise['found']:.3f}), of "
        f"{1 - average['most']:.3f} on average ({1 - average['found']:.3f}) and of "
        f"{1 - scenes['most']:.2f} for scenes ({1 - scenes['found']:.3f}) were met; by entropy "
        f"digits reach {entropy:.3f}. The target of {ratio['most']:.3f} for the ratio of the NLL "
        "on corruptions to that of a constant temperature was **missed**: it is "
        f"{ratio['found']:.3f}"
    )


def gain_on_corruptions_differs() -> str:
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


CLAIMS: Claims = {
    claim: ["docs/model.md"]
    for claim in (
        drive_is_covered,
        drive_by_likelihood,
        some_shifts_are_missed,
        harmless_shifts_cost,
        gaps_are_covered_better,
        gaps_of_energy_rule,
        some_splits_of_energy_are_worse,
        tables_without_student,
        wine_is_better_with_other_means,
        targets_of_classes,
        gain_on_corruptions_differs,
    )
}


@each_page(CLAIMS)
def test_claim_is_what_the_results_give(claim, page):
    assert claim() in words_of(page)
