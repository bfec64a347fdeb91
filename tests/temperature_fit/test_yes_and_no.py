"""One logit, several labels, tokens: the tasks beside one class for each input."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.report.outcomes import outcome_of

STD = 0.3


def points(count, seed):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def questions(x, seed=0):
    """Three questions about a point, (rows, 3), answered with some chance."""
    margins = 3 * torch.stack([x[:, 0] + x[:, 1], x[:, 2] - x[:, 3], x[:, 4] * x[:, 5]], 1)
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(margins.shape, generator=generator) < margins.sigmoid()).float()


@pytest.fixture(scope="module")
def net():
    """Trained on few points for far too long, so that it is too sure."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x = points(120, 0)
    for _ in range(150):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(x), questions(x)).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


SHAPES = {
    "one logit": (lambda y: y[:, :1], lambda y: y[:, 0], "binary"),
    "a flat logit": (lambda y: y[:, 0], lambda y: y[:, :1], "binary"),
    "two logits": (lambda y: torch.stack([-y[:, 0], y[:, 0]], 1) / 2, lambda y: y[:, 0], "binary"),
    "labels": (lambda y: y, lambda y: y, "multilabel"),
}


def fitted(net, kind, noise=None, task=None, **options):
    output, labels, usual = SHAPES[kind]
    sure = hs.Uncertain(net, noise, task=task or usual, output=output, **options)
    x = points(400, 1)
    sure.fit([(x, labels(questions(x, 1)))], train_inputs=points(300, 2), show_progress=False)
    return sure


@pytest.mark.parametrize("kind", SHAPES)
def test_the_temperature_is_that_of_a_logistic_regression(net, kind):
    sure = fitted(net, kind)
    output = SHAPES[kind][0]
    x = points(400, 1)
    columns = slice(None) if kind == "labels" else slice(1)
    logits, targets = net(x)[:, columns], questions(x, 1)[:, columns]
    costs = {
        scale: float(F.binary_cross_entropy_with_logits(logits / scale, targets))
        for scale in (t * sure.last_fit.model.temperature for t in (0.98, 1.0, 1.02))
    }
    assert min(costs, key=costs.get) == sure.last_fit.model.temperature > 1
    assert sure.last_fit.constant_nll == pytest.approx(min(costs.values()), rel=1e-5)
    p = sure(x)
    assert p.mean.shape == output(net(x)).shape
    t = p.temperature.reshape(-1, *(1,) * (p.mean.dim() - 1))
    expected = (
        (output(net(x)) / t).softmax(1) if kind == "two logits" else (output(net(x)) / t).sigmoid()
    )
    torch.testing.assert_close(p.mean, expected)
    assert p.entropy.shape == (p.mean.shape if kind != "two logits" else (400,))
    far = sure(20 * points(20, 3))
    assert float(far.mutual_information.min()) > 0 and float(far.std.min()) > 0
    assert float(far.novelty.min()) > 3


@pytest.mark.parametrize("method", ["gradients", "noise_sampling"])
@pytest.mark.parametrize("kind", SHAPES)
def test_probabilities_and_their_variance_are_those_of_monte_carlo(net, kind, method):
    x, output = points(20, 5), SHAPES[kind][0]
    torch.manual_seed(0)
    noisy = torch.stack([output(net(x + STD * torch.randn_like(x))) for _ in range(4000)])
    link = (lambda y: y.softmax(2)) if kind == "two logits" else torch.sigmoid
    options = {"samples": 64 if method == "gradients" else 1000}
    before = hs.Uncertain(
        net, hs.noise.std(STD), method, task=SHAPES[kind][2], output=output, **options
    )(x)
    after = fitted(net, kind, hs.noise.std(STD), method=method, **options)(x)
    for p, draws in ((before, link(noisy)), (after, None)):
        if draws is None:
            draws = link(noisy / p.temperature.reshape(-1, *(1,) * (p.mean.dim() - 1)))
        torch.testing.assert_close(p.mean, draws.mean(0), rtol=0, atol=0.03)
        ratio = (p.data_var.sqrt() / draws.std(0))[draws.std(0) > 0.05]
        assert float(ratio.log().mean().exp()) == pytest.approx(1, abs=0.1)


