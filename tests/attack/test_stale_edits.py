"""However a model is edited between two calls, the second call sees it: nothing is stale."""

import copy
import ctypes
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, vector_to_parameters

import howsure as hs
from compilers import needs_compiler
from howsure.deploy.compiling.compiled import _walk
from howsure.moments.rules import packed_kernels
from howsure.values.bits import same_bits
from howsure.values.contents import Snapshot, contents_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TF32.*"),
]

GAIN = 1.0
X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(5)) + 0.1


def doubled(x):
    return 2 * x


def with_closure():
    factor = 1.0

    def scaled(x):
        return x * factor

    def change(value):
        nonlocal factor
        factor = value

    scaled.change = change
    return scaled


class Net(nn.Module):
    """Reads weights, statistics, buffers, attributes of all kinds, a closure and a global."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.act = nn.ReLU()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 2)
        self.register_buffer("offset", torch.full((64,), 0.1), persistent=False)
        self.register_buffer("gains", torch.ones(64))
        self.scale = 1.0
        self.plain = torch.ones(64)
        self.listed = [1.0, {"depth": 1.0}]
        self.array = np.ones(64, dtype=np.float32)
        self.config = types.SimpleNamespace(gain=1.0)
        self.closure = with_closure()

    def forward(self, x):
        h = self.act(self.bn(self.conv(x))).flatten(1)
        h = (h * self.gains + self.offset) * self.plain * torch.from_numpy(self.array)
        number = self.scale * self.listed[0] * self.listed[1]["depth"] * self.config.gain
        h = self.closure(h) * (number * self.factor * GAIN)
        return self.head(torch.relu(self.hidden(h)))


def net():
    torch.manual_seed(0)
    made = Net()
    made.bn.running_mean.normal_(0, 0.1)
    made.bn.running_var.uniform_(0.5, 1.5)
    return made.eval().requires_grad_(False)


def trained(model, optimiser):
    model.requires_grad_(True)
    step = optimiser([p for p in model.parameters()])
    for _ in range(3):
        step.zero_grad()
        model(X).square().sum().backward()
        step.step()
    model.requires_grad_(False)


def in_memory(model):
    """Writes to the addresses of a weight."""
    weight = model.conv.weight
    new = (3 * weight.detach()).contiguous()
    ctypes.memmove(weight.data_ptr(), new.data_ptr(), 4 * weight.numel())


def under_inference(model):
    with torch.inference_mode():
        model.conv.weight.copy_(3 * model.conv.weight)


def at_a_reused_address(model):
    new = 3 * model.hidden.weight.detach().numpy()
    model.hidden.weight = None
    model.hidden.weight = nn.Parameter(torch.from_numpy(new).clone(), requires_grad=False)


def through_storage(model):
    storage = model.conv.weight.untyped_storage()
    new = (3 * model.conv.weight.detach()).untyped_storage()
    storage.copy_(new)


def averaged(model):
    """Takes over the weights of a moving average."""
    average = [2 * p.detach().clone() for p in model.parameters()]
    for p, new in zip(model.parameters(), average, strict=True):
        p.data.copy_(new)


def swapped(model):
    other = nn.Parameter(3 * model.conv.weight.detach(), requires_grad=False)
    torch.utils.swap_tensors(model.conv.weight, other)


def parametrised(model):
    parametrizations.weight_norm(model.hidden)
    model.hidden.parametrizations.weight.original0.data.mul_(3)
    model.requires_grad_(False)


def state(model, factor):
    return {name: factor * tensor for name, tensor in model.state_dict().items()}


class Tripled(nn.Module):
    def forward(self, weight):
        return 3 * weight


def of_class(model):
    type(model).factor = 3.0


def of_module(model):
    globals()["GAIN"] = 3.0


def set_(thing, name, value):
    setattr(thing, name, value)


EDITS = {
    "Adam(fused=True)": lambda m: trained(m, lambda p: torch.optim.Adam(p, 0.05, fused=True)),
    "SGD(fused=True)": lambda m: trained(m, lambda p: torch.optim.SGD(p, 1e-4, fused=True)),
    "AdamW(foreach=True)": lambda m: trained(m, lambda p: torch.optim.AdamW(p, foreach=True)),
    "_foreach_mul_": lambda m: torch._foreach_mul_(list(m.parameters()), 2.0),
    "_foreach_mul_ of .data": lambda m: torch._foreach_mul_([p.data for p in m.parameters()], 2.0),
    "weight.mul_": lambda m: m.conv.weight.mul_(3),
    "weight.data.mul_": lambda m: m.conv.weight.data.mul_(3),
    "weight.data = new": lambda m: set_(m.conv.weight, "data", 3 * m.conv.weight.data),
    "moving average by .data.copy_": averaged,
    "numpy view": lambda m: np.multiply(m.conv.weight.numpy(), 3, out=m.conv.weight.numpy()),
    "numpy view of a linear layer": lambda m: m.hidden.weight.numpy().__imul__(3),
    "dlpack view": lambda m: torch.from_dlpack(m.conv.weight.detach()).mul_(3),
    "storage copied": through_storage,
    "memory at the address": in_memory,
    "copy_ in inference mode": under_inference,
    "weight.set_": lambda m: m.conv.weight.set_(3 * m.conv.weight.detach()),
    "rows of .data permuted": lambda m: m.hidden.weight.data.copy_(m.hidden.weight.data.flip(0)),
    "one element of .data": lambda m: m.hidden.weight.data[0].fill_(2.0),
    "load_state_dict": lambda m: m.load_state_dict(state(m, 2.0)),
    "load_state_dict(assign=True)": lambda m: m.load_state_dict(state(m, 2.0), assign=True),
    "swap_tensors": swapped,
    "new parameter": lambda m: set_(
        m.conv, "weight", nn.Parameter(3 * m.conv.weight.data, requires_grad=False)
    ),
    "reused address": at_a_reused_address,
    "vector_to_parameters": lambda m: vector_to_parameters(
        2 * torch.cat([p.flatten() for p in m.parameters()]), m.parameters()
    ),
    "weight_norm, then its original": parametrised,
    "own parametrisation": lambda m: parametrize.register_parametrization(
        m.hidden, "weight", Tripled()
    ),
    "pruned": lambda m: prune.l1_unstructured(m.hidden, "weight", 0.8),
    "rounded to bfloat16 and back": lambda m: m.bfloat16().float(),
    "new layer": lambda m: set_(m, "hidden", nn.Linear(64, 8).requires_grad_(False)),
    "other activation": lambda m: set_(m, "act", nn.Tanh()),
    "bn.running_var.data": lambda m: m.bn.running_var.data.mul_(9),
    "bn.running_mean by numpy": lambda m: m.bn.running_mean.numpy().__iadd__(1),
    "bn.weight.data": lambda m: m.bn.weight.data.mul_(3),
    "bn.bias.data": lambda m: m.bn.bias.data.add_(1),
    "bn.eps": lambda m: set_(m.bn, "eps", 1.0),
    "non-persistent buffer": lambda m: m.offset.data.add_(1),
    "buffer": lambda m: m.gains.data.mul_(3),
    "number": lambda m: set_(m, "scale", 3.0),
    "tensor that is no buffer": lambda m: m.plain.data.mul_(3),
    "number in a list": lambda m: m.listed.__setitem__(0, 3.0),
    "number in a dict in a list": lambda m: m.listed[1].update(depth=3.0),
    "numpy array": lambda m: m.array.__imul__(3),
    "object of settings": lambda m: set_(m.config, "gain", 3.0),
    "closure": lambda m: m.closure.change(3.0),
    "forward hook": lambda m: m.hidden.register_forward_hook(lambda *a: 3 * a[-1]),
    "forward pre-hook": lambda m: m.hidden.register_forward_pre_hook(lambda m, a: (3 * a[0],)),
    "other forward": lambda m: set_(
        m.hidden, "forward", lambda x, own=m.hidden.forward: doubled(own(x))
    ),
    "attribute of the class": of_class,
    "global": of_module,
    "NaN, then another weight": lambda m: m.head.weight.data.mul_(3),
}

OPTIONS = {
    "gradients": {},
    "sampled_adf": {"rate": 0.2, "samples": 4, "chunk": 2},
    "adf": {},
    "mc_dropout": {"rate": 0.2, "samples": 4},
    "noise_sampling": {"samples": 8},
    "linear": {},
    "constant": {"residual_var": 0.1},
    "ensemble": {},
    "heteroscedastic": {},
}


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Small kernels are packed, too, and the edits of class and module are undone."""
    monkeypatch.setattr(packed_kernels, "_LARGE", 1)
    yield
    Net.factor = 1.0
    globals()["GAIN"] = 1.0


