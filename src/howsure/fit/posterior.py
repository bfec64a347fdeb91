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

from howsure.fit.folds import FEWEST, Batches
from howsure.fit.known_inputs import HeldOut, Known, gather_known
from howsure.fit.local_error import labelled, local_error
from howsure.fit.options import KnownOptions, check_count, points_for
from howsure.fit.stress import Stress, corruptions
from howsure.fit.validation_data import rows_in_front
from howsure.fit.variance_terms import best_weights
from howsure.methods.gradients import POINTS, cannot_use, why_no_gradients
from howsure.posterior.variance_model import (
    EXPONENT,
    FLOOR,
    KNOWN,
    LEVELS,
    VarianceModel,
    quantiles_of,
)
from howsure.probe import probe_gradients, probe_model
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup
from howsure.student import best_degrees, central_reach, student_nll
from howsure.trees import tensors_of

# Corruptions are milder than what may come: they do not lower the usual exponent. They raise it to
# at most 2: one that no score sees asks for any, and it would serve nothing else.
_EXPONENTS = (EXPONENT, 1.75, 2.0)
# The sensor's std is known within a factor of two: the std of the logarithm of the factor on its
# variance. Few inputs cannot tell a small variance with a large factor from a residual.
_LOG_FACTOR_STD = math.log(2)
# Held-out inputs under each corruption that nobody asked for: few numbers are found. On rendered
# roads 100 give the same NLL within 0.001 on average over five conditions (0.009 in one).
_STRESSED = 32
# Numbers of held-out inputs that are examined; the weights need no more than some hundred inputs.
_NUMBERS, _LEAST_INPUTS = 2**24, 384
# Squared errors count at most so many times their 90 % quantile.
_MOST_ERROR = 25.0
# Held-out inputs of more than 64 outputs, which have a residual variance each: two for every fold.
FEWEST_OF_MANY = 10


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
        noise_factor: A factor on the sensor's variance: 1, so that `data_var` is that of the noise
            as stated; `None` fits one, which is noted.
        cap: Whether the variance is bounded by that of the targets.
        dense_masks: Of more than 64 outputs, such as a depth at every pixel: masks of "all" layers
            along 32 directions, which takes as many forward passes; or of the "head" alone, a last
            layer of 1 x 1, in one pass. It misses most out-of-distribution inputs.
    """

    stress: Stress | None = "auto"
    train: object = None
    masks: bool = True
    residual_var: float | None = None
    noise_factor: float | None = 1.0
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
    """The result of a fit, and how well it does on the held-out data.

    Attributes:
        model: The variance model.
        count: Held-out inputs.
        known: Inputs of which the posterior was made.
        cross_fitted: Whether these were the held-out ones, in folds.
        nll: Mean NLL of the Student-t on the held-out data, without 1/2 log 2 pi.
        constant_nll: That of the best constant variance, a Gaussian.
        coverage: Share of the held-out targets in their 95 % intervals.
        shares: Mean share of each part in the variance of held-out predictions.
        stressed_nll: Mean NLL on the corrupted inputs, where there were any.
        notes: What a user should know about the fit.
    """

    model: VarianceModel
    count: int
    known: int
    cross_fitted: bool
    nll: float
    constant_nll: float
    coverage: float
    shares: dict[str, float]
    stressed_nll: float | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, without the posterior itself."""
        model = self.model
        names = (
            "residual_var",
            "noise_factor",
            "mask_var",
            "layer_var",
            "deviation_var",
            "local_weight",
            "kernel_var",
            "growth",
            "squared_error",
        )
        return {
            **{name: getattr(model, name).tolist() for name in names},
            "local_rows": 0 if model.local_error is None else len(model.local_error.features),
            "exponent": model.exponent,
            "degrees_of_freedom": model.degrees_of_freedom,
            "masks": 0 if model.posterior is None else model.posterior.masks,
            "novelty_quantiles": {
                level: model.quantiles.quantile(level, 0).tolist() for level in LEVELS
            },
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"},
        }

    def __repr__(self) -> str:
        """The NLL and what it was found on, in one line."""
        masks = 0 if self.model.posterior is None else self.model.posterior.masks
        return f"PosteriorFit(NLL {self.nll:.3f}, {masks} multipliers, {self.count} inputs)"

    def __str__(self) -> str:
        """What was fitted and on what, in words."""
        model, posterior = self.model, self.model.posterior
        gain = self.constant_nll - self.nll
        lines = [
            *self.notes,
            f"variance fitted on {self.count} held-out inputs; 95 % intervals cover "
            f"{100 * self.coverage:.1f} % of them",
            f"NLL {self.nll:.4f}, {abs(gain):.4f} {'below' if gain >= 0 else 'above'} that of a "
            "constant variance",
            "variance on held-out inputs: "
            + ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.shares.items()),
        ]
        if self.known:
            inputs = "held-out inputs, in five folds" if self.cross_fitted else "unlabelled inputs"
            what = (
                "distances"
                if posterior is None
                else f"posterior over {posterior.masks} multipliers"
            )
            lines.append(f"{what} from {self.known} {inputs}")
        scores = [
            n for n, g in zip(("neighbor", "layers"), model.growth.mT, strict=True) if g.any()
        ]
        if model.has_novelty:
            by = ["multipliers"] * (posterior is not None) + scores + ["range of the inputs"]
            lines.append(
                f"novelty by {', '.join(by)}; the variance grows with its power {model.exponent:g}"
            )
        if model.local_error is not None:
            lines.append(f"local error from {len(model.local_error.features)} training rows")
        shape = (
            "Gaussian"
            if model.degrees_of_freedom == math.inf
            else (f"Student-t with {model.degrees_of_freedom:g} degrees of freedom")
        )
        lines.append(f"errors are {shape}")
        if self.stressed_nll is not None:
            lines.append(f"NLL on corrupted held-out inputs {self.stressed_nll:.4f}")
        return "\n".join(lines)


