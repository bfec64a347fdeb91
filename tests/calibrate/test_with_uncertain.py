"""Calibrators inside `Uncertain`: fitted on a loader, applied, stacked, saved."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.calibrate import (
    AffineVariance,
    CalibratedPrediction,
    Conformal,
    ConformalClasses,
    Temperature,
    VarianceScale,
)


def truth(x):
    return torch.stack([torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1], x[:, 0] * x[:, 1]], 1)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    x = torch.rand(300, 2) * 4 - 2
    for _ in range(300):
        optimizer.zero_grad()
        (model(x) - truth(x)).square().mean().backward()
        optimizer.step()
    return model.eval()


def readings(n, seed):
    """Noisy inputs with noisy targets, which the method does not know of."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator) * 4 - 2
    noisy = x + 0.1 * torch.randn(n, 2, generator=generator)
    return TensorDataset(noisy, truth(x) + 0.2 * torch.randn(n, 2, generator=generator))


def wrapped(net, method="adf"):
    return hs.Uncertain(net, hs.noise.std(0.1), method)


def nll(p, y):
    return float(hs.metrics.nll(p.mean, p.total_var, y))


def test_it_is_applied_to_every_prediction(net):
    held_out, (x, y) = readings(400, 1), readings(400, 2).tensors
    sure = wrapped(net)
    before = sure(x)
    fitted = sure.calibrate(DataLoader(held_out, 64), "affine", per_output=True)
    assert sure.calibrators == (fitted,) and isinstance(fitted, AffineVariance)
    after = sure(x)
    assert nll(after, y) < nll(before, y) - 0.1
    torch.testing.assert_close(after.total_var, fitted(before).total_var)
    assert torch.equal(after.total_var, after.data_var + after.model_var)
    batched = sure.predict(DataLoader(held_out, 64), show_progress=False)
    torch.testing.assert_close(batched.total_var[:5], sure(held_out[:5][0]).total_var)


def test_calibrators_stack_and_conformal_comes_last(net):
    x, y = readings(400, 2).tensors
    sure = wrapped(net)
    sure.calibrate(DataLoader(readings(400, 1), 64), VarianceScale)
    sure.calibrate(DataLoader(readings(400, 3), 64), Conformal)
    p = sure(x)
    assert isinstance(p, CalibratedPrediction)
    low, high = p.interval(0.9)
    covered = float(((low <= y) & (y <= high)).float().mean())
    assert abs(covered - 0.9) < 0.08  # 5 standard errors of 400 held-out and 400 new points
    with pytest.raises(ValueError, match="which must come last"):
        sure.calibrate(DataLoader(readings(50, 4), 50), "scale")
    assert len(sure.calibrators) == 2


def test_a_loader_keeps_the_intervals(net):
    sure = wrapped(net)
    sure.calibrate([readings(100, 1).tensors], "conformal", joint=True)
    data = readings(50, 2)
    whole, batched = sure(data.tensors[0]), sure.predict(DataLoader(data, 16), show_progress=False)
    for one, two in zip(whole.interval(0.9), batched.interval(0.9), strict=True):
        torch.testing.assert_close(one, two)


def test_groups_go_through(net):
    sure = wrapped(net)

    def side(x):
        return (x[:, 0] > 0).long()

    sure.calibrate(DataLoader(readings(200, 1), 64), "conformal", groups=side)
    x, _ = readings(20, 2).tensors
    low, high = sure(x).interval(0.9, groups=side(x))
    assert torch.isfinite(low).all() and (low < high).all()
    with pytest.raises(ValueError, match="fitted by group"):
        sure(x).interval(0.9)


def test_it_is_saved_with_the_settings(net, tmp_path):
    sure = wrapped(net)
    sure.calibrate([readings(100, 1).tensors], "affine")
    sure.calibrate([readings(100, 3).tensors], "conformal")
    x, _ = readings(20, 2).tensors
    sure.save(tmp_path / "sure.pt")
    loaded = hs.Uncertain.load(tmp_path / "sure.pt", net)
    other = wrapped(net)
    torch.save(sure.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    for again in (loaded, other):
        assert [type(each) for each in again.calibrators] == [AffineVariance, Conformal]
        assert torch.equal(again(x).data_var, sure(x).data_var)
        assert torch.equal(again(x).interval(0.9)[0], sure(x).interval(0.9)[0])


def test_a_new_fit_drops_them(net):
    sure = wrapped(net, "sampled_adf")
    sure.setup = sure.setup.replace(rate=0.1, samples=5)
    sure.calibrate([readings(50, 1).tensors], "scale")
    sure.fit([readings(50, 1).tensors], rates=[0.1], samples=5, fit_residual_var=True)
    assert sure.calibrators == ()


def test_an_unknown_name(net):
    with pytest.raises(ValueError, match="`calibrator` must be one of"):
        wrapped(net).calibrate([readings(50, 1).tensors], "platt")


@pytest.mark.parametrize("method", ["adf", "sampled_adf", "mc_dropout"])
def test_classification(net, method):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 2, generator=generator) * 4 - 2
    p = torch.softmax(0.5 * net(x).detach(), 1)
    labels = torch.multinomial(p, 1, generator=generator)[:, 0]
    options = {} if method == "adf" else {"rate": 0.1, "samples": 4}
    noise = None if method == "mc_dropout" else 0.01
    sure = hs.Uncertain(net, noise, method, task="classification", **options)
    before = sure(x)
    fitted = sure.calibrate([(x, labels)], Temperature)
    after = sure(x)
    torch.testing.assert_close(after.logits.mean, before.logits.mean / fitted.temperature.float())
    assert hs.metrics.categorical_nll(after.mean, labels) < hs.metrics.categorical_nll(
        before.mean, labels
    )
    assert torch.isfinite(after.mutual_information).all()
    sure.calibrate([(x, labels)], ConformalClasses)
    assert sure(x).sets(0.9).gather(1, labels[:, None]).sum() == 181  # ceil(201 * 0.9)
