"""Which fit runs on held-out data: a posterior, a temperature, or the paper's dropout rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args

import torch

from howsure.errors import check_option
from howsure.fit.dense import fit_dense, is_dense, why_not_dense
from howsure.fit.dropout import Fit, Search, fit_dropout
from howsure.fit.folds import Batches
from howsure.fit.inputs import check_finite
from howsure.fit.options import FitOptions
from howsure.fit.posterior import PosteriorFit, PosteriorSearch, fit_posterior, some_of
from howsure.fit.temperature import (
    TemperatureFit,
    TemperatureSearch,
    fit_temperature,
    why_no_temperature,
)
from howsure.fit.validation_data import (
    pairs_of,
    warn_if_clean,
    warn_if_training_data,
    warn_of_targets,
)
from howsure.methods import METHODS, Method, method_of
from howsure.methods.choice import outputs_of
from howsure.methods.gradients import why_no_gradients
from howsure.multipliers import NothingToDropError
from howsure.noise import sample_of
from howsure.problem import MOST_OUTPUTS
from howsure.setup import Setup
from howsure.trees import TensorTree, clone_tensors, tensors_of

ModelPart = Literal["auto", "posterior", "temperature", "dropout"]
FitResult = Fit | PosteriorFit | TemperatureFit
# The names of the options of each part; `masks` follows from `model`.
_OPTIONS = {
    part: {field.name for field in fields(search)} - {"masks"}
    for part, search in (
        ("posterior", PosteriorSearch),
        ("temperature", TemperatureSearch),
        ("dropout", Search),
    )
}


def fit_method(
    setup: Setup,
    method: str | Method,
    loader: Iterable[object],
    *,
    model: ModelPart | None = "auto",
    **options: Any,
) -> tuple[Setup, FitResult]:
    """The setup with what minimizes the NLL of held-out data.

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
    chosen, part, reason = method_of(method), model, None
    if model == "auto":
        loader = list(loader) if isinstance(loader, Iterator) else loader
        part, reason = _choose_part(setup, chosen, loader, options)
    notes = ()
    if part == "dropout" and reason is not None:
        reason = f"a dropout rate, since there can be no temperature of each input: {reason}"
        options, unused = _without_unused(options)
        notes = (reason + unused,)
    _check_request(setup, chosen, part, options)
    if part == "dropout":
        search = Search(**options)
        batches = _read_held_out(setup, loader, search)
        changed, fit = fit_dropout(setup.unfitted(), chosen, batches, search)
        return changed, replace(fit, notes=(*notes, *fit.notes))
    if setup.task != "regression":
        search = TemperatureSearch(**{"growth": part is not None, **options})
        return fit_temperature(setup, _read_held_out(setup, loader, search), search)
    search = PosteriorSearch(**options, masks=part is not None)
    batches = _read_held_out(setup, loader, search)
    if reason is None and is_dense(setup, chosen, batches[0][0], search):
        return fit_dense(setup, batches, search)
    is_checked = model == "auto"  # as a part was chosen by it
    return fit_posterior(setup, batches, search, reason or "", is_checked=is_checked)


def _usual_part(setup: Setup) -> ModelPart:
    """The part that the task has."""
    return "posterior" if setup.task == "regression" else "temperature"


def _has_room(method: Method | None, setup: Setup) -> bool:
    """Whether a method can use what `fit` finds; samples have a temperature as well."""
    if method is None or method.has_posterior:
        return True
    return setup.task != "regression" and method.has_dense_posterior


def _choose_part(
    setup: Setup, method: Method | None, loader: Iterable[object], options: Iterable[str]
) -> tuple[ModelPart, str | None]:
    """What "auto" stands for, and why there can be no posterior, or no temperature."""
    usual = _usual_part(setup)
    is_rate_search = not (_OPTIONS["dropout"] - _OPTIONS[usual]).isdisjoint(options)
    if not _has_room(method, setup) or is_rate_search or setup.placement.kind == "existing":
        return "dropout", None
    x = next(iter(pairs_of(loader, model=setup.model)))[0]
    _check_inputs(setup, x)
    if usual == "temperature":
        reason = why_no_temperature(setup, x)
        return (usual, None) if reason is None else ("dropout", reason)
    try:
        outputs = outputs_of(setup.watching(x), x)
    except NothingToDropError:
        is_script = isinstance(setup.model, torch.jit.ScriptModule)
        advice = ", or hides them as TorchScript does: use the Python module" if is_script else ""
        return usual, f"the model has no layers to multiply{advice}"
    if outputs <= MOST_OUTPUTS:
        return usual, why_no_gradients(setup, x, watch=True)
    if method is None or method.has_dense_posterior:
        return usual, why_not_dense(setup, x)
    return usual, f"{outputs} outputs are too many for a backward pass each"


def _without_unused(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The options that the rate search has, or that nothing has, and words that name the others."""
    unused = (_OPTIONS["posterior"] | _OPTIONS["temperature"]) - _OPTIONS["dropout"]
    named = ", ".join(f"`{name}`" for name in options if name in unused)
    kept = {name: value for name, value in options.items() if name not in unused}
    return kept, f"; not used: {named}" if named else ""


def _check_request(
    setup: Setup, method: Method | None, part: str | None, options: Iterable[str]
) -> None:
    """One clear sentence for an option or a part that does not exist, or not for this task."""
    usual = _usual_part(setup)
    known = _OPTIONS.get(part or usual, _OPTIONS[usual])
    for name in options:
        others = [other for other, names in _OPTIONS.items() if name in names]
        if name not in known and others:
            raise ValueError(f'`{name}` is an option of `fit(model="{others[0]}")`.')
        check_option(name, known, "fit")
    if part == "dropout":
        return
    if part not in (None, *_OPTIONS):
        parts = ", ".join(f'"{name}"' for name in get_args(ModelPart))
        raise ValueError(f"`model` must be {parts} or None, not {part!r}.")
    if not _has_room(method, setup):
        what = "posterior over masks" if usual == "posterior" else "temperature of each input"
        names = [other.name for other in METHODS.values() if _has_room(other, setup)]
        raise ValueError(
            f'The method "{method}" has no {what}; use one of {names} or "auto", or '
            '`model="dropout"`.'
        )
    if part not in (None, usual):
        raise ValueError(
            f'`model="{part}"` is not for {setup.task}, where it is `model="{usual}"`, or '
            '"dropout" at a rate to be found.'
        )


def _read_held_out(setup: Setup, loader: Iterable[object], search: FitOptions) -> Batches:
    """The held-out data as it is used; a warning for what would spoil a fit."""
    batches = list(pairs_of(loader, model=setup.model))
    warn_if_training_data(setup, loader, batches, search.training_data)
    for x, _ in batches:
        _check_inputs(setup, x)
    if setup.task == "regression":
        is_posterior = isinstance(search, PosteriorSearch)
        warn_of_targets(setup, list(some_of(batches)) if is_posterior else batches)
    if search.inputs == "clean":
        generator = torch.Generator().manual_seed(setup.seed)
        axis = setup.batch_dim
        return [(sample_of(setup.noise, x, generator, batch_dim=axis), y) for x, y in batches]
    warn_if_clean(setup, batches)
    return batches


def _check_inputs(setup: Setup, x: object) -> None:
    """An error for inputs that are not finite, unless the model can deal with them."""
    floats = [tensor for tensor in tensors_of(x) if tensor.is_floating_point()]
    if all(bool(tensor.isfinite().all()) for tensor in floats):
        return
    with torch.no_grad():
        predicted = TensorTree(setup.run(clone_tensors(x))).tensors
    check_finite(predicted, "predictions of held-out inputs")
