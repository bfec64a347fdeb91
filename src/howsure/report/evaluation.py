"""Gathers a report: predicts at every noise level, compares with the truth, puts it in words."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from howsure.fit import Fit
from howsure.fit.validation_data import pairs_of
from howsure.noise import sample_of
from howsure.prediction import Prediction, concatenated
from howsure.progress import progress
from howsure.report import classification, regression
from howsure.report.cases import as_images, cases_of
from howsure.report.charts import search_chart
from howsure.report.options import Levels, Options, scaled
from howsure.report.outcomes import Outcome, outcome_of, output_choices, separate_outputs
from howsure.report.reproduce import code_of, facts, settings_of, state_of
from howsure.report.values import Report, Share, View
from howsure.trees import as_call
from howsure.uncertain import Uncertain

_DEFAULTS = Options()


def build(
    sure: Uncertain,
    loader: Iterable[object],
    *,
    options: Options = _DEFAULTS,
    audit: object = None,
    show_progress: bool = True,
) -> Report:
    """The report on a wrapped model, evaluated on held-out data.

    Args:
        sure: The model with its noise and method; fitted, if the method has a rate.
        loader: Batches of (inputs, targets) that the model has not seen.
        options: Noise levels, names, pictures and the like.
        audit: An `Audit` of the same model, or its `to_dict()`.
        show_progress: Show a bar.
    """
    pairs = _all_pairs(loader)
    target = torch.cat([y for _, y in pairs])
    levels = options.levels(sure.setup.noise)
    factors = progress(levels.factors, show_progress, "report")
    runs = [_predicted(sure, factor, pairs, levels.added) for factor in factors]
    pictured = replace(options, images=_images(pairs, options))
    whole = [concatenated(batches) for batches in runs]
    found = _judged(whole, target, sure.setup.task, levels, pictured)
    settings, state = settings_of(sure, options), state_of(sure)
    return replace(
        found,
        facts=(*facts(sure, whole[levels.start], len(target)), ("Noise levels", str(levels))),
        search=search_chart(sure.last_fit) if isinstance(sure.last_fit, Fit) else None,
        budget=shares_of(runs[levels.start]),
        audit=_as_dict(audit),
        settings=settings,
        code=code_of(settings, has_state=state is not None),
        state=state,
    )


def from_predictions(
    predictions: Mapping[float, Prediction],
    target: Tensor,
    *,
    task: str = "regression",
    options: Options = _DEFAULTS,
) -> Report:
    """The report on predictions that were made elsewhere, without what was run.

    Args:
        predictions: By noise level, in multiples of the sensor's std; one entry is enough.
        target: True values, or classes.
        task: "regression", or "classification", "binary" or "multilabel": the means are then
            probabilities.
        options: As in `build`; `inputs` says whether the noise was added to the inputs.
    """
    if not predictions:
        raise ValueError("There are no predictions; give at least one, as `{1.0: prediction}`.")
    ordered = dict(sorted(predictions.items()))
    levels = Levels(tuple(map(float, ordered)), options.inputs == "clean")
    facts = (("Data", f"{len(target):,} inputs with targets"), ("Noise levels", str(levels)))
    return replace(_judged(list(ordered.values()), target, task, levels, options), facts=facts)


def _judged(
    predictions: Sequence[Prediction], target: Tensor, task: str, levels: Levels, options: Options
) -> Report:
    """What predictions and truth alone tell."""
    outcomes = [outcome_of(prediction, target, task) for prediction in predictions]
    outputs, views = _views(outcomes, levels, options, task)
    cases = cases_of(outcomes[levels.start], options, task)
    names = options.input_names(len(target))
    return Report(
        title=options.title,
        task=task,
        facts=(),
        levels=levels.names,
        start=levels.start,
        outputs=outputs,
        views=views,
        cases=cases.table(options.cases),
        galleries=cases.galleries(options.gallery, names, options.images),
        notes=predictions[levels.start].notes,
    )


def _all_pairs(loader: Iterable[object]) -> list[tuple[object, Tensor]]:
    batches = list(loader)
    if not batches:
        raise ValueError("The loader is empty; there is nothing to report on.")
    return list(pairs_of(batches))


@torch.no_grad()
def _predicted(
    sure: Uncertain, factor: float, pairs: Sequence[tuple[object, Tensor]], added: bool
) -> list[Prediction]:
    """The predictions of all batches at one level; the user's object is not changed."""
    at_level = copy.copy(sure)
    noise = scaled(sure.setup.noise, factor)
    at_level.setup = sure.setup.with_(noise=noise)
    # One stream of numbers for every level: what differs between levels is the noise's size.
    generator = torch.Generator().manual_seed(sure.setup.seed)
    axis = sure.setup.batch_dim
    seen = (sample_of(noise, x, generator, batch_dim=axis) if added else x for x, _ in pairs)
    calls = map(as_call, seen)
    return [at_level(*args, **kwargs) for args, kwargs in calls]


def _views(
    outcomes: Sequence[Outcome], levels: Levels, options: Options, task: str
) -> tuple[tuple[str, ...], tuple[tuple[View, ...], ...]]:
    """Names of the outputs, and what is said by level and output."""
    names = options.output_names(outcomes[0].mean.shape[1])
    if task != "regression":
        views = classification.views(outcomes, levels)
        return ("all classes",), tuple((view,) for view in views)
    by_output = zip(*separate_outputs(outcomes), strict=True)
    columns = [regression.views(column, levels) for column in by_output]
    return output_choices(outcomes[0], names), tuple(zip(*columns, strict=True))


def _images(pairs: Sequence[tuple[object, Tensor]], options: Options) -> Tensor | None:
    """The pictures that the user gave, or the inputs if they are pictures."""
    if options.images is not None:
        return options.images
    tensors = [x for x, _ in pairs if isinstance(x, Tensor)]
    if len(tensors) < len(pairs) or len({tuple(x.shape[1:]) for x in tensors}) > 1:
        return None
    inputs = torch.cat(tensors)
    return inputs if as_images(inputs) is not None else None


def _as_dict(audit: Any) -> Mapping[str, object] | None:
    if audit is None or isinstance(audit, Mapping):
        return audit
    if not hasattr(audit, "to_dict"):
        raise TypeError(
            f"`audit` is a {type(audit).__name__}; give the result of `howsure.audit`, or its "
            "`to_dict()`."
        )
    return audit.to_dict()


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
