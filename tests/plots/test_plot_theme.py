"""The style: readable without color, in the light and in the dark, and only where asked."""

import itertools
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from howsure import plots
from howsure.plots.theme import DARK, LIGHT
from plots.reading import drawn

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def luminance(color):
    """Relative luminance (WCAG 2.1)."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(first, second):
    high, low = sorted([luminance(first), luminance(second)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@THEMES
def test_series_differ_without_color(theme):
    marks = [theme.mark(i) for i in range(12)]
    for one, other in itertools.combinations(marks[:6], 2):
        assert one.line != other.line and one.marker != other.marker and one.hatch != other.hatch
    looks = {(m.color, str(m.line), m.marker, m.hatch) for m in marks}
    assert len(looks) == 12


@THEMES
def test_everything_stands_out_from_the_background(theme):
    assert contrast(theme.ink, theme.background) > 12
    assert min(contrast(mark.color, theme.background) for mark in theme.marks) > 2


@THEMES
def test_the_scale_gets_monotonously_farther_from_the_background(theme):
    ratios = [contrast(color[:3], theme.background) for color in theme.scale.colors]
    assert (np.diff(ratios) > 0).all()
    assert ratios[0] > 1.5 and ratios[-1] > 10


def test_style_is_dark_inside_and_leaves_nothing_behind():
    before = dict(matplotlib.rcParams)
    with plots.style(dark=True) as theme:
        ax = plots.bands([0, 1], ([0, 1], [1, 1]))
        assert matplotlib.rcParams["figure.facecolor"] == theme.background
    assert ax.get_figure().get_facecolor()[:3] == to_rgb(theme.background)
    assert ax.get_facecolor()[:3] == to_rgb(theme.background)
    assert ax.xaxis.label.get_color() == theme.ink
    assert ax.get_legend().get_texts()[0].get_color() == theme.ink
    assert ax.xaxis.get_major_ticks()[0].label1.get_color() == theme.ink
    assert dict(matplotlib.rcParams) == before
    light = plots.bands([0, 1], ([0, 1], [1, 1]))
    assert light.get_facecolor()[:3] == to_rgb("white")


def test_style_ends_with_an_exception():
    with pytest.raises(RuntimeError, match="stop"), plots.style(dark=True):
        raise RuntimeError("stop")
    assert plots.bands([0, 1], ([0, 1], [1, 1])).get_facecolor()[:3] == (1, 1, 1)


def test_axes_made_outside_become_dark_too():
    figure = Figure()
    ax = figure.add_subplot()
    with plots.style(dark=True):
        plots.reliability(([0.0, 1.0], [1.0, 1.0]), [0.5, 0.5], ax=ax)
    drawn(ax)
    assert figure.get_facecolor()[:3] == to_rgb(DARK.background)
    assert ax.xaxis.get_major_ticks()[0].label1.get_color() == DARK.ink


def test_own_axes_need_no_pyplot_figure():
    import matplotlib.pyplot as plt

    ax = Figure().add_subplot()
    assert plots.bands([0, 1], ([0, 1], [1, 1]), ax=ax) is ax
    assert plt.get_fignums() == []


def test_wrong_axes():
    with pytest.raises(TypeError, match="`ax` is a Figure; pass matplotlib Axes"):
        plots.bands([0, 1], ([0, 1], [1, 1]), ax=Figure())


def test_import_costs_no_matplotlib_and_its_absence_is_explained():
    code = """
import sys, howsure.plots as plots
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
for call in (lambda: plots.bands([0], ([0], [1])), lambda: plots.style().__enter__()):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.count("pip install 'howsure[plots]'") == 2, done.stderr
