"""The numbers and curves of a report equal what numpy and scipy say of the same data."""

import numpy as np
import pytest
import torch
from report_data import (
    chart,
    class_data,
    class_report,
    gaussian_data,
    line,
    metric,
    regression_report,
)
from scipy import stats

from howsure import Prediction, metrics, report


@pytest.fixture(autouse=True)
def axes(undrawn):
    """The Axes of all charts, which are not drawn here."""
    return undrawn


def arrays(prediction, target):
    return prediction.mean.numpy(), prediction.total_var.numpy(), target.numpy()


def test_metrics_of_a_regression():
    prediction, target = gaussian_data(300, 2, 0.8)
    found = report.from_predictions({1.0: prediction}, target)
    mean, var, truth = arrays(prediction, target)
    inside = np.abs(truth - mean) <= stats.norm.ppf(0.975) * np.sqrt(var)
    expected = {
        "Coverage of the 95 %": inside.mean(),
        "RMSE": np.sqrt(((truth - mean) ** 2).mean()),
        "MAE": np.abs(truth - mean).mean(),
        "NLL": (0.5 * np.log(var) + (truth - mean) ** 2 / (2 * var)).mean(),
        "Predicted std / error": np.sqrt(var.mean() / ((truth - mean) ** 2).mean()),
        "Rank correlation": stats.spearmanr(var.ravel(), np.abs(truth - mean).ravel())[0],
        "Variance from the sensor": 0.75,
    }
    for name, value in expected.items():
        assert metric(found, name).value == pytest.approx(value, rel=1e-9), name


def test_each_output_has_its_own_view():
    found = regression_report(outputs=2, names=["lift", "drag"])
    assert found.outputs == ("all outputs", "lift", "drag")
    prediction, target = gaussian_data(120, 2)
    for k in (0, 1):
        alone = float(metrics.rmse(prediction.mean[:, k], target[:, k]))
        assert metric(found, "RMSE", output=1 + k).value == pytest.approx(alone)


def test_many_outputs_are_looked_at_together():
    prediction, target = gaussian_data(30, 20)
    assert report.from_predictions({1.0: prediction}, target).outputs == ("all outputs",)


def test_curves_of_a_regression(axes):
    prediction, target = gaussian_data(300, scale=0.7)
    found = report.from_predictions({1.0: prediction}, target)
    mean, var, truth = arrays(prediction, target)
    levels, observed = line(axes[chart(found, "reliability").svg], "area")
    quantiles = mean + np.sqrt(var) * stats.norm.ppf(levels)
    np.testing.assert_allclose(observed, (truth <= quantiles).mean(0), atol=1e-12)
    order = np.argsort(-var.ravel())
    remaining = np.abs(truth - mean).ravel()[order]
    removed, error = line(axes[chart(found, "sparsification").svg], "least sure rejected")
    half = np.abs(removed - 0.5).argmin()
    rest = remaining[round(removed[half] * 300) :].mean() / remaining.mean()
    assert error[half] == pytest.approx(rest)
    assert len(removed) == 60 and error[0] == pytest.approx(1)


def test_groups_of_equal_std(axes):
    prediction, target = gaussian_data(300, scale=0.7)
    ax = axes[chart(report.from_predictions({1.0: prediction}, target), "spread").svg]
    curve = metrics.spread_curve(prediction.mean, prediction.total_var, target)
    np.testing.assert_allclose(line(ax, "measured"), (curve.std, curve.rmse))


def widths_by_place(band):
    """How high a filled band is at each of its places."""
    corners = np.concatenate([path.vertices for path in band.get_paths()])
    at = [corners[corners[:, 0] == place, 1] for place in np.unique(corners[:, 0])]
    return np.array([heights.max() - heights.min() for heights in at])


def test_bands_hold_the_data_part_inside_the_total(axes):
    ax = axes[chart(regression_report(), "bands").svg]
    data, above, below = (widths_by_place(band) for band in ax.collections)
    np.testing.assert_allclose(data / (data + above + below), np.sqrt(0.75))
    targets = line(ax, "truth")[1]
    assert list(targets) == sorted(targets)


def test_levels_share_their_axes(axes):
    found = regression_report()
    for key in ("reliability", "sparsification", "spread", "bands", "sweep"):
        drawn = [axes[chart(found, key, k).svg] for k in range(3)]
        limits = {(*ax.get_xlim(), *ax.get_ylim(), ax.get_xscale()) for ax in drawn}
        assert len(limits) == 1, key
    assert found.levels == ("× 0.5", "× 1", "× 2") and found.start == 1


