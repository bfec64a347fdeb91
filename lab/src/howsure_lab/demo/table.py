"""The demonstration's table: one line for each condition."""

from __future__ import annotations

from howsure_lab.demo.outcome import Outcome
from howsure_lab.demo.study import Study

_HEAD = """\
              error   predicted       NLL        in the 95 %  variance from       AUROC
condition      RMSE         std  howsure one std   interval  camera  network  vs. clear"""


def table(study: Study) -> str:
    """All conditions, one line each."""
    return "\n".join([_HEAD, *(_line(study, outcome) for outcome in study.outcomes)])


def _line(study: Study, outcome: Outcome) -> str:
    share = outcome.sensor_share
    auroc = "-" if outcome is study.clear else f"{outcome.auroc_against(study.clear):.2f}"
    return (
        f"{outcome.name:<11}{outcome.rmse:8.3f}{outcome.mean_std:12.3f}"
        f"{outcome.nll:9.2f}{outcome.nll_of_one_std(study.one_std):8.2f}"
        f"{100 * outcome.coverage:9.0f} %{100 * share:7.0f} %{100 - 100 * share:7.0f} %{auroc:>11}"
    )


LEGEND = """\
RMSE        of the steering angle, in radians
std         that howsure predicts, on average
NLL         of the true angles, without 1/2 log 2 pi; smaller is better. one std: the same for
            all scenes, the network's RMSE on the held-out ones, which needs no howsure
interval    share of true angles inside it; 95 % is right, less means that the std is too small
variance    from the camera's noise, and from what the network does not know
AUROC       of two scenes, one of this condition and one clear: how often the first has the larger
            std; 0.5 is chance, 1 is always"""
