"""The variance model that is best for the scores of held-out inputs, and how well it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from howsure.fit.held_out import Batches, check_count
from howsure.fit.options import FitOptions
from howsure.posterior.novelty import LEVELS
from howsure.posterior.scores import Known
from howsure.posterior.variance_fit import HeldOut, fit_variance_model, mean_nll
from howsure.posterior.variance_model import TERMS, VarianceModel
from howsure.student import central_reach, student_nll


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
            by = ["gradients of units"] * (posterior is not None) + scores
            by += ["range of the inputs"] * (model.input_range is not None)
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
    parts, error, nu = model.parts(held_out.scores), held_out.error, model.degrees_of_freedom
    var, constant = parts.total, error.mean(0).expand_as(error)
    by_source = {
        "sensor": parts.data,
        "residual": parts.residual,
        "local error": parts.local,
        "model": parts.posterior,
        "growth": parts.growth,
    }
    shares = {name: float((part / var).mean()) for name, part in by_source.items()}
    return PosteriorFit(
        model,
        count=len(error),
        known=known.count,
        cross_fitted=known.is_cross_fitted,
        nll=float(student_nll(error, var, nu).mean()),
        constant_nll=float(student_nll(error, constant, math.inf).mean()),
        coverage=float((error <= central_reach(0.95, nu) ** 2 * var).double().mean()),
        shares={name: share for name, share in shares.items() if share > 0},
        stressed_nll=mean_nll(model, stressed, nu) if stressed else None,
        notes=tuple(notes),
    )
