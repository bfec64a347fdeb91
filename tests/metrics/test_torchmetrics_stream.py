"""Streams: in a loop, over processes, without torchmetrics, and where torchvision breaks it."""

import sys

import pytest
import torch

import howsure.metrics as M

STREAM = "howsure.metrics.torchmetrics_stream"


@pytest.fixture
def fresh_import(monkeypatch):
    """Forgets streams and torchmetrics for one test."""
    for name in [n for n in sys.modules if n == STREAM or n.split(".")[0] == "torchmetrics"]:
        monkeypatch.delitem(sys.modules, name)


def test_without_torchmetrics_the_error_names_the_extra(monkeypatch, fresh_import):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r"pip install 'howsure\[metrics\]'"):
        M.rmse.stream()
    assert M.rmse(torch.ones(2), torch.zeros(2)) == 1


def test_a_broken_torchvision_gives_a_clear_error(monkeypatch, fresh_import, tmp_path):
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "torchmetrics.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"torchvision::nms.*install the torchvision"):
        M.rmse.stream()
    assert M.rmse(torch.ones(2), torch.zeros(2)) == 1


def _data(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(30, 2, generator=g), torch.randn(30, 2, generator=g)


# Sums, scatter and kept values.
KINDS = [M.rmse, M.kl_of_fitted_gaussians, M.rank_correlation]


@pytest.mark.parametrize("metric", KINDS, ids=lambda metric: metric.__name__)
def test_batches_give_the_metric_of_all(metric):
    mean, target = _data()
    running = metric.stream()
    for k in range(0, 30, 10):
        batch = mean[k : k + 10], target[k : k + 10]
        torch.testing.assert_close(running(*batch), metric(*batch))
    torch.testing.assert_close(running.compute(), metric(mean, target))
    running.reset()
    running.update(mean[:7], target[:7])
    torch.testing.assert_close(running.compute(), metric(mean[:7], target[:7]))


@pytest.mark.parametrize("metric", KINDS, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize("sizes", [(10, 20), (25, 5), (30, 0)])
def test_processes_are_gathered(metric, sizes):
    """Two processes, played by handing one the rows of the other."""
    mean, target = _data()
    one, two = metric.stream(), metric.stream()
    one.update(mean[: sizes[0]], target[: sizes[0]])
    there = torch.zeros(0, dtype=torch.float64)
    if sizes[1]:
        two.update(mean[sizes[0] :], target[sizes[0] :])
        there = torch.cat(two.rows)
    one.dist_sync_fn = lambda here, group: [here, there]
    one.distributed_available_fn = lambda: True
    torch.testing.assert_close(one.compute(), metric(mean, target))


def test_a_saved_metric_with_options_goes_on():
    mean, target = _data()
    data = mean, torch.ones_like(mean), target
    saved, resumed = (M.calibration_curve.stream(levels=(0.2, 0.7)) for _ in range(2))
    saved.update(*(x[:10] for x in data))
    resumed.load_state_dict(saved.state_dict())
    resumed.update(*(x[10:] for x in data))
    expected = M.calibration_curve(*data, levels=(0.2, 0.7))
    torch.testing.assert_close(tuple(resumed.compute()), tuple(expected))


def test_masks_pass_through():
    mean, target = _data()
    mask = mean > 0
    metric = M.rmse.stream()
    metric.update(mean, target, mask=mask)
    torch.testing.assert_close(metric.compute(), M.rmse(mean, target, mask=mask))