def test_the_sweep_marks_its_level(axes):
    found = regression_report()
    for k in range(3):
        ax = axes[chart(found, "sweep", k).svg]
        diamonds = [each.get_ydata() for each in ax.lines if each.get_marker() == "D"]
        expected = [line(ax, name)[1][k] for name in ("predicted std", "RMSE")]
        assert [float(np.squeeze(y)) for y in diamonds] == expected


def test_metrics_of_a_classification():
    prediction, target = class_data()
    found = report.from_predictions({1.0: prediction}, target, task="classification")
    p, y = prediction.mean.numpy(), target.numpy()
    wrong = p.argmax(1) != y
    entropy = stats.entropy(p, axis=1)
    u = stats.mannwhitneyu(entropy[wrong], entropy[~wrong]).statistic
    expected = {
        "Accuracy": 1 - wrong.mean(),
        "Mean confidence": p.max(1).mean(),
        "NLL of the class": -np.log(p[np.arange(len(y)), y]).mean(),
        "Brier": ((p - np.eye(4)[y]) ** 2).sum(1).mean(),
        "AUROC of errors, by entropy": u / (wrong.sum() * (~wrong).sum()),
        "Variance from the sensor": 0.5,
    }
    for name, value in expected.items():
        assert metric(found, name).value == pytest.approx(value, rel=1e-9), name


def test_groups_of_equal_entropy_hold_all_errors(axes):
    prediction, target = class_data()
    found = report.from_predictions({1.0: prediction}, target, task="classification")
    groups = line(axes[chart(found, "spread").svg], "wrong")
    wrong = float((prediction.mean.argmax(1) != target).double().mean())
    assert np.mean(groups[1]) == pytest.approx(wrong)
    dots = axes[chart(found, "bands").svg]
    assert len(line(dots, "right")[0]) + len(line(dots, "wrong")[0]) == 80


def test_cases_are_the_worst_and_the_galleries_are_sorted():
    prediction, target = gaussian_data(300)
    options = report.Options(cases=10, gallery=5)
    found = report.from_predictions({1.0: prediction}, target, options=options)
    error = (target - prediction.mean).abs().flatten()
    std = prediction.std.flatten()
    worst = error.argsort(descending=True)[:10].tolist()
    assert [row[0].text for row in found.cases.rows] == [f"#{i}" for i in worst]
    assert found.cases.caption == "The 10 with the largest errors of 300 cases."
    surest, unsure, surprising = found.galleries
    assert [c.name for c in surest.cards] == [f"#{i}" for i in std.argsort()[:5].tolist()]
    assert unsure.cards[0].name == f"#{int(std.argmax())}"
    assert surprising.cards[0].name == f"#{int((error / std).argmax())}"


def test_the_worst_classes_are_wrong_and_sure():
    prediction, target = class_data(120)
    wrong = prediction.mean.argmax(1) != target
    sure = torch.where(wrong, prediction.mean.max(1).values, 0)
    worst = class_report().galleries[2]
    assert worst.cards[0].name == f"#{int(sure.argmax())}" and worst.cards[0].wrong
    assert worst.cards[0].picture.startswith("data:image/png;base64,")


def test_dense_classes():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, 3, 4, 5, generator=generator).softmax(1)
    target = torch.randint(0, 3, (6, 4, 5), generator=generator)
    dense = Prediction(mean, 0.01 * mean, 0.01 * mean)
    found = report.from_predictions({1.0: dense}, target, task="classification")
    right = float((mean.argmax(1) == target).double().mean())
    assert metric(found, "Accuracy").value == pytest.approx(right)
    assert len(found.cases.rows) == 6


def test_a_variance_of_zero_is_said_and_not_hidden():
    prediction, target = gaussian_data(50)
    nothing = torch.zeros_like(prediction.mean)
    found = report.from_predictions({1.0: Prediction(prediction.mean, nothing, nothing)}, target)
    assert metric(found, "NLL").value is None
    assert "Not defined here: `var` is 0 in 50 of 50" in metric(found, "NLL").reading
    assert "far too sure" in metric(found, "Coverage of the 95 %").reading
    assert chart(found, "reliability").svg == ""
    assert "Not defined" in chart(found, "reliability").caption
    report.to_html(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_input(dtype):
    one = torch.ones(1, 1, dtype=dtype)
    found = report.from_predictions({1.0: Prediction(one, one, one)}, 2 * one)
    assert metric(found, "RMSE").value == 1
    report.to_html(found)


def test_perfect_predictions():
    prediction, _ = gaussian_data(40)
    found = report.from_predictions({1.0: prediction}, prediction.mean)
    assert "no error" in metric(found, "Predicted std").reading
    report.to_html(found)
