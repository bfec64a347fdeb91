"""The consistency plot shows the means over runs and the chi-square band."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from howsure import plots
from plots.reading import drawn, legend_texts, line


def distances(runs=20, steps=200, dof=2, scale=1.0):
    random = np.random.default_rng(0)
    return scale * random.chisquare(dof, (runs, steps))


def band(ax):
    (found,) = [patch for patch in ax.patches if "band" in patch.get_label()]
    return found.get_extents().transformed(ax.transData.inverted())


def test_the_mean_over_runs_and_its_band(ax):
    squared = distances()
    plots.consistency(squared, 2, times=np.arange(200) / 50, ax=ax)
    x, y = line(ax, f"{round(100 * inside(squared))} % of steps inside")
    np.testing.assert_allclose(y, squared.mean(0))
    np.testing.assert_allclose(x, np.arange(200) / 50)
    low, high = np.array(stats.chi2.interval(0.95, 40)) / 20
    assert (band(ax).y0, band(ax).y1) == pytest.approx((low, high), rel=1e-6)
    assert "consistent: 2" in legend_texts(drawn(ax)) and ax.get_ylim()[0] == 0
    assert ax.get_xlabel() == "time" and "mean of 20 runs" in ax.get_ylabel()


def inside(squared, dof=2):
    low, high = np.array(stats.chi2.interval(0.95, dof * len(squared))) / len(squared)
    mean = squared.mean(0)
    return ((low <= mean) & (mean <= high)).mean()


def test_several_methods_and_one_that_is_far_off(ax):
    both = {"right": distances(), "too sure": distances(scale=50.0)}
    plots.consistency(both, 2, ax=ax)
    assert ax.get_yscale() == "log" and ax.get_xlabel() == "step"
    assert "too sure: 0 % of steps inside" in legend_texts(drawn(ax))


def test_one_run_may_be_a_tensor_of_steps(ax):
    squared = torch.tensor(distances(runs=1)[0])
    plots.consistency(squared, 2, level=0.9, ax=ax)
    assert "90 % band" in legend_texts(drawn(ax)) and "runs" not in ax.get_ylabel()
    assert band(ax).y1 == pytest.approx(stats.chi2.ppf(0.95, 2), rel=1e-6)


@pytest.mark.parametrize(
    ("squared", "options", "message"),
    [
        ([-1.0, 2.0], {}, "not negative"),
        (np.zeros((2, 2, 2)), {}, r"shape \(2, 2, 2\)"),
        ([], {}, r"shape \(0,\)"),
        ({"a": np.ones(3), "b": np.ones(4)}, {}, "all must have the same"),
        (np.ones(3), {"times": [0, 1]}, "`times` has 2 entries"),
        (np.ones(3), {"level": 95}, "`level` is 95"),
        ([1.0, math.nan], {}, "NaN"),
    ],
)
def test_a_mistake_is_named(squared, options, message):
    with pytest.raises(ValueError, match=message):
        plots.consistency(squared, 2, **options)
