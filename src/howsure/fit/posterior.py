"""Fits the variance model: a posterior over masks from unlabelled inputs, weights from errors.

The posterior sees inputs of the kind that the network was trained on; they need no labels. Where
there are none it is made from the held-out inputs themselves, in folds: no input is judged by a
posterior that has seen it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from howsure.fit.known_inputs import FEWEST, Batches, Judged, Known
from howsure.fit.local_error import labelled, local_error
from howsure.fit.options import KnownOptions, check_count
from howsure.fit.stress import Stress, corruptions
from howsure.fit.terms import points_for
from howsure.fit.variance_terms import best_weights, nll
from howsure.methods.gradients import POINTS
from howsure.posterior.local_error import NEIGHBOURS, Nearby
from howsure.posterior.variance_model import (
    EXPONENT,
    KNOWN,
    LEVELS,
    VarianceModel,
    quantiles_of,
)
from howsure.progress import progress
from howsure.setup import Setup

# Corruptions are milder than what may come: they do not lower the usual exponent. They raise it to
# at most 2: one that the masks do not see asks for any, and it would serve nothing else.
_EXPONENTS = (EXPONENT, 1.75, 2.0)
# The sensor's std is known within a factor of two: the std of the logarithm of the factor on its
# variance. Few inputs cannot tell a small variance with a large factor from a residual.
_LOG_FACTOR_STD = math.log(4)
_STRESSED = 100  # held-out inputs under each corruption that nobody asked for: one number is found


@dataclass(frozen=True, kw_only=True)
class PosteriorSearch(KnownOptions):
    """The options of `Uncertain.fit(model="posterior")`, besides those of `KnownOptions`.

    Without `train_inputs` the inputs of `train` serve; without `stress` the exponent is 1.5.

    Attributes:
        stress: As for others; "auto" takes those of images, if inputs look like them and have at
            most 64 outputs.
        train: Labelled training data: (inputs, targets), a data set, a loader. Errors of the 30
            rows nearest to an input then say how large its own may be, for tables: few features,
            many rows. Of more than 5,000 a random choice is kept.
        masks: Whether the model's own part is fitted; else the sensor's and the residual alone.
        residual_var: A residual variance that is known; `None` fits it.
        noise_factor: A factor on the sensor's variance that is known; `None` fits it.
        cap: Whether the variance is bounded by that of the targets.
        dense_masks: Of more than 64 outputs, such as a depth at every pixel: masks of "all" layers
            along 32 directions, which takes as many forward passes; or of the "head" alone, a last
            layer of 1 x 1, in one pass. It is blind to most of what is new.
    """

    stress: Stress | None = "auto"
    train: object = None
    masks: bool = True
    residual_var: float | None = None
    noise_factor: float | None = None
    cap: bool = True
    dense_masks: Literal["all", "head"] = "all"

    def __post_init__(self) -> None:
        """One clear sentence for each wrong option."""
        super().__post_init__()
        self._check_choice("dense_masks", ("all", "head"))
        if self.train is not None and not (self.masks and self.growth):
            # Far from all training rows the local error says nothing.
            raise ValueError("`train` needs the posterior and its growth; leave out what stops it.")
        for name in ("residual_var", "noise_factor"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be a finite number of 0 or more, not {value!r}.")


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorFit:
    """What was found, and how well it does on the held-out data.

    Attributes:
        model: The variance model.
        count: Held-out inputs.
        known: Inputs of which the posterior was made.
        cross_fitted: Whether these were the held-out ones, in folds.
        nll: Mean NLL on the held-out data, without 1/2 log 2 pi.
        constant_nll: That of the best constant variance.
        coverage: Share of the held-out targets in their 95 % intervals.
        stressed_nll: Mean NLL on the corrupted inputs, where there were any.
    """

    model: VarianceModel
    count: int
    known: int
    cross_fitted: bool
    nll: float
    constant_nll: float
    coverage: float
    stressed_nll: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """What was found as plain data, without the posterior itself."""
        model = self.model
        names = ("residual_var", "noise_factor", "mask_var", "squared_error")
        return {
            **{name: getattr(model, name).tolist() for name in names},
            "local_weight": None if model.local_weight is None else model.local_weight.tolist(),
            "local_rows": 0 if model.local_error is None else len(model.local_error.features),
            "exponent": model.exponent,
            "masks": 0 if model.posterior is None else model.posterior.masks,
            "novelty_quantiles": {
                level: model.quantiles.quantile(level, 0).tolist() for level in LEVELS
            },
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"},
        }

    def __repr__(self) -> str:
        """The NLL and what it was found on, in one line."""
        masks = 0 if self.model.posterior is None else self.model.posterior.masks
        return f"PosteriorFit(NLL {self.nll:.3f}, {masks} masks, {self.count} inputs)"

    def __str__(self) -> str:
        """What was fitted and on what, in words."""
        model, masks = self.model, self.model.posterior
        where = "the held-out inputs, in five folds" if self.cross_fitted else "unlabelled inputs"
        lines = [
            f"variance fitted on {self.count} held-out inputs: NLL {self.nll:.4f}, of a constant "
            f"{self.constant_nll:.4f}; 95 % intervals cover {100 * self.coverage:.1f} %",
            f"residual_var {_numbers(model.residual_var)}, noise factor "
            f"{_numbers(model.noise_factor)}",
        ]
        if masks is not None:
            lines += [
                f"posterior over {masks.masks} masks from {self.known} of {where}; variance per "
                f"unit of m {_numbers(model.mask_var)}",
                f"beyond the {100 * KNOWN:.0f} % quantile of the novelty the variance grows with "
                f"exponent {model.exponent:g}",
            ]
        if model.local_error is not None and model.local_weight is not None:
            rows = len(model.local_error.features)
            lines.append(
                f"local error from the {NEIGHBOURS} nearest of {rows} training rows; its weight "
                f"{_numbers(model.local_weight)}"
            )
        if self.stressed_nll is not None:
            lines.append(f"NLL on the corrupted inputs {self.stressed_nll:.4f}")
        return "\n".join(lines)


def _numbers(values: Tensor) -> str:
    shown = [f"{float(each):.4g}" for each in values.flatten()[:4]]
    return ", ".join(shown) + (", ..." if values.numel() > 4 else "")


def fit_posterior(
    setup: Setup, batches: Batches, search: PosteriorSearch
) -> tuple[Setup, PosteriorFit]:
    """The setup with the variance model that is best for held-out data."""
    setup = setup.unfitted().with_(rate=None, residual_var=0.0)
    check_held_out(batches, FEWEST)
    asked = setup
    if setup.samples is None and setup.tolerance is None:
        setup = setup.with_(samples=max(POINTS, points_for(setup, batches[0][0])))
    known = _known(setup, batches, search)
    shown = enumerate(progress(batches, search.show_progress, "fit"))
    held_out = Judged.joined([known.judged(setup, number, *batch) for number, batch in shown])
    stressed = _stressed(setup, batches, known, search) if search.masks and search.growth else ()
    fit = fit_judged(held_out, stressed, known, search)
    return asked.with_(variance_model=fit.model), fit


def fit_judged(
    held_out: Judged, stressed: Sequence[Judged], known: Known, search: PosteriorSearch
) -> PosteriorFit:
    """The variance model that is best for inputs that were judged, and how well it does."""
    model = _weighted(held_out, known, search)
    if stressed:
        model = _with_best_exponent(model, held_out, stressed)
    var = _variance(model, held_out)
    return PosteriorFit(
        model,
        len(held_out.error),
        known.posterior.count if known.posterior else 0,
        known.folds is not None,
        float(nll(held_out.error, var)),
        float(nll(held_out.error, held_out.error.mean(0).expand_as(var))),
        float((held_out.error <= 1.959964**2 * var).double().mean()),
        _mean_nll(model, stressed) if stressed else None,
    )


def _known(setup: Setup, batches: Batches, search: PosteriorSearch) -> Known:
    """The posterior and the local error that the training data gives."""
    if not search.masks:
        return Known(None)
    if search.train is None:
        return Known.of(setup, batches, search.train_inputs, show=search.show_progress)
    train = labelled(search.train)
    local = local_error(setup, batches, train)
    inputs = train if search.train_inputs is None else search.train_inputs
    known = Known.of(setup, batches, inputs, show=search.show_progress)
    return replace(known, local_error=local)


def check_held_out(batches: Batches, fewest: int) -> None:
    """An error for too few held-out inputs, and for targets that are not finite."""
    check_count(batches, fewest, "posterior")
    if not all(bool(target.isfinite().all()) for _, target in batches):
        raise ValueError("Some held-out targets are NaN or infinite; leave those inputs out.")


def _weighted(held_out: Judged, known_inputs: Known, search: PosteriorSearch) -> VarianceModel:
    """The variance model with the best weights for every output."""
    posterior, nearby = known_inputs.posterior, known_inputs.local_error
    residual, noise, masks, local = _best(held_out, known_inputs, search).unbind(1)
    # Without noise there is nothing to scale.
    noise = torch.where(held_out.data.mean(0) > 0, noise, 1.0)
    known = held_out.m.quantile(KNOWN, 0)
    novelty = held_out.m / torch.where(known > 0, known, 1.0)
    smallest = torch.finfo(torch.float64).tiny
    joint_known = max(float(novelty.mean(1).quantile(KNOWN)), smallest)
    spread = held_out.target.var(0) if search.cap else torch.full_like(known, math.inf)
    return VarianceModel(
        posterior,
        residual,
        noise,
        masks,
        known,
        joint_known,
        held_out.error.mean(0) if posterior and search.growth else torch.zeros_like(known),
        EXPONENT,
        held_out.target.mean(0),
        spread,
        quantiles_of(novelty),
        quantiles_of(novelty.mean(1)) / joint_known,
        local_error=nearby,
        local_weight=None if nearby is None else local,
        known_distance=None if nearby is None else _known_distance(held_out),
    )


def _known_distance(held_out: Judged) -> float | None:
    """The distance that counts as known; `None` if most held-out inputs are training rows, too."""
    return float(held_out.distance.quantile(KNOWN)) or None


def _best(held_out: Judged, known: Known, search: PosteriorSearch) -> Tensor:  # (outputs, 4)
    """The weights of a constant, the sensor's variance, m and the local error."""
    parts = (0.0 if part is None else None for part in (known.posterior, known.local_error))
    given = (search.residual_var, search.noise_factor, *parts)
    fixed = torch.tensor([math.nan if g is None else g for g in given], dtype=torch.float64)
    terms = (torch.ones_like(held_out.m), held_out.data, held_out.m, held_out.local)
    columns, errors = torch.stack(terms, 2), held_out.error
    log_std = fixed.new_tensor([math.inf, _LOG_FACTOR_STD, math.inf, math.inf])
    each = range(errors.shape[1])
    return torch.stack([best_weights(errors[:, k], columns[:, k], fixed, log_std) for k in each])


