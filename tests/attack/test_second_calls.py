"""Second attack, calls: batches, edited weights, settings, threads, and what a call says."""

import copy
import dataclasses
import math
import threading

import pytest
import torch
from second import attempt, fault, inputs, monte_carlo, slow_but
from torch import nn
from torch.nn.utils import prune

import howsure as hs

WIDTH = 80


def network(seed=0, width=WIDTH):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 2)).eval()


class Rows(nn.Module):
    """A network whose rows go through a function of the whole batch."""

    def __init__(self, mix):
        super().__init__()
        self.net, self.mix = network(), mix

    def forward(self, x):
        return self.mix(self.net(x))


def whitened(y):
    return (y - y.mean(0)) / (y.std(0, correction=0) + 1)


# Functions of a batch whose rows influence each other.
MIXING = {
    "mean": lambda y: y - y.mean(0),
    "standardized": whitened,
    "softmax over rows": lambda y: y.softmax(0),
    "cumsum over rows": lambda y: y.cumsum(0),
    "sorted over rows": lambda y: y.sort(0).values,
    "neighbor": lambda y: y + 0.5 * y.roll(1, 0),
    "first row": lambda y: y + y[:1],
    "last row": lambda y: y * y[-1:],
    "largest": lambda y: y / y.abs().amax(),
    "attention over rows": lambda y: (y @ y.mT).softmax(-1) @ y,
    "switch by the mean": lambda y: torch.where(y.mean() > 0, 2 * y, y),
    "number of positive": lambda y: y * (y > 0).sum(),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("rows", [2, 7])
def test_rows_that_influence_each_other(name, rows):
    """The truth is that of the whole call as one input."""
    model, x = Rows(MIXING[name]).eval(), inputs(rows, WIDTH)
    p = hs.Uncertain(model, 0.01)(x)
    generator = torch.Generator().manual_seed(3)
    noise = 0.1 * torch.randn(2000, rows, WIDTH, generator=generator)
    with torch.no_grad():
        y = torch.stack([model(x + n) for n in noise]).double()
    truth = y.std(0)
    found = fault(p, truth.reshape(rows, 2), truth.reshape(rows, 2) / 60)
    words = ("influence each other", "one input", "sampled", "sampling")
    assert found is None or any(word in note for word in words for note in p.notes), found
    assert found is None, found


INDEPENDENT = {
    "nothing": lambda y: y,
    "row norm": lambda y: y / y.norm(dim=1, keepdim=True),
    "loop": lambda y: torch.stack([row.sin() for row in y]),
    "number of rows": lambda y: y * len(y) / len(y),
    "flip and back": lambda y: y.flip(0).sin().flip(0),
    "transposed": lambda y: y.mT.sin().mT,
    "chunks": lambda y: torch.cat([part.cos() for part in y.split(2)]),
}


@pytest.mark.parametrize("name", INDEPENDENT)
@pytest.mark.parametrize("method", slow_but(["auto", "linear", "noise_sampling"], "auto"))
@pytest.mark.parametrize("rows", [1, 2, 80])
def test_a_row_has_the_same_std_in_every_batch(name, method, rows):
    """80 rows are as long as the features."""
    model, x = Rows(INDEPENDENT[name]).eval(), inputs(rows, WIDTH)
    sure = hs.Uncertain(model, 0.01, method)
    whole, alone = sure(x), sure(x[rows // 2 : rows // 2 + 1])
    torch.testing.assert_close(whole.std[rows // 2], alone.std[0], rtol=2e-3, atol=1e-6)
    assert not any("influence" in note for note in whole.notes)


class Columns(nn.Module):
    """Rows on axis 1, as recurrent networks have them."""

    def __init__(self, out):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.last, self.out = nn.GRU(20, 8), nn.Linear(8, 2), out

    def forward(self, x):
        return self.out(self.last(self.lstm(x)[0]))


@pytest.mark.parametrize("rows", [1, 5, 6])
@pytest.mark.parametrize("method", slow_but(["auto", "linear", "noise_sampling"], "auto"))
@pytest.mark.parametrize("shape", ["steps first", "rows first"])
def test_a_batch_on_axis_1(rows, method, shape):
    """5 rows are as many as steps."""
    out = {"steps first": lambda y: y, "rows first": lambda y: y.transpose(0, 1)}[shape]
    model = Columns(out).eval()
    x = torch.randn(5, rows, 20, generator=torch.Generator().manual_seed(0))
    p = hs.Uncertain(model, 0.01, method, batch_dim=1)(x)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        noise = 0.1 * torch.randn(2000, *x.shape, generator=generator)
        y = model((x + noise).permute(1, 0, 2, 3).reshape(5, 2000 * rows, 20))
        y = y if shape == "rows first" else y.transpose(0, 1)
    truth = y.reshape(2000, rows, 5, 2).double().std(0)
    std = p.std if p.std.shape[0] == rows and shape == "rows first" else p.std.transpose(0, 1)
    part = type("P", (), {"std": std, "mean": p.mean, "std_error": None, "notes": p.notes})
    found = fault(part, truth.reshape(std.shape), truth.reshape(std.shape) / 20)
    assert found is None, found


# Edits of a network between calls: the next call is of the edited network.
def scale(net):
    with torch.no_grad():
        net[0].weight.mul_(3)


def through_data(net):
    net[2].weight.data.mul_(3)


def replace_data(net):
    net[2].weight.data = 3 * net[2].weight.data


def new_parameter(net):
    net[2].weight = nn.Parameter(3 * net[2].weight.detach())


def new_layer(net):
    net[1] = nn.ReLU().eval()


def loaded(net):
    net.load_state_dict({k: 3 * v for k, v in net.state_dict().items()})


def assigned(net):
    net.load_state_dict({k: 3 * v for k, v in net.state_dict().items()}, assign=True)


def hooked(net):
    net[1].register_forward_hook(lambda module, args, out: 3 * out)


def pruned(net):
    prune.l1_unstructured(net[2], "weight", 0.5)


def parametrized(net):
    torch.nn.utils.parametrizations.weight_norm(net[2]).eval()
    with torch.no_grad():
        net[2].parametrizations.weight.original0.mul_(3)


def patched(net):
    forward = net[1].forward
    net[1].forward = lambda x: 3 * forward(x)


def switched(net):
    net[1].__class__ = nn.Sigmoid


def trained(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    net(torch.ones(3, WIDTH)).square().sum().backward()
    optimizer.step()


def swapped(net):
    net[0].weight, net[0].bias = (
        nn.Parameter(net[0].weight.flip(0).detach()),
        nn.Parameter(2 * net[0].bias.detach()),
    )


EDITS = [scale, through_data, replace_data, new_parameter, new_layer, loaded, assigned, hooked,
         pruned, parametrized, patched, switched, trained, swapped]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize(
    "method", slow_but(["auto", "linear", "noise_sampling", "mc_dropout"], "auto")
)
def test_edits_between_calls_count(edit, method):
    settings = {"rate": 0.1} if method == "mc_dropout" else {}
    net, x = network(), inputs(4, WIDTH)
    sure = hs.Uncertain(net, None if method == "mc_dropout" else 0.01, method, **settings)
    sure(x)
    edit(net)
    p = sure(x)
    expected = hs.Uncertain(net, sure.setup.noise, method, **settings)(x)
    torch.testing.assert_close(p.std, expected.std, rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        plain = net(x)
    if method in ("auto", "linear"):
        torch.testing.assert_close(p.mean, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("edit", [scale, new_layer, hooked, trained, loaded])
def test_edits_after_a_fit_are_told_or_refused(edit):
    net, x = network(), inputs(60, WIDTH)
    sure = hs.Uncertain(net, 0.01)
    y = net(x).detach() + 0.2 * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    sure.fit([(x, y)], show_progress=False)
    edit(net)
    result = attempt(lambda: sure(x))
    if isinstance(result, Exception):
        assert "other layers" in str(result)
    elif edit is not hooked:  # A hook is no weight.
        assert any("weights have changed" in note for note in result.notes)


# Settings: each wrong one has one sentence, at once or in the call.
WRONG = [
    ("noise", -1.0), ("noise", math.nan), ("noise", math.inf), ("noise", "loud"),
    ("noise", torch.tensor(-1.0)), ("noise", torch.ones(3)), ("noise", (0.1, 0.1)),
    ("noise", {"x": 0.1}), ("noise", [0.1] * 7), ("noise", object()), ("noise", True),
    ("noise", 1j), ("noise", torch.ones(4, WIDTH, 2)), ("noise", torch.tensor(1j)),
    ("noise", lambda x: -x.abs()), ("noise", lambda x: x[0] * 0 + 1j), ("noise", lambda: 1),
    ("noise", lambda x: "loud"), ("noise", hs.noise.std), ("noise", 1e300),
    ("method", "best"), ("method", None), ("method", 3), ("method", print),
    ("rate", 1.0), ("rate", -0.1), ("rate", math.nan), ("rate", "high"), ("rate", [0.1] * 9),
    ("rate", 1.5), ("rate", [0.1, "x"]),
    ("samples", 0), ("samples", -1), ("samples", 1.5), ("samples", "many"), ("samples", math.nan),
    ("tolerance", 0.0), ("tolerance", -1.0), ("tolerance", math.nan), ("tolerance", "tight"),
    ("tolerance", math.inf), ("output", "logits"), ("output", 9), ("output", 3.5),
    ("output", lambda: 1), ("output", lambda y: None), ("output", lambda y: "text"),
    ("batch_dim", 7), ("batch_dim", "first"), ("batch_dim", 1.5), ("batch_dim", -3),
    ("placement", "everywhere"), ("placement", 3), ("placement", ["nothing.like.this"]),
    ("placement", []), ("prediction", "median"), ("prediction", 3),
    ("seed", 1.5), ("seed", "x"), ("seed", None), ("seed", -1), ("seed", 2**70),
    ("task", "ranking"), ("task", None), ("residual_var", -1.0), ("residual_var", math.nan),
    ("residual_var", "x"), ("residual_var", torch.ones(7)), ("chunk", 0), ("chunk", -3),
    ("chunk", 1.5), ("chunk", "x"), ("shared_masks", "yes"), ("unbiased", 3),
    ("variance_dtype", "half"), ("variance_dtype", torch.int32), ("fallback", "guess"),
    ("rules", 3), ("rules", {"tanh": 3}), ("uniforms", (torch.full((3,), 0.7),)), ("uniforms", 3),
]  # fmt: skip
# Settings that a method has no use for, or that mean something after all.
HARMLESS = {("seed", "-1"), ("seed", str(2**70))}
USED_BY = {
    "rate": "mc_dropout", "placement": "mc_dropout", "uniforms": "mc_dropout", "rules": "adf",
    "fallback": "adf", "variance_dtype": "adf",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(value)[:20])
def test_wrong_settings_have_one_sentence(name, value):
    settings = {"noise": 0.01, "method": USED_BY.get(name, "auto")}
    if name in ("placement", "uniforms"):
        settings["rate"] = 0.1
    settings[name] = value
    result = attempt(lambda: hs.Uncertain(network(), **settings)(inputs(4, WIDTH)))
    if not isinstance(result, Exception):
        assert (name, str(value)) in HARMLESS, f"no word; std {result.std.flatten()[:3]}"
        assert bool(result.std.isfinite().all())


@pytest.mark.parametrize(
    "method", slow_but(["auto", "linear", "noise_sampling", "mc_dropout", "adf"], "auto")
)
@pytest.mark.parametrize("threads", [2, 6])
def test_threads_give_the_numbers_of_one(method, threads):
    settings = {"rate": 0.1} if method == "mc_dropout" else {}
    sure = hs.Uncertain(network(), 0.01, method, **settings)
    batches = [inputs(3, WIDTH, seed) for seed in range(threads)]
    alone = [hs.Uncertain(sure.model, 0.01, method, **settings)(x).std for x in batches]
    together = [None] * threads

    def run(i):
        for _ in range(3):
            together[i] = sure(batches[i]).std

    workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
    "anomaly": torch.autograd.detect_anomaly,
    "deterministic": lambda: _Deterministic(),
    "double by default": lambda: _DefaultType(),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "saved on CPU": torch.autograd.graph.save_on_cpu,
    "device": lambda: torch.device("cpu"),
}


class _Deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


class _DefaultType:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "method", slow_but(["auto", "linear", "noise_sampling", "adf", "mc_dropout"], "auto")
)
def test_modes_of_the_caller_change_nothing(mode, method):
    settings = {"rate": 0.1} if method == "mc_dropout" else {}
    net, x = network(), inputs(4, WIDTH)
    expected = hs.Uncertain(net, 0.01, method, **settings)(x)
    with MODES[mode]():
        before = torch.is_grad_enabled()
        p = hs.Uncertain(net, 0.01, method, **settings)(x)
        assert torch.is_grad_enabled() == before
    room = 0.1 if mode == "autocast" else 1e-5
    torch.testing.assert_close(p.std, expected.std, rtol=room, atol=1e-3 * room)
    assert all(weight.grad is None for weight in net.parameters())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("method", slow_but(["auto", "linear", "mc_dropout"], "auto"))
def test_a_copy_is_on_its_own(copied, method):
    settings = {"rate": 0.1} if method == "mc_dropout" else {}
    sure, x = hs.Uncertain(network(), 0.01, method, **settings), inputs(4, WIDTH)
    before = sure(x).std
    twin = copied(sure)
    assert torch.equal(twin(x).std, before)
    twin.setup = dataclasses.replace(twin.setup, noise=0.04)
    twin(x)
    assert torch.equal(sure(x).std, before)


@pytest.mark.parametrize("var", [1e-4, 0.01, 0.3])
@pytest.mark.parametrize("depth", slow_but([1, 2, 4], 2))
@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU])
def test_plain_networks_are_right(var, depth, act):
    torch.manual_seed(depth)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), act())]
    net, x = nn.Sequential(*layers, nn.Linear(WIDTH, 2)).eval(), inputs(4, WIDTH)
    truth, error = monte_carlo(net, x, var)
    found = fault(hs.Uncertain(net, var)(x), truth, error)
    assert found is None, found
