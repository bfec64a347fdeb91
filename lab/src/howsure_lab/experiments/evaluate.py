"""A tuned method on its test sets: scores, and the predictions for the figures."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from howsure import metrics
from howsure_lab.experiments.contenders import CONTENDERS, Bench, Contender, Tuned, tuned
from howsure_lab.experiments.folder import RunFolder
from howsure_lab.experiments.pairs import Pairs
from howsure_lab.experiments.scores import regression_scores

_DIGITS = 6  # of kept predictions: enough for a figure


def evaluated(
    name: str,
    bench: Bench,
    tests: Mapping[str, Pairs],
    folder: RunFolder,
    contenders: Mapping[str, Contender] = CONTENDERS,
) -> dict[str, object]:
    """Scores of a contender on every test set; the first one is the familiar condition."""
    made = tuned(contenders[name], bench, folder)
    started = time.perf_counter()
    found = {test: predicted(made, pairs, bench.effort.batch) for test, pairs in tests.items()}
    seconds = time.perf_counter() - started
    familiar = next(iter(tests))
    scores = {}
    for test, (mean, var) in found.items():
        scores[test] = regression_scores(mean, var, tests[test].y)
        if test != familiar:
            scores[test]["ood_auroc"] = _told_apart(found[familiar][1], var)
    count = sum(len(pairs.y) for pairs in tests.values())
    return {
        "method": name,
        "seed": bench.seed,
        "fit": made.record,
        "scores": scores,
        "seconds_per_input": seconds / count,
        "predictions": {test: _kept(*moments) for test, moments in found.items()},
    }


def predicted(made: Tuned, pairs: Pairs, batch: int) -> tuple[Tensor, Tensor]:
    """Mean and total variance for all inputs."""
    prediction = made.sure.predict(pairs.batches(batch), show_progress=False)
    return prediction.mean, prediction.total_var


def _kept(mean: Tensor, var: Tensor) -> dict[str, list[float]]:
    return {"mean": rounded(mean), "var": rounded(var)}


def rounded(values: Tensor) -> list[float]:
    """The values as numbers with few digits."""
    return [float(f"{value:.{_DIGITS}g}") for value in values.flatten().tolist()]


def _told_apart(inside: Tensor, outside: Tensor) -> float:
    """AUROC of the predicted variance for telling a held-out condition from the familiar one."""
    both = torch.cat([inside.flatten(), outside.flatten()])
    if bool((both == both[0]).all()):
        return 0.5
    return float(metrics.out_of_distribution_auroc(inside, outside))
