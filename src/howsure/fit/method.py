"""Finds the dropout rate, and a residual variance, after training (Loquercio et al. 2020, Eq. 12).

minimise over the rate p: sum_d 1/2 log s_d + (y_d - yhat_d)**2 / (2 s_d), with s the total
*variance*, on held-out data that carries the noise of deployment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from howsure.fit.closed_form import search_closed_form
from howsure.fit.grid import Batches, search_grid
from howsure.fit.search import Fit, Search
from howsure.fit.validation_data import pairs_of, warn_if_clean, warn_if_training_data
from howsure.gradients.backward import MOST_OUTPUTS
from howsure.gradients.checks import verdict_of
from howsure.methods import METHODS, Method, choose, gradients, method_of
from howsure.methods.choice import outputs_of
from howsure.noise import sample_of
from howsure.setup import Setup


def fit_method(
    setup: Setup, method: str | Method, loader: Iterable[Any], **options: Any
) -> tuple[Setup, Fit]:
    """The setup with the rate and residual variance that minimise the NLL of held-out data.

    Args:
        setup: What to tune.
        method: The method, its name, or "auto".
        loader: Batches of (inputs, targets), held out from training.
        **options: See `howsure.fit.Search`.
    """
    search = Search(**options)
    warn_if_training_data(loader, search.training_data)
    batches = list(pairs_of(loader))
    own = method_of(method) or _method_for_fit(setup, batches)
    if search.inputs == "clean":
        batches = _with_noise(setup, batches)
    else:
        warn_if_clean(setup, batches)
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
    return [(sample_of(setup.noise, x, generator), y) for x, y in batches]
