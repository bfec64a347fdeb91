"""Training through propagation: no NaN from random weights, the loss falls, batch norm is right."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure_lab.training import Recipe, batch_statistics, train_adf


def inputs(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def conv_net(outputs, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, outputs),
    )


def images():
    """Images, the brightness of their halves, and which half is brighter."""
    x = inputs(48, 1, 6, 6)
    halves = torch.stack([x[:, 0, :3].mean((1, 2)), x[:, 0, 3:].mean((1, 2))], 1)
    return x, 10 * halves, halves.argmax(1)


@pytest.mark.parametrize("lr", [1e-3, pytest.param(1e-2, marks=pytest.mark.slow), 1e-1])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_200_steps_from_random_weights_are_finite_and_the_loss_falls(lr, task):
    x, brightness, brighter = images()
    target = brightness if task == "regression" else brighter
    model = conv_net(2)
    batches = list(zip(x.split(12), target.split(12), strict=True))
    losses = train_adf(model, 0.01, batches, epochs=50, lr=lr, task=task, show_progress=False)
    assert len(losses) == 200 and all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20])
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.training
    out = hs.propagate(model.eval(), x, 0.01)
    assert bool(out.mean.isfinite().all()) and bool((out.var > 0).all())


@pytest.mark.parametrize("noise", [0.0, 1e-6, 10.0])
def test_extreme_noise_is_finite(noise):
    x, brightness, _ = images()
    losses = train_adf(
        conv_net(2), noise, [(x, brightness)], epochs=15, lr=0.1, show_progress=False
    )
    assert all(math.isfinite(loss) for loss in losses)


def test_training_learns_a_linear_map_and_reports_the_noise():
    # y = 2 a - b: with sensor variance 0.04 the propagated variance should become 0.04 * 5.
    x = inputs(64, 2, seed=3) - 0.5
    noisy = x + 0.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
    model = nn.Linear(2, 1)
    target = x @ torch.tensor([[2.0], [-1.0]])
    losses = train_adf(model, 0.04, [(noisy, target)], epochs=150, lr=0.05, show_progress=False)
    assert losses[-1] < losses[0]
    with torch.no_grad():
        out = hs.propagate(model, noisy, 0.04)
    torch.testing.assert_close(
        out.var, 0.04 * model.weight.square().sum().expand(64, 1), rtol=1e-5, atol=0
    )
    # Calibrated on its own data: the mean squared error is the variance, floor included.
    error = float((out.mean - target).square().mean())
    assert error == pytest.approx(float(out.var.mean()) + 1e-3, rel=0.3)


def test_the_loss_is_the_gaussian_nll_with_the_floor():
    model, x, y = nn.Linear(3, 2), inputs(5, 3), inputs(5, 2, seed=2)
    mean = model(x)
    var = 0.1 * model.weight.square().sum(1).expand(5, 2) + 0.01
    expected = (0.5 * var.log() + (y - mean).square() / (2 * var)).mean()
    losses = train_adf(model, 0.1, [(x, y)], epochs=1, floor=0.01, show_progress=False)
    assert losses[0] == pytest.approx(expected.item(), rel=1e-5)


def test_the_classification_loss_is_one_hot_on_the_propagated_softmax():
    model, x, labels = nn.Linear(3, 4), inputs(5, 3), torch.tensor([0, 3, 1, 2, 2])
    out = hs.propagate(lambda x: F.softmax(model(x), 1), x, 0.1)
    var = out.var + 0.02
    residual = F.one_hot(labels, 4) - out.mean
    expected = (0.5 * var.log() + residual.square() / (2 * var)).mean()
    settings = {"epochs": 1, "floor": 0.02, "task": "classification", "show_progress": False}
    assert train_adf(model, 0.1, [(x, labels)], **settings)[0] == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_batch_statistics_without_noise_are_torchs():
    ours = nn.BatchNorm2d(3)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs = copy.deepcopy(ours).train()
    x = 3 + 2 * inputs(4, 3, 5, 5)
    out = hs.propagate(ours.eval(), x, 0.0, rules={F.batch_norm: batch_statistics})
    torch.testing.assert_close(out.mean, theirs(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert not out.var.any()


def test_batch_statistics_with_noise_are_those_of_noisy_batches():
    norm, plain = nn.BatchNorm1d(2, momentum=None).eval(), nn.BatchNorm1d(2, momentum=1.0).train()
    x, var = 2 * inputs(512, 2), torch.tensor([0.04, 0.5])
    out = hs.propagate(norm, x, var, rules={F.batch_norm: batch_statistics})
    noise = torch.randn(400, 512, 2, generator=torch.Generator().manual_seed(0)) * var.sqrt()
    draws = torch.stack([plain(x + each).detach() for each in noise])
    torch.testing.assert_close(out.mean, draws.mean(0), atol=0.2, rtol=0)
    torch.testing.assert_close(out.var.mean(0), draws.var(0).mean(0), atol=0, rtol=0.03)
    assert norm.running_var[1] == pytest.approx(0.9 + 0.1 * float(plain.running_var[1]), rel=0.02)


def test_gradients_pass_through_the_batchs_statistics():
    norm = nn.BatchNorm1d(3).double().eval()
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def loss(x, var):
        out = hs.propagate(norm, x, var, rules={F.batch_norm: batch_statistics})
        return (out.mean * weights).tanh().sum() + (out.var * weights).sum()

    x = inputs(6, 3).double().requires_grad_()
    torch.autograd.gradcheck(lambda x: loss(x, 0.1), x)


def test_running_statistics_are_kept_fixed_on_demand():
    x, brightness, _ = images()
    model = conv_net(2)
    before = copy.deepcopy(model.state_dict())
    settings = {"epochs": 2, "batch_norm": "running", "show_progress": False}
    train_adf(model, 0.01, [(x, brightness)], **settings)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == ("running" in name or "tracked" in name), name


def test_training_is_reproducible_and_restores_modes_after_an_error():
    x, brightness, _ = images()
    runs = [
        train_adf(conv_net(2), 0.01, [(x, brightness)], epochs=5, show_progress=False)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    model = conv_net(2)
    model[1].eval()
    with pytest.raises(RuntimeError, match="lower `lr`"):
        train_adf(model, 0.01, [(x, brightness * math.nan)], show_progress=False)
    assert model.training and model[0].training and not model[1].training


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"task": "ranking"}, "`task` must be one of"),
        ({"batch_norm": "none"}, "`batch_norm` must be one of"),
        ({"lr": 0}, "`lr` must be above 0"),
        ({"epochs": -1}, "`epochs` must be above 0"),
        ({"floor": math.nan}, "`floor` must be above 0"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)


def test_wrong_data_is_named():
    x, brightness, _ = images()
    with pytest.raises(ValueError, match=r"need targets of shape \(48, 2\)"):
        train_adf(conv_net(2), 0.01, [(x, brightness[:, 0])], show_progress=False)
    with pytest.raises(ValueError, match="loader is empty"):
        train_adf(conv_net(2), 0.01, [], show_progress=False)
    with pytest.raises(ValueError, match="more than one value per channel"):
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        train_adf(net, 0.01, [(inputs(1, 2), inputs(1, 3))], show_progress=False)
    with pytest.raises(ValueError, match="nothing to train"):
        train_adf(nn.ReLU(), 0.01, [(x, x)], show_progress=False)