def test_labels_show_the_task(net):
    assert fitted(net, "one logit", task="classification").setup.task == "binary"
    assert fitted(net, "labels", task="classification").setup.task == "multilabel"
    x = points(60, 1)
    whole = hs.Uncertain(net, task="classification", output=SHAPES["two logits"][0])
    whole.fit([(x, questions(x)[:, 0].long())], show_progress=False)
    assert whole.setup.task == "classification"
    one_hot = F.one_hot(torch.arange(60) % 3, 3)
    with pytest.raises(ValueError, match="one class index for each input"):
        hs.Uncertain(net, task="classification").fit([(x, one_hot)])
    with pytest.raises(ValueError, match=r"from 0 to 2, but there are 2"):
        hs.Uncertain(net, task="multilabel").fit([(x, 2 * one_hot)])
    with pytest.raises(ValueError, match='task="binary"'):
        hs.Uncertain(net, 0.01, task="classification", output=SHAPES["one logit"][0])(x)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_rate_can_be_fitted_and_a_report_written(net, kind):
    output, labels, task = SHAPES[kind]
    sure = hs.Uncertain(net, 0.01, "noise_sampling", task=task, output=output)
    x = points(60, 1)
    held_out = [(x, labels(questions(x, 1)))]
    for objective in ("one_hot", "categorical"):
        fit = sure.fit(held_out, model="dropout", rates=(0.0, 0.1), samples=8, objective=objective)
        assert all(math.isfinite(nll) for nll in fit.nll)
    p = hs.Uncertain(net, task=task, output=output, noise=0.0)(x)
    right = (p.mean.argmax(1) if kind == "two logits" else p.mean > 0.5).float()
    expected = float((right.flatten() == held_out[0][1].flatten()).double().mean())
    outcome = outcome_of(p, held_out[0][1], task)
    assert float(1 - outcome.decisions.wrong.mean()) == pytest.approx(expected)
    assert hs.report.build(sure, held_out, show_progress=False).task == task


def test_settings_survive_a_file(net, tmp_path):
    sure = fitted(net, "labels", 0.01)
    sure.setup = sure.setup.replace(output=None)
    sure.save(tmp_path / "s.pt")
    again = hs.Uncertain.load(tmp_path / "s.pt", net)
    x = points(4, 7)
    assert again.setup.task == "multilabel"
    torch.testing.assert_close(again(x).mean, sure(x).mean)


class Tagger(nn.Module):
    """Classes of every token, (batch, tokens, classes)."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.inner(x)))


def test_tokens_have_the_temperature_of_their_sequence():
    torch.manual_seed(0)
    net = Tagger().eval().requires_grad_(False)
    net.head.weight.mul_(6)
    x = torch.randn(80, 5, 6)
    noisy = (net(x) + 4 * torch.randn(80, 5, 4)).argmax(2)
    labels = torch.where(torch.rand(80, 5) < 0.2, -100, noisy)  # some tokens have no label
    for noise in (None, hs.noise.std(STD)):
        sure = hs.Uncertain(net, noise, task="classification")
        fit = sure.fit([(x[:40], labels[:40]), (x[40:], labels[40:])], show_progress=False)
        p = sure(x[:3])
        t = p.temperature[:, None, None]
        assert p.mean.shape == (3, 5, 4) and p.entropy.shape == p.mutual_information.shape == (3, 5)
        torch.testing.assert_close(p.mean.sum(2), torch.ones(3, 5))
        if noise is None:
            torch.testing.assert_close(p.mean, (net(x[:3]) / t).softmax(2))
            best = min(
                (t * fit.model.temperature for t in (0.97, 1.0, 1.03)),
                key=lambda t: float(F.cross_entropy(net(x).mT / t, labels)),
            )
            assert best == fit.model.temperature
        else:
            draws = torch.stack(
                [(net(x[:3] + STD * torch.randn(3, 5, 6)) / t).softmax(2) for _ in range(2000)]
            )
            torch.testing.assert_close(p.mean, draws.mean(0), rtol=0, atol=0.05)
