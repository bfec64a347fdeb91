"""Bars, images, arrows, paths and galleries."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from scipy import stats

from howsure import plots
from howsure.plots.images import picture
from howsure.plots.theme import LIGHT
from howsure.prediction import Budget
from plots.reading import drawn, legend_texts, line


def budget(sources=4, batch=3, outputs=2):
    variances = torch.rand(sources, batch, outputs, dtype=torch.float64)
    names = tuple(f"s{i}" for i in range(sources))
    return Budget(names, ("input", *["dropout"] * (sources - 1)), variances)


def parts(ax):
    """The widths of the bars' parts by label."""
    return {c.get_label(): [bar.get_width() for bar in c.patches] for c in ax.containers}


def test_budget_bars_are_the_shares(ax):
    b = budget()
    drawn(plots.budget_bars(b, inputs=[2, 0], outputs=1, ax=ax))
    found = parts(ax)
    np.testing.assert_allclose(found["input s0"], b.shares[0, [2, 0], 1])
    np.testing.assert_allclose(found["dropout s3"], b.shares[3, [2, 0], 1])
    np.testing.assert_allclose(np.sum(list(found.values()), axis=0), 1)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "input 2, output 1",
        "input 0, output 1",
    ]
    assert ax.texts[0].get_text() == f"std {float(b.total[2, 1].sqrt()):.3g}"
    hatches = [c.patches[0].get_hatch() for c in ax.containers]
    assert len(set(hatches)) == len(hatches)


def test_budget_bars_average_the_batch_and_sum_up_the_rest(ax):
    b = budget(sources=7)
    drawn(plots.budget_bars(b, top=2, ax=ax))
    found = parts(ax)
    assert list(found)[-1] == "other (5)" and len(found) == 3
    shares = b.shares.mean(1)
    order = shares.mean(1).argsort(descending=True)
    np.testing.assert_allclose(next(iter(found.values())), shares[order[0]])
    np.testing.assert_allclose(found["other (5)"], shares[order[2:]].sum(0))
    assert "other (5)" in legend_texts(ax)


def test_budget_bars_take_variance_zero_and_refuse_the_rest():
    drawn(plots.budget_bars(Budget(("x",), ("input",), torch.zeros(1, 1, 1))))
    with pytest.raises(TypeError, match="`budget` is a Tensor"):
        plots.budget_bars(torch.ones(3))
    with pytest.raises(ValueError, match="positions from 0 to 2"):
        plots.budget_bars(budget(), inputs=3)
    with pytest.raises(ValueError, match="There are 50 bars"):
        plots.budget_bars(budget(outputs=50))
    with pytest.raises(ValueError, match="at least 1 source"):
        plots.budget_bars(budget(), top=0)


@pytest.mark.parametrize("shape", [(4, 5), (1, 4, 5), (3, 4, 5), (4, 5, 3), (4, 5, 1)])
def test_images_of_every_layout(shape):
    image = torch.rand(shape)
    pixels = picture("image", image)
    assert pixels.shape == ((4, 5, 3) if 3 in shape else (4, 5))
    drawn(plots.heatmap(image, torch.rand(4, 5)))


def test_gray_values_are_scaled_only_if_needed():
    inside = torch.rand(4, 5)
    np.testing.assert_allclose(picture("image", inside), inside)
    as_bytes = np.arange(20, dtype=np.uint8).reshape(4, 5)
    np.testing.assert_allclose(picture("image", as_bytes), as_bytes / 255)
    normalized = picture("image", torch.randn(4, 5))
    assert (normalized.min(), normalized.max()) == (0, 1)
    np.testing.assert_array_equal(picture("image", torch.full((2, 2), 7.5)), 0.5)


def test_heatmap_beside(ax):
    image, var = torch.rand(3, 6, 5), torch.rand(3, 6, 5)
    drawn(plots.heatmap(image, var, label="share", ax=ax))
    left, right = ax.images
    np.testing.assert_allclose(right.get_array(), var.sum(0), rtol=1e-6)
    assert left.get_extent()[1] < right.get_extent()[0]
    assert right.colorbar.ax.get_ylabel() == "share" and right.get_clim()[0] == 0


