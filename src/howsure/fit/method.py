"""Fits on held-out data: a posterior over masks, a temperature, or the paper's dropout rate.

The rate, and a residual variance, are found after training (Loquercio et al. 2020, Eq. 12):

minimise over the rate p: sum_d 1/2 log s_d + (y_d - yhat_d)**2 / (2 s_d), with s the total
*variance*, on held-out data that carries the noise of deployment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args

import torch

from howsure.errors import check_option
from howsure.fit.closed_form import search_closed_form
from howsure.fit.dense import fit_dense, is_dense, why_not_dense
from howsure.fit.grid import Batches, search_grid
from howsure.fit.inputs import check_finite
from howsure.fit.posterior import PosteriorFit, PosteriorSearch, fit_posterior, some_of
from howsure.fit.search import Fit, Search
from howsure.fit.temperature import (
    TemperatureFit,
    TemperatureSearch,
    fit_temperature,
    why_no_temperature,
)
from howsure.fit.validation_data import (
    pairs_of,
    rows_in_front,
    warn_if_clean,
    warn_if_training_data,
    warn_of_targets,
)
from howsure.gaussian_output import Gaussian
from howsure.methods import METHODS, Method, choose, gradients, method_of
from howsure.methods.choice import outputs_of
from howsure.methods.gradients import cannot_use, why_no_gradients
from howsure.multipliers import NothingToDropError
from howsure.noise import sample_of
from howsure.problem import MOST_OUTPUTS
from howsure.setup import Setup
from howsure.trees import TensorTree, clone_tensors, tensors_of

ModelPart = Literal["auto", "posterior", "temperature", "dropout"]
FitResult = Fit | PosteriorFit | TemperatureFit
# The options of each part.
_SEARCHES = {
    "posterior": PosteriorSearch,
    "temperature": TemperatureSearch,
    "dropout": Search,
}


def fit_method(
    setup: Setup,
    method: str | Method,
    loader: Iterable[object],
    *,
    model: ModelPart | None = "auto",
    **options: Any,
) -> tuple[Setup, FitResult]:
    """The setup with what minimises the NLL of held-out data.

    Args:
        setup: What to fit.
        method: The method, its name, or "auto".
        loader: Batches of (inputs, targets), held out from training.
        model: What stands for the model's own uncertainty: "posterior" over masks for regression,
            "temperature" for classification, "dropout" at a rate to be found for both; or `None`
            for the sensor's and a residual variance alone, or a constant temperature. "auto" is
            one of the first two where there can be one; the fit's `notes` say why not, unless an
            option of the rate search asks for the rate.
        **options: See `howsure.fit.PosteriorSearch`, `TemperatureSearch` and `Search`.
    """
    own, note, reason = method_of(method), None, None
    is_chosen = model != "auto"
    if not is_chosen:
        loader = list(loader) if isinstance(loader, Iterator) else loader
        model, reason = _model_for(setup, own, loader, options)
    if reason is not None and model == "dropout":
        note = f"a dropout rate, since there can be no temperature of each input: {reason}"
        options, note = _without_unused(options, note)
    _check_options(options, _part(setup, model))
    if model == "dropout":
        changed, fit = _fit_dropout(setup.unfitted(), own, loader, Search(**options))
        return changed, fit if note is None else replace(fit, notes=(note, *fit.notes))
    _check_part(setup, own, model)
    if setup.task != "regression":
        wanted = TemperatureSearch(**{"growth": model is not None, **options})
        return fit_temperature(setup, _batches(setup, loader, wanted), wanted)
    search = PosteriorSearch(**options, masks=model is not None)
    batches = _batches(setup, loader, search)
    if reason is None and is_dense(setup, own, batches[0][0], search):
        return fit_dense(setup, batches, search)
    axis = setup.batch_dim or 0
    in_rows = [(x, rows_in_front(y, axis)) for x, y in batches]
    if is_chosen:
        failure = why_no_gradients(setup, batches[0][0], watch=model is not None)
        if failure is not None:
            raise cannot_use(failure)
    return fit_posterior(setup, in_rows, search, reason or "")


def _model_for(
    setup: Setup, method: Method | None, loader: Iterable[object], options: Iterable[str]
) -> tuple[ModelPart, str | None]:
    """What "auto" stands for, and why there can be no posterior, or no temperature."""
    fitting = _part(setup, None)
    has_room = method is None or _has_room(method, setup)
    is_rate_search = bool((_names(Search) - _names(_SEARCHES[fitting])) & set(options))
    if not has_room or is_rate_search or setup.placement.kind == "existing":
        return "dropout", None
    x = next(iter(pairs_of(loader, model=setup.model)))[0]
    _check_inputs(setup, x)
    if fitting == "posterior":
        return fitting, _why_no_posterior(setup, method, x)
    reason = why_no_temperature(setup, x)
    return (fitting, None) if reason is None else ("dropout", reason)


def _has_room(method: Method, setup: Setup) -> bool:
    """Whether a method can use what `fit` finds; samples have a temperature as well."""
    return method.has_posterior or (setup.task != "regression" and method.has_dense_posterior)


def _without_unused(options: dict[str, object], note: str) -> tuple[dict[str, object], str]:
    """The options that the rate search has, and a note that names the others."""
    of_others = _names(PosteriorSearch) | _names(TemperatureSearch)
    unused = [name for name in options if name in of_others - _names(Search)]
    if unused:
        note += f"; not used: {', '.join(f'`{name}`' for name in unused)}"
    return {name: given for name, given in options.items() if name not in unused}, note


def _why_no_posterior(setup: Setup, method: Method | None, x: object) -> str | None:
    """Why a model has no posterior over masks; `None` if it has one."""
    try:
        watching = setup.watching(x)
        outputs = outputs_of(watching, x)
    except NothingToDropError:
        return "the model has no layers to multiply"
    if outputs > MOST_OUTPUTS:
        can_be_dense = method is None or method.has_dense_posterior
        reason = f"{outputs} outputs are too many for a backward pass each"
        return why_not_dense(setup, x) if can_be_dense else reason
    return why_no_gradients(setup, x, watch=True)


def _part(setup: Setup, model: str | None) -> ModelPart:
    """The part whose options count; `None` leaves one out that the task would have."""
    known = next((part for part in get_args(ModelPart) if part == model), None)
    return known or ("posterior" if setup.task == "regression" else "temperature")


def _names(search: type) -> set[str]:
    return {field.name for field in fields(search)} - {"masks"}


def _check_options(options: Iterable[str], part: ModelPart) -> None:
    """One clear sentence for an option that does not exist, or not for this part."""
    known = _names(_SEARCHES[part])
    for name in options:
        others = [each for each, search in _SEARCHES.items() if name in _names(search)]
        if name not in known and others:
            raise ValueError(f'`{name}` is an option of `fit(model="{others[0]}")`.')
        check_option(name, known, "fit")


def _check_part(setup: Setup, method: Method | None, model: str | None) -> None:
    """One clear sentence for a part that does not exist, or not for this method or task."""
    if model not in (None, *_SEARCHES):
        known = ", ".join(f'"{part}"' for part in get_args(ModelPart))
        raise ValueError(f"`model` must be {known} or None, not {model!r}.")
    fitting = _part(setup, None)
    what = "posterior over masks" if fitting == "posterior" else "temperature of each input"
    if method is not None and not _has_room(method, setup):
        known = [each.name for each in METHODS.values() if _has_room(each, setup)]
        raise ValueError(
            f'The method "{method}" has no {what}; use one of {known} or "auto", or '
            '`model="dropout"`.'
        )
    if model not in (None, fitting):
        raise ValueError(
            f'`model="{model}"` is not for {setup.task}, where it is `model="{fitting}"`, or '
            '"dropout" at a rate to be found.'
        )


def _batches(
    setup: Setup, loader: Iterable[object], search: Search | PosteriorSearch | TemperatureSearch
) -> Batches:
    """The held-out data as it is used; a warning for what would spoil a fit."""
    batches = list(pairs_of(loader, model=setup.model))
    warn_if_training_data(setup, loader, batches, search.training_data)
    for x, _ in batches:
        _check_inputs(setup, x)
    if setup.task == "regression":
        is_posterior = isinstance(search, PosteriorSearch)
        warn_of_targets(setup, list(some_of(batches)) if is_posterior else batches)
    if search.inputs == "clean":
        return _with_noise(setup, batches)
    warn_if_clean(setup, batches)
    return batches


def _check_inputs(setup: Setup, x: object) -> None:
    """An error for inputs that are not finite, unless the model can deal with them."""
    floats = [each for each in tensors_of(x) if each.is_floating_point()]
    if all(bool(each.isfinite().all()) for each in floats):
        return
    with torch.no_grad():
        predicted = TensorTree(setup.run(clone_tensors(x))).tensors
    check_finite(predicted, "predictions of held-out inputs")


def _fit_dropout(
    setup: Setup, method: Method | None, loader: Iterable[object], search: Search
) -> tuple[Setup, Fit]:
    """The setup with the rate and residual variance that minimise the NLL of held-out data."""
    batches = _batches(setup, loader, search)
    own = method or _method_for_fit(setup, batches)
    in_closed_form = _closed_form(own, search, classification=setup.task != "regression")
    if isinstance(setup.output, Gaussian):  # The closed form knows the sources' variances alone.
        in_closed_form = False
    if in_closed_form and not _wants_closed_form(search):
        in_closed_form = why_no_gradients(_at_a_rate(setup), batches[0][0]) is None
    while True:
        if in_closed_form:
            changed, fit = search_closed_form(setup, own, batches, search)
        else:
            changed, fit = search_grid(setup, own, batches, search)
        if search.fit_residual_var is not None or not _is_at_the_top(fit, search, setup.task):
            return changed, fit
        search = replace(search, fit_residual_var=True)


def _is_at_the_top(fit: Fit, search: Search, task: str) -> bool:
    """Whether dropout has to stand for errors that no rate explains, such as noise of targets."""
    rates = fit.rate if isinstance(fit.rate, tuple) else (fit.rate or 0.0,)
    tried = [rate for rate in search.grid if rate > 0]
    return task == "regression" and len(tried) > 1 and max(rates) >= max(tried)


def _method_for_fit(setup: Setup, batches: Batches) -> Method:
    """The method that "auto" will use once there is a rate.

    Where it would sample because the network is small, gradients find the rate all the same: over
    many inputs their errors average.
    """
    with_rate, x = _at_a_rate(setup), batches[0][0]
    method = choose(with_rate, x)[0]
    if outputs_of(with_rate, x) > MOST_OUTPUTS:
        return method
    return gradients.METHOD if why_no_gradients(with_rate, x) is None else method


def _at_a_rate(setup: Setup) -> Setup:
    """With dropout at any rate, to see what the model is like with masks."""
    return setup if setup.rate is not None else setup.with_(rate=0.1)


# Options that a grid has no room for.
_CLOSED_FORM_ONLY = ("per_layer", "fit_noise")


def _wants_closed_form(search: Search) -> bool:
    return search.search == "closed_form" or any(getattr(search, n) for n in _CLOSED_FORM_ONLY)


def _closed_form(method: Method, search: Search, *, classification: bool) -> bool:
    only = [option for option in _CLOSED_FORM_ONLY if getattr(search, option)]
    if search.search == "grid" and only:
        raise ValueError(f'`{only[0]}` needs `search="closed_form"`; a grid has no room for it.')
    wanted = _wants_closed_form(search)
    if wanted and not method.in_closed_form:
        known = [each.name for each in METHODS.values() if each.in_closed_form]
        raise ValueError(
            f'The method "{method}" has no closed form; use one of {known}, or `search="grid"`.'
        )
    if wanted and classification:
        raise ValueError(
            "Class probabilities have no closed form: where they saturate their variance is far "
            'from first order. Use `search="grid"`.'
        )
    return wanted or (search.search == "auto" and method.has_budget and not classification)


def _with_noise(setup: Setup, batches: Batches) -> Batches:
    generator = torch.Generator().manual_seed(setup.seed)

    def noisy(x: object) -> object:
        return sample_of(setup.noise, x, generator, batch_dim=setup.batch_dim)

    return [(noisy(x), y) for x, y in batches]
