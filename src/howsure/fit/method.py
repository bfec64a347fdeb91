"""Fits on held-out data: a posterior over masks, or the dropout rate of the paper.

The rate, and a residual variance, are found after training (Loquercio et al. 2020, Eq. 12):

minimise over the rate p: sum_d 1/2 log s_d + (y_d - yhat_d)**2 / (2 s_d), with s the total
*variance*, on held-out data that carries the noise of deployment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, Literal

import torch

from howsure.fit.closed_form import search_closed_form
from howsure.fit.grid import Batches, search_grid
from howsure.fit.posterior import PosteriorFit, PosteriorSearch, fit_posterior
from howsure.fit.search import Fit, Search
from howsure.fit.validation_data import pairs_of, warn_if_clean, warn_if_training_data
from howsure.gradients.backward import MOST_OUTPUTS
from howsure.gradients.checks import verdict_of
from howsure.methods import METHODS, Method, choose, gradients, method_of
from howsure.methods.choice import outputs_of
from howsure.noise import sample_of
from howsure.setup import Setup

ModelPart = Literal["auto", "posterior", "dropout"]


def fit_method(
    setup: Setup,
    method: str | Method,
    loader: Iterable[Any],
    *,
    model: ModelPart | None = "auto",
    **options: Any,
) -> tuple[Setup, Fit | PosteriorFit]:
    """The setup with what minimises the NLL of held-out data.

    Args:
        setup: What to fit.
        method: The method, its name, or "auto".
        loader: Batches of (inputs, targets), held out from training.
        model: What stands for the model's own uncertainty: "posterior" over masks, "dropout" at a
            rate to be found, or `None` for the sensor's and a residual variance alone. "auto" is
            the posterior where the method has one, the task is regression and no option of the
            rate search is given.
        **options: See `howsure.fit.PosteriorSearch` and `howsure.fit.Search`.
    """
    own = method_of(method)
    if model == "auto":
        model = _model_for(setup, own, options)
    _check_options(options, model)
    if model == "dropout":
        return _fit_dropout(setup.with_(variance_model=None), own, loader, Search(**options))
    if model not in ("posterior", None):
        raise ValueError(f'`model` must be "auto", "posterior", "dropout" or None, not {model!r}.')
    _check_posterior(setup, own)
    search = PosteriorSearch(**options, masks=model is not None)
    return _fit_posterior(setup, loader, search)


def _model_for(setup: Setup, method: Method | None, options: Iterable[str]) -> ModelPart:
    has_posterior = method is None or method.has_posterior
    dropouts, posteriors = ({f.name for f in fields(each)} for each in (Search, PosteriorSearch))
    is_rate_search = bool((dropouts - posteriors) & set(options))
    fits = has_posterior and setup.task == "regression" and not is_rate_search
    return "posterior" if fits and setup.placement.kind != "existing" else "dropout"


def _check_options(options: Iterable[str], model: str | None) -> None:
    """One clear sentence for an option that there is not, or not for this part."""
    own, other = (Search, PosteriorSearch) if model == "dropout" else (PosteriorSearch, Search)
    known, others = ({f.name for f in fields(each)} - {"masks"} for each in (own, other))
    for name in options:
        if name in others - known:
            wanted = '"posterior"' if model == "dropout" else '"dropout"'
            raise ValueError(f"`{name}` is an option of `fit(model={wanted})`.")
        if name not in known:
            near = get_close_matches(name, sorted(known), 1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are {sorted(known)}."
            raise TypeError(f"`fit` has no option `{name}`; {hint}")


def _check_posterior(setup: Setup, method: Method | None) -> None:
    if method is not None and not method.has_posterior:
        known = [each.name for each in METHODS.values() if each.has_posterior]
        raise ValueError(
            f'The method "{method}" has no posterior over masks; use one of {known} or "auto", or '
            '`model="dropout"`.'
        )
    if setup.task != "regression":
        raise ValueError(
            'The posterior over masks is for regression; use `model="dropout"`, and calibrate the '
            'classes: `sure.calibrate(loader, "temperature")`.'
        )


def _fit_posterior(
    setup: Setup, loader: Iterable[Any], search: PosteriorSearch
) -> tuple[Setup, PosteriorFit]:
    return fit_posterior(setup, _batches(setup, loader, search), search)


def _batches(setup: Setup, loader: Iterable[Any], search: Search | PosteriorSearch) -> Batches:
    """The held-out data as it is used; a warning for what would spoil a fit."""
    warn_if_training_data(loader, search.training_data)
    batches = list(pairs_of(loader))
    if search.inputs == "clean":
        return _with_noise(setup, batches)
    warn_if_clean(setup, batches)
    return batches


def _fit_dropout(
    setup: Setup, method: Method | None, loader: Iterable[Any], search: Search
) -> tuple[Setup, Fit]:
    """The setup with the rate and residual variance that minimise the NLL of held-out data."""
    batches = _batches(setup, loader, search)
    own = method or _method_for_fit(setup, batches)
    in_closed_form = _closed_form(own, search, classification=setup.task == "classification")
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
    with_rate, x = setup if setup.rate is not None else setup.with_(rate=0.1), batches[0][0]
    method = choose(with_rate, x)[0]
    if outputs_of(with_rate, x) > MOST_OUTPUTS:
        return method
    return gradients.METHOD if verdict_of(with_rate, x).reason is None else method


def _closed_form(method: Method, search: Search, *, classification: bool) -> bool:
    only = [option for option in ("per_layer", "fit_noise") if getattr(search, option)]
    if search.search == "grid" and only:
        raise ValueError(f'`{only[0]}` needs `search="closed_form"`; a grid has no room for it.')
    wanted = search.search == "closed_form" or bool(only)
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

    def noisy(x: Any) -> Any:
        return sample_of(setup.noise, x, generator, batch_dim=setup.batch_dim)

    return [(noisy(x), y) for x, y in batches]
