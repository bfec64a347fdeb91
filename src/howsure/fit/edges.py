"""Warnings about a rate that lies at the edge of what was tried."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from howsure.errors import HowsureWarning


def warn_at_the_edge(rate: float | None, grid: Sequence[float]) -> None:
    """Warns if a larger or a smaller rate than any that was tried may be better."""
    positive = [r for r in grid if r]
    if len(positive) < 2 or rate is None:
        return
    if rate >= max(positive):
        warnings.warn(
            f"The best rate, {rate:.3g}, is the largest that was tried, and the variance is still "
            "too small. Noisy targets are a common reason; a residual variance accounts for them: "
            "`fit_residual_var=True`, the default.",
            HowsureWarning,
            stacklevel=6,
        )
    elif rate <= min(positive):
        warnings.warn(
            f"The best rate, {rate:.3g}, is the smallest that was tried: dropout does not explain "
            "the errors. Was the held-out data used in training, or is the noise too large?",
            HowsureWarning,
            stacklevel=6,
        )