def whole(model, method):
    """The model in the form that a method takes, and the network to be edited."""
    if method == "ensemble":
        return nn.ModuleList([model]), model
    if method == "heteroscedastic":
        made = hs.methods.variance_head.add_variance_head(model, X)
        return made, made.network
    return model, model


def wrapped(model, method):
    noise = None if method in ("constant", "heteroscedastic") else 0.01
    return hs.Uncertain(model, noise, method, **OPTIONS[method])


def numbers(prediction):
    return torch.cat([t.flatten() for t in (prediction.mean, prediction.total_var)])


def check_not_stale(name, method, *, compiled=False):
    """The wrapper says what a new one around a copy of the edited model says."""
    model, network = whole(net(), method)
    sure = wrapped(model, method)
    sure = sure.compile() if compiled else sure
    before = numbers(sure(X))
    if name.startswith("NaN"):
        network.head.bias.data[0] = float("nan")
        sure(X)
    EDITS[name](network)
    network.eval()
    try:
        found = numbers(sure(X))
    except RuntimeError as error:  # Masks have lost their place: refused, not stale.
        assert "rate" in OPTIONS[method] and "took another path" in str(error)
        return sure
    expected = numbers(wrapped(copy.deepcopy(model), method)(X))
    rounding = {"rtol": 1e-5, "atol": 1e-5} if compiled else {"rtol": 1e-6, "atol": 0.0}
    torch.testing.assert_close(found, expected, equal_nan=True, **rounding)
    assert not torch.allclose(found, before, rtol=1e-4), "the edit changes nothing"
    return sure