def fit_posterior(
    setup: Setup,
    batches: Batches,
    search: PosteriorSearch,
    note: str = "",
    *,
    is_checked: bool = False,
) -> tuple[Setup, PosteriorFit]:
    """The setup with the variance model that is best for held-out data.

    With a `note`, which says why, it has no posterior: the sensor's part is sampled, and distances
    and the range of the inputs say how novel an input is. `is_checked` says that the gradients at
    the first inputs were looked at.
    """
    x, axis = batches[0][0], setup.batch_dim or 0
    is_checked = is_checked or bool(note)
    failure = None if is_checked else why_no_gradients(setup, x, watch=search.masks)
    if failure is not None:
        raise cannot_use(failure)
    setup = setup.unfitted().with_(rate=None, residual_var=0.0)
    batches = [(x, rows_in_front(y, axis)) for x, y in batches]
    target = batches[0][1]
    is_wide = target.numel() > MOST_OUTPUTS * max(1, len(target))
    fewest = FEWEST_OF_MANY if note and is_wide else FEWEST
    check_held_out(batches, fewest)
    fitted = setup
    if setup.samples is None and setup.tolerance is None and not note:
        probed = setup.watching(x) if search.masks else setup
        layout = probed.once(probe_model, x).layout
        setup = setup.with_(samples=max(POINTS, points_for(setup, x, layout)))
    known = _known(setup, batches, search, note, fewest)
    examined = some_of(batches)
    shown = enumerate(progress(examined, search.show_progress, "held-out inputs"))
    held_out = HeldOut.joined([known.score(setup, number, *batch) for number, batch in shown])
    stressed = ()
    if search.masks and search.growth and held_out.error.shape[1] <= MOST_OUTPUTS:
        stressed = _stressed(setup, examined, known, search, held_out.scores.data.mean(0))
    fit = fit_variance(held_out, stressed, known, search)
    return fitted.with_(variance_model=fit.model), fit


def _known(
    setup: Setup, batches: Batches, search: PosteriorSearch, note: str, fewest: int
) -> Known:
    """The known inputs, and the local error that labelled training data gives."""
    if not search.masks:
        return Known(note=note)
    show = search.show_progress
    if search.train is None or note:
        inputs = search.train_inputs
        return gather_known(
            setup, batches, inputs, masks=not note, note=note, fewest=fewest, show=show
        )
    train = labelled(search.train)
    local = local_error(setup, batches, train)
    inputs = train if search.train_inputs is None else search.train_inputs
    return replace(gather_known(setup, batches, inputs, show=show), local_error=local)


