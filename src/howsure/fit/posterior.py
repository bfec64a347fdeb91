"""Fits the variance model: a posterior from unlabeled inputs, and weights from held-out errors.

The posterior sees inputs of the kind that the network was trained on; they need no labels. Where
there are none it is made from the held-out inputs themselves, in folds: no input is judged by a
posterior that has seen it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from howsure.fit.held_out import Batches, check_count, points_for, rows_in_front, some_of
from howsure.fit.known import FEWEST, gather_known, labeled, layers_of, local_error, score_held_out
from howsure.fit.options import FitOptions
from howsure.fit.stress import corruptions
from howsure.methods.gradients import POINTS, cannot_use, why_no_gradients
from howsure.posterior.scores import Known
from howsure.posterior.variance_fit import HeldOut, fit_variance_model, mean_nll
from howsure.posterior.variance_model import LEVELS, TERMS, VarianceModel
from howsure.probe import probe_gradients
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup
from howsure.student import central_reach, student_nll

# Held-out inputs under each corruption that nobody asked for: few numbers are found. On rendered
# roads 100 give the same NLL within 0.001 on average over five conditions (0.009 in one).
_STRESSED = 32
# Held-out inputs of more than 64 outputs, which have a residual variance each: two for every fold.
FEWEST_OF_MANY = 10


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

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
        >>> x = torch.randn(100, 3)
        >>> target = model(x).detach() + 0.1 * torch.randn(100, 1)
        >>> found = hs.Uncertain(model).fit(x, target, show_progress=False)
        >>> type(found).__name__, found.count
        ('PosteriorFit', 100)
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

    @classmethod
    def of(
        cls,
        model: VarianceModel,
        held_out: HeldOut,
        stressed: Sequence[HeldOut],
        known: Known,
        notes: tuple[str, ...],
    ) -> PosteriorFit:
        """How well a variance model does on held-out inputs."""
        parts, error, nu = model.parts(held_out.scores), held_out.error, model.degrees_of_freedom
        var = parts.total
        names = {"sensor": "data", "residual": "residual", "local error": "local"}
        names |= {"model": "posterior", "growth": "growth"}
        shares = {n: float((getattr(parts, part) / var).mean()) for n, part in names.items()}
        constant = error.mean(0).expand_as(var)
        return cls(
            model,
            count=len(error),
            known=known.count,
            cross_fitted=known.is_cross_fitted,
            nll=float(student_nll(error, var, nu).mean()),
            constant_nll=float(student_nll(error, constant, math.inf).mean()),
            coverage=float((error <= central_reach(0.95, nu) ** 2 * var).double().mean()),
            shares={name: share for name, share in shares.items() if share > 0},
            stressed_nll=mean_nll(model, stressed, nu) if stressed else None,
            notes=notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, without the posterior itself."""
        model = self.model
        return {
            **{name: model.weight(name).tolist() for name in TERMS},
            "growth": model.growth.tolist(),
            "squared_error": model.squared_error.tolist(),
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
            f"NLL {self.nll:.4f}, {abs(gain):.4f} {'better' if gain >= 0 else 'worse'} than with a "
            "constant variance",
            "variance on held-out inputs: "
            + ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.shares.items()),
        ]
        if self.known:
            inputs = "held-out inputs, in five folds" if self.cross_fitted else "unlabeled inputs"
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
                f"novelty by {', '.join(by)}; the variance grows as its power {model.exponent:g}"
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
    options: FitOptions,
    *,
    model_part: bool = True,
    note: str = "",
    is_checked: bool = False,
) -> tuple[Setup, PosteriorFit]:
    """The setup with the variance model that is best for held-out data.

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
        raise cannot_use(failure)
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


def check_held_out(batches: Batches, fewest: int) -> None:
    """An error for too few held-out inputs, and for targets that are not finite."""
    check_count(batches, fewest, "posterior")
    if not all(bool(target.isfinite().all()) for _, target in batches):
        raise ValueError("Some held-out targets are NaN or infinite; leave those inputs out.")


def fit_variance(
    held_out: HeldOut,
    stressed: Sequence[HeldOut],
    known: Known,
    options: FitOptions,
    *,
    model_part: bool = True,
) -> PosteriorFit:
    """The variance model that is best for held-out errors, and how well it does."""
    model = fit_variance_model(
        held_out,
        stressed,
        known,
        model_part=model_part,
        growth=options.growth,
        cap=options.cap,
        residual_var=options.residual_var,
        noise_factor=options.noise_factor,
    )
    notes = [f"no posterior: {known.note}"] if known.note else []
    if options.noise_factor != 1 and bool(held_out.scores.data.any()):
        factors = model.weight("noise_factor").tolist()
        shown = ", ".join(f"{factor:.4g}" for factor in factors[:4])
        shown += ", ..." if len(factors) > 4 else ""
        notes.append(f"the stated noise variance is multiplied by {shown}, as requested")
    return PosteriorFit.of(model, held_out, stressed, known, tuple(notes))


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
