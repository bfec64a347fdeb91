"""Two more lines than in the paper: its method with an affine map of the variance; a wider floor.

The paper's rate has to serve two ends: it orders inputs by how unsure the network is, and it has to
be high enough to make up for everything that dropout does not know, at the price of a worse mean.
Here a residual variance + scale * var has the right size, and a rate that orders well is enough.

The floor: objects move more sideways than up and down, and one constant for both components is
beaten by two. A method that has a variance for each output must be held against these.
"""

from __future__ import annotations

import torch

from howsure import metrics
from howsure.calibrate import AffineVariance
from howsure.uncertain import Uncertain
from howsure_lab.experiments.contenders import Bench, Tuned
from howsure_lab.experiments.scores import FLOOR

NAME = "ours_affine"
LABEL = "the paper + affine variance"
FLOOR_NAME = "constant_each"
FLOOR_LABEL = "constant variance of each component"


def constant_each(bench: Bench) -> Tuned:
    """The plain prediction, with the mean squared error of each component of the flow."""
    batches = bench.validation.batches(bench.effort.batch)
    with torch.inference_mode():
        errors = torch.cat([(bench.model(*x) - y).square() for x, y in batches])
    var = errors.mean((0, 2, 3), keepdim=True)[0].clone()
    sure = Uncertain(bench.model, None, "constant", residual_var=var, seed=bench.seed)
    return Tuned(sure, {"residual_var": var.flatten().tolist()})


def affine(bench: Bench) -> Tuned:
    """The method with the rate, the factor and the constant that suit the held-out data best."""
    found = [_at_rate(bench, rate) for rate in bench.effort.rates if rate > 0]
    return min(found, key=lambda each: each.record["validation_nll"])


def _at_rate(bench: Bench, rate: float) -> Tuned:
    sure = Uncertain(
        bench.model,
        bench.noise,
        "sampled_adf",
        rate=rate,
        samples=bench.effort.samples,
        seed=bench.seed,
    )
    batches = bench.validation.batches(bench.effort.batch)
    raw = sure.predict(batches, show_progress=False)
    target = torch.cat([y for _, y in batches])
    fitted = AffineVariance.fit(raw, target)
    sure.calibrators = (fitted,)
    total = fitted(raw).total_var
    nll = float(metrics.nll(raw.mean, total, target, floor=FLOOR))
    found = {"scale": float(fitted.scale), "residual_var": float(fitted.residual_var)}
    return Tuned(sure, {"rate": rate, **found, "validation_nll": nll})