def some_of(batches: Batches) -> Batches:
    """As many held-out inputs as the weights need: the first of every batch, of large inputs."""
    numbers = sum(tensor.numel() for x, _ in batches for tensor in tensors_of(x))
    count = sum(len(target) for _, target in batches)
    most = max(_LEAST_INPUTS, _NUMBERS * count // max(1, numbers))
    x = batches[0][0]
    if count <= most or not isinstance(x, Tensor):
        return batches
    share = [-(-len(y) * most // count) for _, y in batches]
    return [(x[:k], y[:k]) for k, (x, y) in zip(share, batches, strict=True)]


def check_held_out(batches: Batches, fewest: int) -> None:
    """An error for too few held-out inputs, and for targets that are not finite."""
    check_count(batches, fewest, "posterior")
    if not all(bool(target.isfinite().all()) for _, target in batches):
        raise ValueError("Some held-out targets are NaN or infinite; leave those inputs out.")


def fit_variance(
    held_out: HeldOut, stressed: Sequence[HeldOut], known: Known, search: PosteriorSearch
) -> PosteriorFit:
    """The variance model that is best for held-out errors, and how well it does."""
    clipped = replace(held_out, error=_clip_outliers(held_out.error))
    model = _with_best_weights(_reference(clipped, known, search), clipped, search)
    if stressed:
        model = _with_best_growth(model, clipped, stressed)
    model = _with_novelty(model, clipped)
    parts, error = model.parts(held_out.scores), held_out.error
    var = parts.total
    nu = best_degrees(clipped.error, var)
    model = replace(model, degrees_of_freedom=nu)
    constant = error.mean(0).expand_as(var)
    names = {"sensor": "data", "residual": "residual", "local error": "local"}
    names |= {"model": "posterior", "growth": "growth"}
    shares = {n: float((getattr(parts, part) / var).mean()) for n, part in names.items()}
    notes = [f"no posterior: {known.note}"] if known.note else []
    if search.noise_factor != 1 and bool(held_out.scores.data.any()):
        notes.append(
            f"the noise counts {_numbers(model.noise_factor)} times as stated, as asked for"
        )
    return PosteriorFit(
        model,
        len(error),
        known.count,
        known.is_cross_fitted,
        float(student_nll(error, var, nu).mean()),
        float(student_nll(error, constant, math.inf).mean()),
        float((error <= central_reach(0.95, nu) ** 2 * var).double().mean()),
        {name: share for name, share in shares.items() if share > 0},
        _mean_nll(model, stressed, nu) if stressed else None,
        tuple(notes),
    )


def _clip_outliers(error: Tensor) -> Tensor:  # (inputs, outputs), squared
    """The errors without the weight of a single wrong target: a warning names such rows.

    Of Gaussian errors none beyond 8 std is clipped, of t-distributed ones with 3 degrees of freedom
    one in 800.
    """
    return torch.minimum(error, _MOST_ERROR * error.quantile(0.9, 0))


def _numbers(values: Tensor) -> str:
    shown = [f"{float(value):.4g}" for value in values.flatten()[:4]]
    return ", ".join(shown) + (", ..." if values.numel() > 4 else "")


def _reference(held_out: HeldOut, known: Known, search: PosteriorSearch) -> VarianceModel:
    """The variance model without weights: what held-out inputs are like."""
    scores, error = held_out.scores, held_out.error
    nothing = torch.zeros_like(error[0])
    nearest = float(scores.nearest.quantile(KNOWN))
    distances = None if known.distances is None else known.distances.whole
    # Without gradients the layers alone say how far away an input is.
    by_layers = 1.0 if known.note and distances is not None else 0.0
    growth = torch.stack([nothing, nothing + by_layers], 1)
    is_bounded = search.cap and search.masks
    return VarianceModel(
        posterior=None if known.posterior is None else known.posterior.whole,
        distances=distances,
        input_range=known.input_range,
        residual_var=nothing,
        noise_factor=torch.ones_like(nothing),
        mask_var=nothing,
        layer_var=nothing,
        deviation_var=nothing,
        floor=scores.m.quantile(FLOOR, 0),
        known=scores.m.quantile(KNOWN, 0),
        known_distances=scores.distances.quantile(KNOWN, 0),
        farthest=2 * scores.distances.amax(0),
        growth=growth if search.growth else torch.zeros_like(growth),
        novelty_scale=torch.ones_like(nothing),
        joint_known=1.0,
        squared_error=error.mean(0) if search.masks and search.growth else nothing,
        exponent=EXPONENT,
        degrees_of_freedom=math.inf,
        center=held_out.target.mean(0),
        spread=held_out.target.var(0) if is_bounded else torch.full_like(nothing, math.inf),
        quantiles=nothing,
        joint_quantiles=nothing,
        local_weight=nothing,
        kernel_var=nothing,
        local_error=known.local_error,
        known_nearest=None if known.local_error is None else nearest or None,
        kernel=known.kernel,
        note="" if not known.note else f"There is no posterior over multipliers: {known.note}.",
    )


def _with_best_weights(
    model: VarianceModel, held_out: HeldOut, search: PosteriorSearch
) -> VarianceModel:
    """With the weights of v_in that are best for every output."""
    terms, error = model.terms(held_out.scores), held_out.error
    free = math.nan if search.masks else 0.0
    fixed = [search.residual_var, search.noise_factor, None, free, free, None, None]
    given = terms.new_tensor([math.nan if value is None else value for value in fixed])
    log_std = torch.full_like(given, math.inf)
    log_std[1] = _LOG_FACTOR_STD
    if error.shape[1] <= MOST_OUTPUTS:
        columns = range(error.shape[1])
        weights = torch.stack(
            [best_weights(error[:, k], terms[:, k], given, log_std) for k in columns]
        )
    else:  # What the sensor does not explain, of every output.
        weights = torch.zeros_like(terms[0])
        factor = 1.0 if search.noise_factor is None else search.noise_factor
        rest = error.mean(0) - factor * held_out.scores.data.mean(0)
        weights[:, 0] = torch.maximum(rest, 0.01 * error.mean(0))
        weights[:, 1] = factor
    # Without noise there is nothing to scale.
    factor = torch.where(held_out.scores.data.mean(0) > 0, weights[:, 1], 1.0)
    return replace(
        model,
        residual_var=weights[:, 0],
        noise_factor=factor,
        mask_var=weights[:, 2],
        layer_var=weights[:, 3],
        deviation_var=weights[:, 4],
        local_weight=weights[:, 5],
        kernel_var=weights[:, 6],
    )


def _with_best_growth(
    model: VarianceModel, held_out: HeldOut, stressed: Sequence[HeldOut]
) -> VarianceModel:
    """With the growth that is best for clean and corrupted inputs, half of the weight on either."""
    repeated = max(1, round(sum(len(s.error) for s in stressed) / len(held_out.error)))
    parts = [held_out] * repeated + list(stressed)
    error = torch.cat([part.error for part in parts])
    inside = torch.cat([(model.terms(p.scores) * model.weights).sum(2) for p in parts])
    fixed = error.new_tensor([1.0, math.nan, math.nan])

    def fitted(exponent: float) -> VarianceModel:
        tried = replace(model, exponent=exponent)
        grown = torch.cat([tried.grown(part.scores) for part in parts])
        columns = torch.cat([(inside + grown[..., 0])[..., None], grown[..., 1:]], 2)
        weights = [best_weights(error[:, k], columns[:, k], fixed) for k in range(error.shape[1])]
        return replace(tried, growth=torch.stack(weights)[:, 1:])

    def cost(tried: VarianceModel) -> float:
        return _mean_nll(tried, [held_out]) + _mean_nll(tried, stressed)

    return min(map(fitted, _EXPONENTS), key=cost)


def _with_novelty(model: VarianceModel, held_out: HeldOut) -> VarianceModel:
    """With the scale and the quantiles of the held-out inputs' novelty."""
    novelty = model.novelty(held_out.scores)
    smallest = torch.finfo(torch.float64).tiny
    scale = novelty.quantile(KNOWN, 0)
    scale = torch.where(scale > 0, scale, 1.0)
    novelty = novelty / scale
    joint = novelty.mean(1)
    joint_known = max(float(joint.quantile(KNOWN)), smallest)
    return replace(
        model,
        novelty_scale=scale,
        joint_known=joint_known,
        quantiles=quantiles_of(novelty),
        joint_quantiles=quantiles_of(joint) / joint_known,
    )


def _stressed(
    setup: Setup, batches: Batches, known: Known, search: PosteriorSearch, data: Tensor
) -> tuple[HeldOut, ...]:
    """The held-out inputs under each corruption, with their own targets.

    Their gradients are those at the input itself, in an eighth of the passes: the variance of the
    sensor is taken to be that of clean inputs on average.
    """
    probes = [
        None if known.note else setup.watching(x).once(probe_gradients, x) for x, _ in batches
    ]

    def score(number: int, x: Any, target: Tensor) -> HeldOut:
        part = known.score(setup, number, x, target, noisy=False, probe=probes[number])
        return replace(part, scores=replace(part.scores, data=data.expand_as(part.error)))

    changes = corruptions(search.stress, batches[0][0])
    if search.stress == "auto" and changes:
        some = -(-_STRESSED // len(batches))
        batches = [(x[:some], y[:some]) for x, y in batches]
    shown = progress(changes, search.show_progress, "corruptions")
    return tuple(
        HeldOut.joined([score(n, change(x), y) for n, (x, y) in enumerate(batches)])
        for change in shown
    )


def _mean_nll(model: VarianceModel, stressed: Sequence[HeldOut], nu: float = math.inf) -> float:
    losses = [
        float(student_nll(part.error, model.parts(part.scores).total, nu).mean())
        for part in stressed
    ]
    return sum(losses) / len(losses)
