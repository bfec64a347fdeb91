"""Builds a report: predicts at every noise level, compares with the truth, puts it in words."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsure.fit.dropout import Fit
from howsure.fit.held_out import pairs_of
from howsure.noise import sample_of
from howsure.noise import scaled as scaled_noise
from howsure.prediction import Prediction, concatenated
from howsure.progress import progress
from howsure.report import classification, regression
from howsure.report.cases import as_images
from howsure.report.charts import search_chart
from howsure.report.options import Levels, Options
from howsure.report.outcomes import Outcome, outcome_of
from howsure.report.reproduce import code_of, facts, settings_of, state_of
from howsure.report.values import Chart, Report, Share, View
from howsure.trees import as_call

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain

_DEFAULTS = Options()
# Up to so many outputs can be looked at one by one.
_SEPARATE = 4
# Sources with a row of their own; what is left is added up.
_ROWS = 12


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

    Examples:
        >>> model, x = torch.nn.Linear(3, 1).eval(), torch.randn(60, 3)
        >>> sure = hs.Uncertain(model, noise=hs.noise.std(0.1))
        >>> target = model(x).detach() + 0.1 * torch.randn(60, 1)
        >>> report = hs.report.build(sure, [(x, target)], show_progress=False)
        >>> report.task
        'regression'
    """
    if not (isinstance(audit, Mapping) or audit is None or hasattr(audit, "to_dict")):
        raise TypeError(
            f"`audit` is a {type(audit).__name__}; give the result of `howsure.audit`, or its "
            "`to_dict()`."
        )
    batches = list(loader)
    if not batches:
        raise ValueError("The loader is empty; there is nothing to report on.")
    pairs = list(pairs_of(batches))
    target = torch.cat([y for _, y in pairs])
    levels = options.levels(sure.setup.noise)
    factors = progress(levels.factors, show_progress, "report")
    predictions = [_predict_level(sure, factor, pairs, levels.added) for factor in factors]
    if options.images is None:
        options = replace(options, images=_pictures([x for x, _ in pairs]))
    first = predictions[levels.start]
    settings, state = settings_of(sure, options), state_of(sure)
    return replace(
        _report(predictions, target, sure.setup.task, levels, options),
        facts=(*facts(sure, first, len(target)), ("Noise levels", str(levels))),
        search=search_chart(sure.last_fit) if isinstance(sure.last_fit, Fit) else None,
        budget=shares_of(first),
        audit=getattr(audit, "to_dict", lambda: audit)(),
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

    Examples:
        >>> p = hs.Prediction(torch.zeros(60, 1), torch.ones(60, 1), torch.zeros(60, 1))
        >>> report = hs.report.from_predictions({1.0: p}, torch.randn(60, 1))
        >>> hs.report.write("report.html", report).name
        'report.html'
    """
    if not predictions:
        raise ValueError("There are no predictions; give at least one, as `{1.0: prediction}`.")
    ordered = dict(sorted(predictions.items()))
    levels = Levels(tuple(map(float, ordered)), options.inputs == "clean")
    facts = (("Data", f"{len(target):,} inputs with targets"), ("Noise levels", str(levels)))
    return replace(_report([*ordered.values()], target, task, levels, options), facts=facts)


def _report(
    predictions: Sequence[Prediction], target: Tensor, task: str, levels: Levels, options: Options
) -> Report:
    """What predictions and truth alone tell."""
    kind = regression if task == "regression" else classification
    outcomes = [outcome_of(prediction, target, task) for prediction in predictions]
    count = outcomes[0].mean.shape[1]
    names = options.output_names(count)
    # All outputs together and, if there are a few, each.
    outputs, by_output = ("all outputs" if kind is regression else "all classes",), [outcomes]
    if kind is regression and 1 < count <= _SEPARATE:
        outputs += names
        by_output += [[outcome.output(k) for outcome in outcomes] for k in range(count)]

    def view(outcome: Outcome, charts: Iterable[Chart]) -> View:
        metrics = tuple(kind.numbers(outcome))
        readings = {metric.name: metric.reading for metric in metrics if metric.value is not None}
        lines = tuple(readings[name] for name in kind.HEADLINE if name in readings)
        return View(lines, metrics, tuple(charts))

    views = [
        [
            view(outcome, charts)
            for outcome, *charts in zip(by_level, *kind.charts(by_level, levels), strict=True)
        ]
        for by_level in by_output
    ]
    cases, galleries = kind.cases(outcomes[levels.start], options)
    return Report(
        title=options.title,
        task=task,
        facts=(),
        levels=levels.names,
        start=levels.start,
        outputs=outputs,
        views=tuple(zip(*views, strict=True)),
        cases=cases,
        galleries=galleries,
        notes=predictions[levels.start].notes,
    )


@torch.no_grad()
def _predict_level(
    sure: Uncertain, factor: float, pairs: Sequence[tuple[object, Tensor]], added: bool
) -> Prediction:
    """The predictions of all batches at one level; the user's object is not changed."""
    setup = sure.setup
    noise = setup.noise if factor == 1 else scaled_noise(setup.noise, factor * factor)
    at_level = copy.copy(sure)
    at_level.setup = setup.replace(noise=noise)
    # One stream of numbers for every level: what differs between levels is the noise's size.
    generator = torch.Generator().manual_seed(setup.seed)
    batches = []
    for x, _ in pairs:
        if added:
            x = sample_of(noise, x, generator, batch_dim=setup.batch_dim)
        args, kwargs = as_call(x)
        batches.append(at_level(*args, **kwargs))
    return concatenated(batches)


def _pictures(batches: Sequence[object]) -> Tensor | None:
    """The inputs, if they are pictures of one size."""
    tensors = [x for x in batches if isinstance(x, Tensor)]
    if len(tensors) < len(batches) or len({x.shape[1:] for x in tensors}) > 1:
        return None
    inputs = torch.cat(tensors)
    return inputs if as_images(inputs) is not None else None


def shares_of(prediction: Prediction) -> tuple[Share, ...]:
    """Each source's share of the summed variance, largest first; empty if there is no budget.

    Of a classification it is the budget of the logits.
    """
    budget = (prediction if prediction.logits is None else prediction.logits).sources
    if budget is None:
        return ()
    variances = budget.variances.double().cpu().flatten(1).mean(1)
    total = float(variances.sum())
    if total == 0:
        return ()
    sources = zip(budget.names, budget.kinds, variances.tolist(), strict=True)
    rows = [Share(name, kind, var / total, var) for name, kind, var in sources]
    rows.sort(key=lambda row: -row.share)
    if rest := rows[_ROWS:]:
        share, variance = sum(row.share for row in rest), sum(row.variance for row in rest)
        rows[_ROWS:] = [Share(f"{len(rest)} others", "", share, variance)]
    return tuple(rows)
