"""Fits the variance model: a posterior from unlabeled inputs, and weights from held-out errors.

The posterior sees inputs of the kind that the network was trained on; they need no labels. Where
there are none it is made from the held-out inputs themselves, in folds: no input is judged by a
posterior that has seen it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from howsure.fit.held_out import Batches, points_for, rows_in_front, some_of
from howsure.fit.known import FEWEST, gather_known, labeled, layers_of, local_error, score_held_out
from howsure.fit.options import FitOptions
from howsure.fit.stress import corruptions
from howsure.fit.variance import PosteriorFit, check_held_out, fit_variance
from howsure.methods.gradients import POINTS, NoGradientsError, why_no_gradients
from howsure.posterior.scores import Known
from howsure.posterior.variance_fit import HeldOut
from howsure.probe import probe_gradients
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup

# Held-out inputs under each corruption of the default: few numbers are fitted. On rendered
# roads 100 give the same NLL within 0.001 on average over five conditions (0.009 in one).
_STRESSED = 32
# Held-out inputs of more than 64 outputs, which have a residual variance each: two for every fold.
FEWEST_OF_MANY = 10


def fit_posterior(
    setup: Setup,
    batches: Batches,
    options: FitOptions,
    *,
    model_part: bool = True,
    note: str = "",
    is_checked: bool = False,
) -> tuple[Setup, PosteriorFit]:
    """The setup with the variance model that is best for held-out data.

    A `NoGradientsError` if there can be no posterior, and no `note` says so.

    Args:
        setup: What to fit.
        batches: The held-out data.
        options: The options.
        model_part: Whether there is more than the sensor's and a residual variance.
        note: Why there can be no posterior: the sensor's part is sampled then, and distances and
            the range of the inputs say how novel an input is.
        is_checked: Whether the gradients at the first inputs were looked at.
    """
    if options.train is not None and not (model_part and options.growth):
        # Far from all training rows the local error says nothing.
        raise ValueError("`train` needs the posterior and its growth; leave out what stops it.")
    x, show = batches[0][0], options.show_progress
    failure = None if is_checked or note else why_no_gradients(setup, x, watch=model_part)
    if failure is not None:
        raise NoGradientsError(failure)
    fitted = setup.without_fit().replace(rate=None, residual_var=0.0)
    batches = [(x, rows_in_front(y, setup.batch_dim or 0)) for x, y in batches]
    target = batches[0][1]
    is_wide = target.numel() > MOST_OUTPUTS * max(1, len(target))
    fewest = FEWEST_OF_MANY if note and is_wide else FEWEST
    check_held_out(batches, fewest)
    setup = fitted
    if setup.samples is None and setup.tolerance is None and not note:
        points = points_for(
            setup, x, watching=setup.with_unit_multipliers(x) if model_part else setup
        )
        setup = setup.replace(samples=max(POINTS, points))
    known = Known(note=note)
    if model_part:
        train = None if options.train is None or note else labeled(options.train)
        local = None if train is None else local_error(setup, batches, train)
        inputs = train if options.train_inputs is None else options.train_inputs
        layers, gradients = layers_of(setup, x), not note
        known = gather_known(
            setup, layers, batches, inputs, gradients=gradients, fewest=fewest, show=show
        )
        known = replace(known, local_error=local, note=note)
    examined = some_of(batches)
    shown = enumerate(progress(examined, show, "held-out inputs"))
    held_out = HeldOut.joined(
        [score_held_out(setup, known, number, x, y) for number, (x, y) in shown]
    )
    stressed = ()
    if model_part and options.growth and held_out.error.shape[1] <= MOST_OUTPUTS:
        data = held_out.scores.data.mean(0)
        stressed = _stressed(setup, examined, known, options, data)
    fit = fit_variance(held_out, stressed, known, options, model_part=model_part)
    return fitted.replace(variance_model=fit.model), fit


def _stressed(
    setup: Setup, batches: Batches, known: Known, options: FitOptions, data: Tensor
) -> tuple[HeldOut, ...]:
    """The held-out inputs under each corruption, with their own targets.

    Their gradients are those at the input itself, in an eighth of the passes: the variance of the
    sensor is taken to be that of clean inputs on average.
    """
    probes = [
        None if known.note else setup.with_unit_multipliers(x).cached(probe_gradients, x)
        for x, _ in batches
    ]

    def score(number: int, x: Any, target: Tensor) -> HeldOut:
        probe = probes[number]
        part = score_held_out(setup, known, number, x, target, noisy=False, probe=probe)
        return replace(part, scores=replace(part.scores, data=data.expand_as(part.error)))

    changes = corruptions(options.stress, batches[0][0])
    if options.stress == "auto" and changes:
        some = -(-_STRESSED // len(batches))
        batches = [(x[:some], y[:some]) for x, y in batches]
    return tuple(
        HeldOut.joined([score(n, change(x), y) for n, (x, y) in enumerate(batches)])
        for change in progress(changes, options.show_progress, "corruptions")
    )
