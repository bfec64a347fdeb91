"""Which fit runs on held-out data: a posterior, a temperature, or the paper's dropout rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import get_args

import torch

from howsure.errors import warn
from howsure.fit.dense import fit_dense, is_dense, why_not_dense
from howsure.fit.dropout import Fit, fit_dropout
from howsure.fit.held_out import check_inputs, pairs_of, read_held_out
from howsure.fit.options import OPTIONS, FitOptions, ModelPart
from howsure.fit.posterior import fit_posterior
from howsure.fit.temperature import TemperatureFit, fit_temperature, why_no_temperature
from howsure.fit.variance import PosteriorFit
from howsure.methods.choice import outputs_of
from howsure.methods.gradients import NoGradientsError, cannot_use, why_no_gradients
from howsure.methods.method import METHODS, Fits, Method, method_of
from howsure.multipliers.sites import NothingToDropError
from howsure.problem import MOST_OUTPUTS
from howsure.setup import Setup

FitResult = Fit | PosteriorFit | TemperatureFit
# Held-out inputs below which a dropout rate is a guess.
_FEWEST_FOR_RATE = 5


def fit_method(
    setup: Setup,
    method: str | Method,
    loader: Iterable[object],
    options: FitOptions,
    *,
    model: ModelPart | None = "auto",
) -> tuple[Setup, FitResult]:
    """The setup with what minimizes the NLL of held-out data.

    Args:
        setup: What to fit.
        method: The method, its name, or "auto".
        loader: Batches of (inputs, targets), held out from training.
        options: The options; those of another part than the one that is fitted are an error.
        model: What stands for the model's own uncertainty: "posterior" over multipliers for
            regression, "temperature" for classification, "dropout" at a rate to be found for both;
            or `None` for the sensor's and a residual variance alone, or a constant temperature.
            "auto" is one of the first two, and dropout where the method or the model has no room
            for it; the fit's `notes` say why.

    Examples:
        >>> model, x = nn.Linear(3, 1).eval(), torch.randn(100, 3)
        >>> data = [(x, model(x).detach() + 0.1 * torch.randn(100, 1))]
        >>> setup = hs.Uncertain(model, noise=0.01).setup
        >>> options = hs.fit.FitOptions(show_progress=False)
        >>> fitted, found = hs.fit.fit_method(setup, "auto", data, options)
        >>> fitted.is_fitted
        True
    """
    chosen, part, reason, notes = method_of(method), model, None, ()
    usual = "posterior" if setup.task == "regression" else "temperature"
    if model == "auto":
        loader = list(loader) if isinstance(loader, Iterator) else loader
        part, reason = _choose_part(setup, chosen, loader, usual)
    if part == "dropout" and reason is not None:
        options, unused = _without_unused(options)
        notes = (
            f"a dropout rate, since a temperature for each input is not possible: {reason}"
            + unused,
        )
    _check_request(setup, chosen, part, usual, options)
    held_out = read_held_out(setup, loader, options)
    if part == "dropout":
        changed, fit = fit_dropout(setup.without_fit(), chosen, held_out, options)
        rows = sum(len(target) for _, target in held_out)
        if rows < _FEWEST_FOR_RATE:
            warn(
                f"There are {rows} held-out inputs; a dropout rate from fewer than "
                f"{_FEWEST_FOR_RATE} is a guess."
            )
        return changed, replace(fit, notes=notes)
    if setup.task != "regression":
        return fit_temperature(setup, held_out, options, growth=part is not None and options.growth)
    if part is not None and reason is None and is_dense(setup, chosen, held_out[0][0]):
        return fit_dense(setup, held_out, options)
    try:
        return fit_posterior(
            setup,
            held_out,
            options,
            model_part=part is not None,
            note=reason or "",
            is_checked=model == "auto",
        )
    except NoGradientsError as error:
        raise cannot_use(str(error)) from error


def _has_room(method: Method | None, setup: Setup) -> bool:
    """Whether a method can use what `fit` finds; samples have a temperature as well."""
    room = Fits.POSTERIOR
    if setup.task != "regression":
        room |= Fits.DENSE_POSTERIOR
    return method is None or bool(method.fits & room)


def _choose_part(
    setup: Setup, method: Method | None, loader: Iterable[object], usual: ModelPart
) -> tuple[ModelPart, str | None]:
    """What "auto" stands for, and why there can be no posterior, or no temperature."""
    if not _has_room(method, setup) or setup.placement.kind == "existing":
        return "dropout", None
    x = next(iter(pairs_of(loader, model=setup.model)))[0]
    check_inputs(setup, x)
    if usual == "temperature":
        reason = why_no_temperature(setup, x)
        return (usual, None) if reason is None else ("dropout", reason)
    try:
        outputs = outputs_of(setup.with_unit_multipliers(x), x)
    except NothingToDropError:
        is_script = isinstance(setup.model, torch.jit.ScriptModule)
        advice = ", or hides them as TorchScript does: use the Python module" if is_script else ""
        return usual, f"the model has no layers to multiply{advice}"
    if outputs <= MOST_OUTPUTS:
        return usual, why_no_gradients(setup, x, watch=True)
    if method is None or Fits.DENSE_POSTERIOR in method.fits:
        return usual, why_not_dense(setup, x)
    return usual, f"{outputs} outputs are too many for a backward pass each"


def _without_unused(options: FitOptions) -> tuple[FitOptions, str]:
    """The options that dropout has, and words that name the others."""
    kept = {n: getattr(options, n) for n in options.given if n in OPTIONS["dropout"]}
    unused = ", ".join(f"`{name}`" for name in options.given if name not in kept)
    return FitOptions(**kept), f"; not used: {unused}" if unused else ""


def _check_request(
    setup: Setup, method: Method | None, part: str | None, usual: ModelPart, options: FitOptions
) -> None:
    """One clear sentence for a part or an option that does not exist, or not for this task."""
    if part not in (None, *OPTIONS):
        raise ValueError(f"`model` must be one of {get_args(ModelPart)} or None, not {part!r}.")
    for name in options.given:
        if name not in OPTIONS[part or usual]:
            other = next(other for other, names in OPTIONS.items() if name in names)
            raise ValueError(
                f'`{name}` is an option of `fit(model="{other}")` (`--model-part {other}`).'
            )
    if part == "dropout":
        return
    if not _has_room(method, setup):
        what = "posterior over multipliers" if usual == "posterior" else "temperature of each input"
        names = [other.name for other in METHODS.values() if _has_room(other, setup)]
        raise ValueError(
            f'The method "{method}" has no {what}; use one of {names} or "auto", or '
            '`model="dropout"`.'
        )
    if part not in (None, usual):
        raise ValueError(
            f'`model="{part}"` does not apply to {setup.task}; use `model="{usual}"`, or "dropout".'
        )