def test_heatmap_overlay_marks_the_largest(ax):
    var = torch.zeros(4, 4)
    var[1, 2], var[1, 1], var[3, 0] = 1.0, 0.6, 0.3
    drawn(plots.heatmap(torch.rand(4, 4), var, overlay=True, ax=ax))
    assert ax.images[1].get_alpha()[0, 0] == 0 < ax.images[1].get_alpha()[1, 2]
    # Two neighbors have six sides around them.
    sides = {tuple(map(tuple, s)) for s in ax.collections[0].get_segments()}
    assert len(sides) == 6 and ((1, 1), (2, 1)) in sides and ((2, 1), (2, 2)) not in sides
    drawn(plots.heatmap(torch.rand(4, 4), torch.zeros(4, 4), overlay=True))


@pytest.mark.parametrize(
    ("image", "var", "message"),
    [
        (torch.rand(2, 4, 4), torch.rand(4, 4), "give one image"),
        (torch.rand(1, 3, 4, 4), torch.rand(4, 4), "give one image"),
        (torch.rand(4, 4), torch.rand(4, 5), "4 x 4 pixels and `var` is 4 x 5"),
        (torch.rand(4, 4), torch.rand(4), r"give \(H, W\) or \(C, H, W\)"),
        (torch.rand(4, 4), -torch.rand(4, 4), "`var` is negative"),
        (torch.full((4, 4), math.nan), torch.rand(4, 4), "`image` is NaN"),
    ],
)
def test_heatmap_refuses(image, var, message):
    with pytest.raises(ValueError, match=message):
        plots.heatmap(image, var)


def test_flow_arrows(ax):
    flow, var = torch.randn(2, 8, 12), torch.rand(2, 8, 12)
    drawn(plots.flow_arrows(torch.rand(8, 12), flow, var, every=4, ax=ax))
    (arrows,) = ax.collections
    rows, columns = [2, 2, 2, 6, 6, 6], [2, 6, 10, 2, 6, 10]
    np.testing.assert_array_equal(arrows.XY, np.stack([columns, rows], 1))
    np.testing.assert_allclose(arrows.U, flow[0, rows, columns])
    np.testing.assert_allclose(arrows.get_array(), var.sum(0).sqrt()[rows, columns], rtol=1e-6)
    longest = float(flow[:, rows, columns].norm(dim=0).max())
    assert f"{longest:.3g} pixels" in ax.get_xlabel()
    assert longest / arrows.scale == pytest.approx(6)
    drawn(plots.flow_arrows(torch.rand(3, 8, 12), 0 * flow, torch.zeros(8, 12)))


def test_flow_arrows_refuse():
    image, flow = torch.rand(8, 12), torch.randn(2, 8, 12)
    with pytest.raises(ValueError, match=r"`flow` has shape \(3, 8, 12\); give \(2, H, W\)"):
        plots.flow_arrows(image, torch.randn(3, 8, 12), torch.rand(8, 12))
    with pytest.raises(ValueError, match=r"give \(2, 8, 12\) or \(8, 12\)"):
        plots.flow_arrows(image, flow, torch.rand(12, 8))
    with pytest.raises(ValueError, match="make them equal"):
        plots.flow_arrows(image.T, flow, torch.rand(8, 12))
    with pytest.raises(ValueError, match="`every` is 0"):
        plots.flow_arrows(image, flow, torch.rand(8, 12), every=0)


def ellipses(ax):
    return [patch for patch in ax.patches if isinstance(patch, Ellipse)]


def test_trajectory(ax):
    path, var = torch.randn(30, 2), torch.rand(30)
    trusted = var < 0.5
    drawn(plots.trajectory(path, var, truth=path + 1, trusted=trusted, ax=ax))
    strokes, crosses = ax.collections
    np.testing.assert_allclose(strokes.get_segments()[3], path[3:5], rtol=1e-6)
    std = var.sqrt()
    np.testing.assert_allclose(strokes.get_array(), (std[:-1] + std[1:]) / 2, rtol=1e-6)
    np.testing.assert_allclose(crosses.get_offsets(), path[~trusted], rtol=1e-6)
    np.testing.assert_allclose(line(ax, "truth").T, path + 1, rtol=1e-6)
    assert legend_texts(ax) == ["truth", "95 % ellipse", "rejected"]
    assert len(ellipses(ax)) == 12


def test_the_ellipses_hold_95_percent(ax):
    root = torch.tensor([[1.0, 0.0], [1.5, 0.4]], dtype=torch.float64)
    covariance = (root @ root.T).expand(2, 2, 2)
    plots.trajectory(torch.zeros(2, 2), covariance, ax=ax)
    ellipse = ellipses(ax)[0]
    corners = ellipse.get_patch_transform().transform(
        [[math.cos(t), math.sin(t)] for t in np.linspace(0, 6, 25)]
    )
    squared = (corners @ np.linalg.inv(covariance[0].numpy()) * corners).sum(1)
    np.testing.assert_allclose(squared, stats.chi2.ppf(0.95, 2), rtol=1e-9)


