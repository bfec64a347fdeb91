"""Any model as it is: a prediction by default, a fit, and settings that come back from a file."""

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs

ROWS = 96
generator = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 4, generator=generator)
Y = 0.3 * torch.randn(ROWS, 2, generator=generator)
STEPS = torch.randn(ROWS, 5, 4, generator=generator)
STATE = torch.randn(1, ROWS, 8, generator=generator)
TOKENS = torch.randint(0, 10, (ROWS, 5), generator=generator)


def mlp(outputs=2):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, outputs)).eval()


class Returns(nn.Module):
    """A network whose output is packed by a function."""

    def __init__(self, packed):
        super().__init__()
        self.net, self.packed = mlp(), packed

    def forward(self, x):
        return self.packed(self.net(x), x)


class ModelOutput(OrderedDict):
    """As in `transformers`: by key, index and attribute, of a class that torch does not know."""

    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else list(self.values())[key]


@dataclasses.dataclass
class Pose:
    pose: torch.Tensor
    features: torch.Tensor


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.out = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, image, motion):
        return self.out(torch.tanh(self.a(image) + self.b(motion)))


class Recurrent(nn.Module):
    """A policy with a hidden state (1, batch, units) as input and output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.gru, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, h):
        y, h = self.gru(x, h)
        return self.out(y[:, -1]), h


class Tokens(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(4)
        self.words, self.net = nn.Embedding(10, width), mlp()

    def forward(self, tokens, x=0.0):
        return self.net(self.words(tokens).mean(1) + x)


class TimeFirst(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):  # (time, batch, 4)
        return self.net(x)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x)


class Lightning(nn.Module):
    """What a module of Lightning has besides: a trainer, steps, properties."""

    def __init__(self):
        super().__init__()
        self.net, self.trainer, self.example_input_array = mlp(), None, X[:1]

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        raise AssertionError("nobody trains")

    @property
    def device(self):
        return torch.device("cpu")


class Policy(nn.Module):
    """As in Stable-Baselines3: a distribution over actions."""

    def __init__(self):
        super().__init__()
        self.net, self.log_std = mlp(), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return torch.distributions.Normal(self.net(x), self.log_std.exp())


def rows(x, first, last):
    """Some rows of an input: the hidden state has them on axis 1."""
    if isinstance(x, dict):
        return {name: each[first:last] for name, each in x.items()}
    if isinstance(x, tuple):
        return tuple(rows(each, first, last) for each in x)
    return x[:, first:last] if x.shape[0] == 1 else x[first:last]


def called(sure, x):
    if isinstance(x, dict):
        return sure(**x)
    return sure(*x) if isinstance(x, tuple) else sure(x)


def held_out(x, y):
    return [(rows(x, i, i + 32), y[i : i + 32]) for i in range(0, ROWS, 32)]


CASES = {
    "key": (lambda: Returns(lambda y, x: {"pose": y, "x": x}), X, {"output": "pose"}),
    "index": (lambda: Returns(lambda y, x: (x, y)), X, {"output": 1}),
    "attribute": (lambda: Returns(Pose), X, {"output": "pose"}),
    "output of a class": (
        lambda: Returns(lambda y, x: ModelOutput(logits=y, hidden=x)),
        X,
        {"output": "logits"},
    ),
    "index of a class": (lambda: Returns(lambda y, x: ModelOutput(logits=y)), X, {"output": 0}),
    "by keyword": (Two, {"image": X, "motion": X}, {"noise": {"image": 0.01, "motion": 0.02}}),
    "by position": (Two, (X, X), {"noise": (0.01, None)}),
    "hidden state": (Recurrent, (STEPS, STATE), {"noise": (0.01, None), "output": 0}),
    "tokens and numbers": (Tokens, (TOKENS, X), {"noise": (None, 0.01)}),
    "DataParallel": (lambda: nn.DataParallel(mlp()), X, {}),
    "compiled": (lambda: torch.compile(mlp()), X, {}),
    "bfloat16": (lambda: mlp().bfloat16(), X.bfloat16(), {}),
    "half": (lambda: mlp().half(), X.half(), {}),
    "autocast": (Autocast, X, {}),
    "Lightning": (Lightning, X, {}),
    "distribution": (Policy, X, {"output": "mean"}),
    "numpy": (mlp, X.double().numpy(), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_predict_fit_and_saved_settings(name, tmp_path):
    build, x, options = CASES[name]
    model = build().eval()
    sure = hs.Uncertain(model, **{"noise": 0.01, **options})
    few = rows(x, 0, 4)
    before = called(sure, few)
    assert before.std.shape == (4, 2) and bool((before.data_var > 0).all())
    assert len(before) == 4 and len(before[1:3]) == 2
    targets = Y.numpy() if name == "numpy" else Y.to(before.mean.dtype)
    sure.fit(held_out(x, targets), show_progress=False)
    after = called(sure, few)
    assert sure.setup.variance_model is not None
    assert bool((after.model_var > 0).any()) and bool((after.total_var > before.total_var).all())
    sure.save(tmp_path / "settings.pt")
    again = called(hs.Uncertain.load(tmp_path / "settings.pt", model), few)
    torch.testing.assert_close(again.total_var, after.total_var, rtol=0, atol=0)


def test_the_whole_output_keeps_its_structure():
    packs = {
        "class": lambda y, x: ModelOutput(logits=y, hidden=2 * x),
        "dict": lambda y, x: {"logits": y, "hidden": 2 * x},
    }
    for packed in packs.values():
        p = hs.Uncertain(Returns(packed).eval(), noise=0.01, method="linear")(X[:4])
        assert list(p.mean) == ["logits", "hidden"]
        torch.testing.assert_close(p.data_var["hidden"], torch.full((4, 4), 0.04))
        assert p[0].mean["logits"].shape == (1, 2)


def test_a_function_chooses_and_says_that_it_cannot_be_saved(tmp_path):
    model = Returns(lambda y, x: (y, x)).eval()
    sure = hs.Uncertain(model, noise=0.01, output=lambda both: both[0][:, 0])
    assert sure(X[:4]).std.shape == (4,)
    with pytest.raises(TypeError, match="cannot be saved, because a function is not plain data"):
        sure.save(tmp_path / "settings.pt")


def test_a_distribution_as_the_output_names_the_remedy():
    with pytest.raises(TypeError, match=r"returns a Normal; .*output="):
        hs.Uncertain(Policy().eval(), noise=0.01)(X[:4])


def test_classes_of_an_output_of_a_class():
    model = Returns(lambda y, x: ModelOutput(logits=y)).eval()
    sure = hs.Uncertain(model, noise=0.01, output="logits", task="classification")
    with torch.no_grad():
        labels = (model.net(X) + Y).argmax(1)
    sure.fit(held_out(X, labels), show_progress=False)
    assert sure.setup.temperature_model is not None
    torch.testing.assert_close(sure(X[:4]).mean.sum(1), torch.ones(4))


def test_rows_on_axis_1_are_fitted_as_rows_on_axis_0():
    net, steps = mlp(), STEPS.transpose(0, 1)  # (time, batch, 4)
    targets = torch.randn(ROWS, 5, 2, generator=torch.Generator().manual_seed(5))
    first = hs.Uncertain(net, noise=0.01)
    second = hs.Uncertain(TimeFirst(net).eval(), noise=0.01, batch_dim=1)
    first.fit(held_out(STEPS, targets), show_progress=False)
    pairs = [
        (steps[:, i : i + 32], targets[i : i + 32].transpose(0, 1)) for i in range(0, ROWS, 32)
    ]
    second.fit(pairs, show_progress=False)
    one, two = first(STEPS[:4]), second(steps[:, :4])
    assert two.std.shape == (5, 4, 2) and len(two) == 4
    torch.testing.assert_close(two.model_var.transpose(0, 1), one.model_var, rtol=1e-3, atol=1e-6)


def test_a_call_that_is_one_input():
    p = hs.Uncertain(Returns(lambda y, x: y.mean(0)).eval(), noise=0.01, batch_dim=None)(X[:7])
    assert p.std.shape == (2,) and bool((p.std > 0).all())
    with pytest.raises(TypeError, match="has no rows"):
        len(p)


@pytest.mark.slow
def test_noise_on_a_hidden_state_is_fitted_by_a_rate():
    """Its rows are not on the axis of the other input, so the call is one input."""
    model = Recurrent().eval()
    with torch.no_grad():
        y = model(STEPS, STATE)[0] + 0.05 * Y
    sure = hs.Uncertain(model, noise=(0.01, 0.01), output=0)
    pairs = [((STEPS[i : i + 2], STATE[:, i : i + 2]), y[i : i + 2]) for i in (0, 2)]
    found = sure.fit(pairs, show_progress=False)
    assert "no posterior" in found.notes[0] and sure.setup.rate is not None
    p = sure(STEPS[:4], STATE[:, :4])
    assert p.std.shape == (4, 2) and bool((p.model_var > 0).all())


def test_outputs_with_rows_on_different_axes_have_their_variances():
    p = hs.Uncertain(Recurrent().eval(), noise=(0.01, None))(STEPS[:4], STATE[:, :4])
    assert [tuple(each.shape) for each in p.std] == [(4, 2), (1, 4, 8)]
    with pytest.raises(TypeError, match="choose one of them"):
        len(p)


def test_tokens_have_no_noise_but_a_posterior():
    sure = hs.Uncertain(Tokens().eval())
    with pytest.raises(ValueError, match="nothing to be unsure about"):
        sure(TOKENS[:4])
    sure.fit(held_out(TOKENS, Y), show_progress=False)
    p = sure(TOKENS[:4])
    assert bool((p.model_var > 0).all()) and sure.setup.variance_model is not None
    with pytest.raises(TypeError, match="only floating-point tensors can carry noise"):
        hs.Uncertain(Tokens().eval(), noise=0.01)(TOKENS[:4])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_torchscript_predicts_and_has_no_masks(kind):
    python = mlp()
    model = torch.jit.script(python) if kind == "scripted" else torch.jit.trace(python, X[:4])
    expected = hs.Uncertain(python, noise=0.01)(X[:4])
    torch.testing.assert_close(hs.Uncertain(model, noise=0.01)(X[:4]).std, expected.std)
    with pytest.raises(ValueError, match="use the Python module"):
        hs.Uncertain(model, noise=0.01).fit(held_out(X, Y), show_progress=False)


def test_a_compiled_model_has_the_masks_of_its_module():
    def never(graph, example):
        raise AssertionError("it must not be compiled")

    python, compiled = mlp(), torch.compile(mlp(), backend=never)
    for method in ("auto", "gradients", "mc_dropout", "sampled_adf"):
        one, two = (
            hs.Uncertain(each, noise=0.01, rate=0.1, method=method)(X[:4])
            for each in (python, compiled)
        )
        torch.testing.assert_close(one.std, two.std, rtol=0, atol=0)


def test_an_array_is_one_batch_of_predict():
    sure = hs.Uncertain(mlp(), noise=0.01)
    expected = sure(X[:4])
    found = sure.predict(X[:4].double().numpy(), show_progress=False)
    torch.testing.assert_close(found.std, expected.std)
    assert isinstance(found.numpy()["mean"], np.ndarray)


def test_broadcast_gaussians_share_memory_with_their_own():
    def second_is_changed(x):
        first, second = x * 1.0, x * 2.0
        both = torch.broadcast_tensors(first, second)
        both[1].add_(both[0])
        return first  # which was not written to

    out = hs.propagate(second_is_changed, X[:4], 0.01)
    torch.testing.assert_close(out.var, torch.full((4, 4), 0.01))

    def second_is_used(x):
        first, second = x * 1.0, x * 2.0
        both = torch.broadcast_tensors(first, second)
        both[1].add_(1.0)
        return second + 0.0

    with pytest.raises(hs.NoRuleError, match="shares memory"):
        hs.propagate(second_is_used, X[:4], 0.01)


def test_an_audit_takes_a_method_of_ones_own():
    own = hs.methods.Method("twice", lambda setup, x: twice(hs.methods.METHODS["linear"](setup, x)))

    def twice(p):
        return dataclasses.replace(p, data_var=4 * p.data_var)

    found = hs.audit(mlp(), X[:8], 1e-4, methods=["linear", own], samples=400, show_progress=False)
    ratios = {row.label: row.total.ratio.value for row in found.rows}
    assert ratios["twice"] == pytest.approx(2 * ratios["linear"], rel=1e-3)
    assert "kind" not in found.to_dict()["rows"][0]
    assert "twice" in str(found)


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, gain=None):
        return self.net(x if gain is None else x * gain)


def test_a_variance_in_the_place_of_an_input_is_refused():
    variance = torch.full_like(X[:4], 0.01)
    for ask in (hs.check, hs.missing_rules):
        with pytest.raises(TypeError, match="an input or a variance"):
            ask(Optional().eval(), X[:4], variance)
    assert hs.check(Optional().eval(), x=X[:4], gain=variance).ok
    assert hs.check(Two().eval(), X[:4], variance).ok  # which needs a second input