def _stressed(
    setup: Setup, batches: Batches, known: Known, search: PosteriorSearch
) -> tuple[Judged, ...]:
    """The held-out inputs under each corruption, with their own targets."""
    changes = corruptions(search.stress, batches[0][0])
    if search.stress == "auto" and changes:
        some = -(-_STRESSED // len(batches))
        batches = [(x[:some], y[:some]) for x, y in batches]
    return tuple(
        Judged.joined([known.judged(setup, n, change(x), y) for n, (x, y) in enumerate(batches)])
        for change in changes
    )


def _with_best_exponent(
    model: VarianceModel, held_out: Judged, stressed: Sequence[Judged]
) -> VarianceModel:
    """Half of the weight is on clean data, the other half on all corruptions alike."""

    def cost(exponent: float) -> float:
        tried = replace(model, exponent=exponent)
        clean = float(nll(held_out.error, _variance(tried, held_out)))
        return clean + _mean_nll(tried, stressed)

    return replace(model, exponent=min(_EXPONENTS, key=cost))


def _mean_nll(model: VarianceModel, stressed: Sequence[Judged]) -> float:
    each = [float(nll(judged.error, _variance(model, judged))) for judged in stressed]
    return sum(each) / len(each)


def _variance(model: VarianceModel, judged: Judged) -> Tensor:
    near = Nearby(judged.local, judged.distance)
    return model.parts(judged.mean, judged.data, judged.m, near).total
