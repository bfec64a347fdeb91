"""The budget of all batches together: which source has which share of the variance."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from howsure.prediction import Prediction
from howsure.report.values import Share

# Sources with a row of their own; what is left is added up.
_ROWS = 12


def shares_of(batches: Sequence[Prediction]) -> tuple[Share, ...]:
    """Each source's share of the summed variance, largest first; empty if there is no budget.

    Of a classification it is the budget of the logits. Batches that differ in their sources have
    no common budget.
    """
    own = [batch if batch.logits is None else batch.logits for batch in batches]
    budgets = [batch.sources for batch in own if batch.sources is not None]
    if len(budgets) != len(batches) or len({budget.names for budget in budgets}) != 1:
        return ()
    first = budgets[0]
    variances = torch.cat([b.variances.flatten(2).double().cpu() for b in budgets], 1)
    by_source = variances.mean((1, 2))
    total = float(by_source.sum())
    if total == 0:
        return ()
    rows = [
        Share(name, kind, v / total, v)
        for name, kind, v in zip(first.names, first.kinds, by_source.tolist(), strict=True)
    ]
    rows.sort(key=lambda row: -row.share)
    return (*rows[:_ROWS], *_rest(rows[_ROWS:]))


def _rest(rows: Sequence[Share]) -> tuple[Share, ...]:
    if not rows:
        return ()
    share, variance = sum(r.share for r in rows), sum(r.variance for r in rows)
    return (Share(f"{len(rows)} others", "", share, variance),)