def test_trajectory_by_coordinate_and_with_variance_zero(ax):
    path = torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    plots.trajectory(path, torch.tensor([[4.0, 1.0], [0.0, 0.0]]), trusted=[True, True], ax=ax)
    first, second = ellipses(drawn(ax))
    assert {round(first.width / first.height, 6), round(first.height / first.width, 6)} == {0.5, 2}
    assert second.width == 0 and "rejected" not in legend_texts(ax)
    drawn(plots.trajectory(path[:1], torch.zeros(1)))


def test_trajectory_refuses():
    with pytest.raises(ValueError, match=r"give \(n, 2\)"):
        plots.trajectory(torch.zeros(5, 3), torch.zeros(5))
    with pytest.raises(ValueError, match=r"give \(5,\), \(5, 2\) or \(5, 2, 2\)"):
        plots.trajectory(torch.zeros(5, 2), torch.zeros(4))
    with pytest.raises(ValueError, match="`trusted` has 3"):
        plots.trajectory(torch.zeros(5, 2), torch.zeros(5), trusted=[True] * 3)
    with pytest.raises(ValueError, match="negative"):
        plots.trajectory(torch.zeros(5, 2), -torch.ones(5))


def test_gallery_sorts_and_tells():
    images, order = torch.rand(9, 1, 4, 4), torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8])
    correct = order < 9
    captions = [f"no {i}" for i in range(9)]
    grid = plots.gallery(images, order / 10, captions=captions, correct=correct, label="std")
    assert grid.shape == (2, 4)
    assert [ax.get_title() for ax in grid[0]] == ["no 3", "no 1", "no 6", "no 0"]
    assert [ax.get_title() for ax in grid[1]] == ["no 5 (wrong)", "no 8", "no 7", "no 4"]
    np.testing.assert_allclose(grid[1, 1].images[0].get_array(), images[8, 0], rtol=1e-6)
    assert grid[0, 1].get_xlabel() == "std 0.1"
    assert grid[1, 0].get_ylabel() == "least sure"
    frames = [grid[1, k].spines["top"].get_linewidth() for k in (0, 1)]
    assert frames[0] > 2 * frames[1]
    drawn(grid[0, 0])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_gallery_of_few_images_shows_each_once(count):
    axes = Figure().subplots(2, 6)
    images = torch.rand(count, 3, 4, 4)
    grid = plots.gallery(images, torch.arange(count), axes=axes)
    used = [float(ax.get_xlabel().split()[1]) for ax in grid.flat if ax.images]
    assert sorted(used) == list(range(count))
    assert all(ax.axison == bool(ax.images) for ax in grid.flat)
    drawn(grid[0, 0])


def test_gallery_refuses():
    with pytest.raises(ValueError, match="`images` has 3 entries and `uncertainty` has 2"):
        plots.gallery(torch.rand(3, 4, 4), [1, 2])
    with pytest.raises(ValueError, match="`captions` has 1"):
        plots.gallery(torch.rand(2, 4, 4), [1, 2], captions=["a"])
    with pytest.raises(ValueError, match="give two rows"):
        plots.gallery(torch.rand(2, 4, 4), [1, 2], axes=Figure().subplots(1, 2))
    with pytest.raises(ValueError, match="give one image"):
        plots.gallery(torch.rand(2, 2, 4, 4), [1, 2])


def test_more_sources_than_colors_still_differ(ax):
    plots.budget_bars(budget(sources=9), top=9, ax=ax)
    looks = {(c.patches[0].get_facecolor(), c.patches[0].get_hatch()) for c in ax.containers}
    assert len(looks) == 9 > len(LIGHT.marks)


def test_a_heat_map_draws_negative_pixels_of_a_budget_as_0_and_refuses_log_variances(ax):
    heat = torch.full((4, 4), 1.0)
    heat[0, 0] = -0.5
    drawn(plots.heatmap(torch.rand(4, 4), heat, overlay=True, ax=ax))
    shown = np.concatenate([np.ma.getdata(image.get_array()).ravel() for image in ax.images])
    assert shown.min() >= 0
    with pytest.raises(ValueError, match="was a log variance passed"):
        plots.heatmap(torch.rand(4, 4), heat - 2)