def test_there_are_enough_edits():
    assert len(EDITS) >= 25 and set(OPTIONS) == set(hs.methods.METHODS)


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("name", EDITS)
def test_no_method_is_stale(name, method):
    check_not_stale(name, method)


@pytest.mark.parametrize("name", EDITS)
def test_a_compiled_program_would_be_made_anew(name):
    model = net()
    setup = wrapped(model, "adf").setup
    kept = Snapshot(_walk(setup).leaves)
    assert kept.holds(_walk(setup).leaves)
    EDITS[name](model)
    assert not kept.holds(_walk(setup).leaves)


def check_compiled(name, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sure = check_not_stale(name, method, compiled=True)
    assert any(run is not None for run in sure._compiled.programs.values())


@needs_compiler
@pytest.mark.parametrize("name", ["weight.data.mul_", "number"])
def test_a_compiled_prediction_is_not_stale(name):
    check_compiled(name, "adf")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["adf", "gradients"])
@pytest.mark.parametrize("name", EDITS)
def test_no_compiled_prediction_is_stale(name, method):
    check_compiled(name, method)


def tensor_in(noise):
    return next(leaf for leaf in contents_of(noise) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize(
    "noise, edit",
    [
        (torch.full((8,), 0.01), lambda n: n.mul_(9)),
        (hs.noise.std(torch.full((8,), 0.1)), lambda n: tensor_in(n).data.mul_(3)),
        ((torch.full((8,), 0.01),), lambda n: n[0].numpy().__imul__(9)),
    ],
    ids=["tensor", "noise", "tuple"],
)
def test_the_noise_is_part_of_what_is_frozen(noise, edit):
    setup = hs.Uncertain(net(), noise, "adf").setup
    kept = Snapshot(_walk(setup).leaves)
    edit(noise)
    assert not kept.holds(_walk(setup).leaves)


def test_bits_and_not_numbers_are_compared():
    nan, other = torch.tensor([float("nan")]), torch.tensor([0x7FC00001], dtype=torch.int32)
    assert same_bits(nan, nan.clone()) and not same_bits(nan, other.view(torch.float32))
    assert not same_bits(torch.zeros(3), -torch.zeros(3))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.int8):
        values = torch.rand(3, 5).mul(3).to(dtype)
        assert same_bits(values, values.clone()) and same_bits(values.mT, values.mT.clone())
        assert not same_bits(values, values.logical_not().to(dtype))


@needs_compiler
def test_a_compiled_method_refuses_what_eager_refuses():
    sure = hs.Uncertain(net(), 0.01, "adf").compile()
    sure(X)
    with pytest.raises(ValueError, match="NaN or infinity"):
        sure(torch.full_like(X, float("nan")))


class Counts(nn.Module):
    """Counts its calls, which changes nothing."""

    def __init__(self):
        super().__init__()
        self.calls, self.layer = 0, nn.Linear(3, 1)

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


@needs_compiler
def test_a_model_that_counts_its_calls_is_compiled_once():
    sure = hs.Uncertain(Counts().eval(), 0.01, "adf").compile()
    sure(torch.rand(2, 3))
    (program,) = sure._compiled.programs.values()
    sure(torch.rand(2, 3))
    assert list(sure._compiled.programs.values()) == [program]
