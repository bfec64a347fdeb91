"""Plots of predictions and their uncertainty; see docs/plots.md. Needs matplotlib when called."""

from howsure.plots.calibration import confidence as confidence
from howsure.plots.calibration import consistency as consistency
from howsure.plots.calibration import reliability as reliability
from howsure.plots.calibration import sparsification as sparsification
from howsure.plots.calibration import std_vs_error as std_vs_error
from howsure.plots.curves import bands as bands
from howsure.plots.curves import nll_vs_samples as nll_vs_samples
from howsure.plots.curves import noise_sweep as noise_sweep
from howsure.plots.curves import rate_search as rate_search
from howsure.plots.images import flow_arrows as flow_arrows
from howsure.plots.images import gallery as gallery
from howsure.plots.images import heatmap as heatmap
from howsure.plots.paths import trajectory as trajectory
from howsure.plots.sources import budget_bars as budget_bars
from howsure.plots.theme import Mark as Mark
from howsure.plots.theme import Theme as Theme
from howsure.plots.theme import style as style
