"""The demonstration's table, and what it shows, in sentences."""

from __future__ import annotations

import math
from textwrap import fill

from howsure_lab.demo.study import UNSEEN, Outcome, Study

_HEAD = """\
              error   predicted       NLL        in the 95 %  variance from       AUROC
condition      RMSE         std  howsure one std   interval  camera  network  vs. clear"""


def table(study: Study) -> str:
    """All conditions, one line each."""
    lines = []
    for outcome in study.outcomes:
        share = 100 * outcome.sensor_share
        auroc = "-" if outcome is study.clear else f"{outcome.auroc_against(study.clear):.2f}"
        lines.append(
            f"{outcome.name:<11}{outcome.rmse:8.3f}{outcome.mean_std:12.3f}"
            f"{outcome.nll:9.2f}{outcome.nll_of_one_std(study.one_std):8.2f}"
            f"{100 * outcome.coverage:9.0f} %{share:7.0f} %{100 - share:7.0f} %{auroc:>11}"
        )
    return "\n".join([_HEAD, *lines])


LEGEND = """\
RMSE        of the steering angle, in radians
std         that howsure predicts, on average
NLL         of the true angles, without 1/2 log 2 pi; smaller is better. one std: the same for
            all scenes, the network's RMSE on the held-out ones, which needs no howsure
interval    share of true angles inside it; 95 % is right, less means that the std is too small
variance    from the camera's noise, and from what the network does not know
AUROC       of two scenes, one of this condition and one clear: how often the first has the larger
            std; 0.5 is chance, 1 is always"""


_LEVEL = 0.95


def explanation(study: Study) -> str:
    """Paragraphs on the method, on every kind of condition, and on what the std does not say."""
    by_name = {outcome.name: outcome for outcome in study.outcomes}
    unseen = [by_name[condition.name] for condition in UNSEEN]
    clear, noisy = study.clear, by_name["noisy"]
    error, known = clear.prediction.std_error, ""
    if error is not None:
        relative = float((error.flatten() / clear.std).median())
        known = f" By its own account it knows the std of a clear road to {_percent(relative)}."
    ranks = ", ".join(
        f"{each.name} {each.rank:.2f} ({each.rank_if_right:.2f})" for each in study.outcomes
    )
    parts = [
        f"- method: `{study.method}`, howsure's choice for this network.{known}",
        "- clear: the variance was fitted on other clear roads. Here "
        f"{_percent(clear.coverage)} of the true angles lie in the 95 % interval: {judged(clear)}.",
        "- noisy: the camera's noise is "
        f"{noisy.condition.noise_std / clear.condition.noise_std:g} times larger, and howsure is "
        f"told so. The std goes from {clear.mean_std:.3f} to {noisy.mean_std:.3f}, since the "
        f"camera's part grows, and the error from {clear.rmse:.3f} to {noisy.rmse:.3f}; "
        f"{judged(noisy)}.",
        *(_on_unseen(outcome, clear) for outcome in unseen),
        _on_intervals(unseen),
        "- Within one condition, does a larger std come with a larger error? Their rank "
        "correlation, in brackets what it would be if every std were exactly right, since errors "
        f"are random even then: {ranks}.",
    ]
    return "\n".join(fill(part, 96, subsequent_indent="  ") for part in parts)


def _on_unseen(outcome: Outcome, clear: Outcome) -> str:
    auroc = outcome.auroc_against(clear)
    return (
        f"- {outcome.name}: unseen in training and in fitting. The std is "
        f"{outcome.mean_std / clear.mean_std:.1f} times that on clear roads, which "
        f"{detected(auroc)} (AUROC {auroc:.2f}), and its median novelty is "
        f"{outcome.novelty:.1f}; the error is "
        f"{outcome.rmse / clear.rmse:.1f} times as large, and "
        f"{_percent(outcome.coverage)} lie in the interval: {judged(outcome)}."
    )


def _on_intervals(unseen: list[Outcome]) -> str:
    small = [outcome.name for outcome in unseen if _off(outcome) < 0]
    if not small:
        return "- The intervals keep their coverage under all conditions that were not in training."
    *first, last = small
    names = f"{', '.join(first)} and {last}" if first else last
    return (
        f"- So for {names} a large std is a warning, not an error bar: what "
        "fits clear roads says too little there. Intervals with the right coverage "
        "need held-out data of the condition, for `fit` or `calibrate`."
    )


def judged(outcome: Outcome) -> str:
    """Whether intervals cover what they say, as far as so many scenes can tell."""
    words = {
        -1: "the intervals are too narrow",
        0: f"as far as {len(outcome.true)} roads can tell, the intervals cover what they say",
        1: "the intervals are wider than they need to be",
    }
    return words[_off(outcome)]


def detected(auroc: float) -> str:
    """How well the std distinguishes a condition from the clear one."""
    if auroc >= 0.9:
        return "separates it from clear almost perfectly"
    if auroc >= 0.7:
        return "often distinguishes it from clear"
    return "does not distinguish it from clear"


def _off(outcome: Outcome) -> int:
    """-1, 0 or 1: coverage below, within or above three standard errors of the level."""
    error = 3 * math.sqrt(_LEVEL * (1 - _LEVEL) / len(outcome.true))
    gap = outcome.coverage - _LEVEL
    return 0 if abs(gap) <= error else int(math.copysign(1, gap))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
