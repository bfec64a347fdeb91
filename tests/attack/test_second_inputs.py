"""Second attack, inputs: types, layouts, sizes, structures, subclasses; and outputs."""

import collections
import dataclasses
import enum
import types

import numpy as np
import pytest
import torch
from second import attempt, fault, inputs, monte_carlo, slow_but
from torch import nn

import howsure as hs

WIDTH = 80


def network(width=WIDTH, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 2)).eval()


NET, X = network(), inputs(width=WIDTH)
STD = hs.Uncertain(NET, 0.01)(X).std
METHODS = {
    "auto": {},
    "linear": {"method": "linear"},
    "noise_sampling": {"method": "noise_sampling"},
    "adf": {"method": "adf"},
    "mc_dropout": {"method": "mc_dropout", "rate": 0.1},
    "sampled_adf": {"method": "sampled_adf", "rate": 0.1},
}


class Tagged(torch.Tensor):
    """A subclass that does nothing of its own."""


class Logged(torch.Tensor):
    """A subclass that sees every operation."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def strided(x):
    return torch.zeros(len(x), 2 * WIDTH)[:, ::2].copy_(x)


def read_only(x):
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


# The same numbers in other clothes: the same std.
SAME = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": strided,
    "expanded rows": lambda x: x[:1].expand(4, -1),
    "negative view": lambda x: torch._neg_view(-x),
    "requires grad": lambda x: x.clone().requires_grad_(),
    "no leaf": lambda x: x.clone().requires_grad_() * 1,
    "inference": lambda x: torch.inference_mode()(x.clone)(),
    "parameter": lambda x: nn.Parameter(x.clone()),
    "buffer": lambda x: nn.Buffer(x.clone()),
    "subclass": lambda x: x.as_subclass(Tagged),
    "logged subclass": lambda x: x.as_subclass(Logged),
    "shared memory": lambda x: x.clone().share_memory_(),
    "storage offset": lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].reshape(x.shape),
    "array": lambda x: x.numpy(),
    "array of doubles": lambda x: x.double().numpy(),
    "array of Fortran": lambda x: np.asfortranarray(x.numpy()),
    "array reversed": lambda x: x.numpy()[::-1].copy()[::-1],
    "array of other bytes": lambda x: x.numpy().astype(">f4"),
    "array that is read-only": read_only,
    "array of a matrix": lambda x: np.asmatrix(x.numpy()),
    "masked array": lambda x: np.ma.array(x.numpy()),
    "memory view": lambda x: np.asarray(memoryview(x.numpy().copy())),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("method", slow_but(["auto", "linear", "noise_sampling"], "auto"))
def test_the_same_numbers_in_other_clothes(name, method):
    x = SAME[name](X)
    plain = X[:1].expand(4, -1).clone() if name == "expanded rows" else X
    expected = hs.Uncertain(NET, 0.01, **METHODS[method])(plain)
    before = numbers_of(x).copy()
    p = hs.Uncertain(NET, 0.01, **METHODS[method])(x)
    torch.testing.assert_close(p.std.as_subclass(torch.Tensor), expected.std, rtol=1e-4, atol=1e-6)
    assert (before == numbers_of(x)).all(), "the input was changed"
    assert not isinstance(x, torch.Tensor) or x.grad is None


def numbers_of(x):
    return x.detach().resolve_neg().numpy() if isinstance(x, torch.Tensor) else np.array(x)


# What cannot be used: one sentence of ours, whatever the method.
REFUSED = {
    "int64": lambda x: (10 * x).long(),
    "int32": lambda x: (10 * x).int(),
    "uint8": lambda x: (10 * x).abs().byte(),
    "bool": lambda x: x > 0,
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "complex": lambda x: torch.complex(x, x),
    "array of integers": lambda x: (10 * x).long().numpy(),
    "array of objects": lambda x: x.numpy().astype(object),
    "array of strings": lambda x: x.numpy().astype(str),
    "array of dates": lambda x: np.zeros(x.shape, dtype="datetime64[s]"),
    "list of lists": lambda x: x.tolist(),
    "number": lambda x: 3.0,
    "string": lambda x: "row",
    "none": lambda x: None,
    "sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged),
    "meta": lambda x: x.to("meta"),
    "no batch axis": lambda x: x[0, 0],
    "empty tuple": lambda x: (),
    "empty dict": lambda x: {},
    "generator": lambda x: (row for row in x),
    "enum": lambda x: enum.Enum("Color", "red"),
    "slice": lambda x: slice(3),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", slow_but(METHODS, "auto"))
@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_cannot_be_used_have_one_sentence(name, method):
    error = attempt(lambda: hs.Uncertain(NET, 0.01, **METHODS[method])(REFUSED[name](X)))
    assert isinstance(error, Exception), f"no error, but {error}"


def test_a_wrong_width_is_the_model_s_own_error():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hs.Uncertain(NET, 0.01)(X[:, :7])


@pytest.mark.parametrize("method", slow_but(["auto", "linear", "adf", "mc_dropout"], "auto"))
@pytest.mark.parametrize("call", ["predict", "check", "fit", "trace"])
def test_weights_without_values_are_refused(method, call):
    net = nn.Sequential(nn.Linear(WIDTH, 8, device="meta"), nn.Linear(8, 2, device="meta")).eval()
    sure = hs.Uncertain(net, 0.01, **METHODS[method])
    y = torch.zeros(4, 2)
    run = {
        "predict": lambda: sure(X),
        "check": lambda: hs.check(net, X),
        "fit": lambda: sure.fit([(X, y)] * 20, show_progress=False),
        "trace": lambda: hs.trace(net, X, noise_var=0.01),
    }[call]
    error = attempt(run)
    assert isinstance(error, Exception) and "meta" in str(error), error


# Sizes.
SIZES = {
    "one row": (1, 1.0, 0.01),
    "no rows": (0, 1.0, 0.01),
    "many rows": (3000, 1.0, 0.01),
    "large": (4, 1e6, 1e8),
    "tiny": (4, 1e-6, 1e-14),
    "zero": (4, 0.0, 0.01),
    "noise far above": (4, 1e-3, 1.0),
    "noise far below": (4, 1.0, 1e-10),
    "no noise to speak of": (4, 1.0, 1e-30),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "method", slow_but(["auto", "linear", "noise_sampling", "gradients"], "auto")
)
def test_inputs_of_all_sizes(name, method):
    rows, scale, var = SIZES[name]
    x = inputs(rows, WIDTH, scale=scale)
    p = hs.Uncertain(NET, var, method)(x)
    assert p.std.shape == (rows, 2)
    if not rows:
        return
    truth, error = exact(x[:4], var)
    part = p[:4]
    if any("resolution of the inputs" in note for note in p.notes):
        return
    first_order = method == "linear" and var >= 1
    found = None if first_order else fault(part, truth, error, room=0.15)
    assert found is None, found


def exact(x, var):
    """Monte Carlo in float64, so that noise below the rounding of float32 counts."""
    return monte_carlo(network().double(), x.double(), var, draws=4000)


NONFINITE = [float("nan"), float("inf"), -float("inf"), 3e38]


@pytest.mark.parametrize("value", NONFINITE)
@pytest.mark.parametrize("method", slow_but(METHODS, "auto"))
def test_one_broken_row_leaves_the_others_as_they_are(value, method):
    x = X.clone()
    x[1, 3] = value
    sure = hs.Uncertain(NET, 0.01, **METHODS[method])
    p = attempt(lambda: sure(x))
    if "adf" in method and not np.isfinite(value):
        assert "NaN or infinity" in str(p)
        return
    q = sure(X)
    others = [0, 2, 3]
    torch.testing.assert_close(p.std[others], q.std[others], rtol=1e-3, atol=1e-6)
    assert not np.isnan(value) or bool(p.std[1].isnan().all())
    if np.isnan(value) and method == "auto":
        assert any("NaN" in note for note in p.notes)


# Structures: the same network behind other arguments.
@dataclasses.dataclass
class Frame:
    image: torch.Tensor
    speed: torch.Tensor
    name: str = "left"


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: torch.Tensor
    speed: torch.Tensor


Point = collections.namedtuple("Point", "image speed")


class OwnDict(dict):
    """A mapping of a class of its own, as tokenizers return."""


class Taking(nn.Module):
    """Two inputs, taken from a structure."""

    def __init__(self, take):
        super().__init__()
        self.net, self.take = network(), take

    def forward(self, *args, **kwargs):
        image, speed = self.take(*args, **kwargs)
        return self.net(image) + speed


def noise_like(x):
    """A variance of 0.01 for every tensor with rows, in the structure of the input."""
    if dataclasses.is_dataclass(x):
        return {"image": 0.01, "speed": 0.01}
    if isinstance(x, list):
        return [noise_like(item) for item in x]

    def leaf(item):
        is_noisy = isinstance(item, torch.Tensor) and item.is_floating_point() and item.dim() > 0
        return 0.01 if is_noisy else None

    return hs.trees.map_leaves(leaf, x)


def by_name(x):
    return x["image"], x["speed"]


def by_attribute(x):
    return x.image, x.speed


STRUCTURES = {
    "tuple": (lambda a, b: (a, b), lambda a, b: (a, b)),
    "list": (lambda a, b: [a, b], lambda x: x),
    "dict as keywords": (
        lambda a, b: {"image": a, "speed": b}, lambda image, speed: (image, speed)),
    "dict of others": (lambda a, b: ({"image": a, "speed": b},), by_name),
    "nested dict": (
        lambda a, b: ({"camera": {"image": a}, "car": [b]},),
        lambda x: (x["camera"]["image"], x["car"][0])),
    "own dict": (lambda a, b: (OwnDict(image=a, speed=b),), by_name),
    "ordered dict": (lambda a, b: (collections.OrderedDict(image=a, speed=b),), by_name),
    "dataclass": (Frame, by_attribute),
    "frozen dataclass": (Frozen, by_attribute),
    "named tuple": (Point, by_attribute),
    "dataclass in a list": (lambda a, b: [Frame(a, b)], lambda x: by_attribute(x[0])),
    "named tuple in a dict": (lambda a, b: ({"x": Point(a, b)},), lambda x: by_attribute(x["x"])),
    "with None": (lambda a, b: (a, None, b), lambda a, _, b: (a, b)),
    "with a number": (lambda a, b: (a, 3, b), lambda a, _, b: (a, b)),
    "with a string": (lambda a, b: ({"image": a, "speed": b, "name": "x"},), by_name),
    "with indices": (lambda a, b: (a, b, torch.arange(len(a))), lambda a, b, i: (a, b)),
    "with a mask": (lambda a, b: (a, b, a > 0), lambda a, b, mask: (a * mask + a * ~mask, b)),
    "with a scalar": (lambda a, b: (a, b, torch.tensor(2.0)), lambda a, b, s: (a * s / 2, b)),
    "twice the same": (lambda a, b: (a, b, a), lambda a, b, c: ((a + c) / 2, b)),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("method", slow_but(["auto", "linear", "noise_sampling"], "auto"))
def test_structures(name, method):
    build, take = STRUCTURES[name]
    model, speed = Taking(take).eval(), torch.linspace(-1, 1, 4)[:, None]
    x, net = build(X, speed), network()
    p = hs.Uncertain(model, noise_like(x), **METHODS[method])(x)
    joined = torch.cat([X, speed], 1)
    truth, error = monte_carlo(lambda x: net(x[:, :-1]) + x[:, -1:], joined, 0.01)
    if name == "twice the same":  # Each has noise of its own.
        generator = torch.Generator().manual_seed(5)
        noise = 0.1 * torch.randn(3, 4000, 4, WIDTH, generator=generator)
        with torch.no_grad():
            y = net(X + (noise[0] + noise[1]) / 2) + speed + noise[2][..., :1]
        truth = y.std(0).double()
        error = truth / 4000**0.5
    found = fault(p, truth, error)
    assert found is None, found


OUTPUTS = {
    "tuple": lambda y: (y, y * 2),
    "dict": lambda y: {"a": y, "b": y[:, 0]},
    "nested": lambda y: {"a": [y, (y[:, :1],)]},
    "dataclass": lambda y: Frozen(y, y[:, :1]),
    "named tuple": lambda y: Point(y, y[:, :1]),
    "namespace": lambda y: types.SimpleNamespace(image=y),
    "with None": lambda y: (y, None),
    "with a string": lambda y: {"y": y, "name": "x"},
    "with indices": lambda y: (y, y.argmax(1)),
    "scalar per batch": lambda y: (y, y.sum()),
    "no tensor": lambda y: y.tolist(),
    "integers": lambda y: y.argmax(1),
    "complex": lambda y: torch.complex(y, y),
    "sparse": lambda y: y.to_sparse(),
    "csr": lambda y: y.to_sparse_csr(),
    "nested tensor": lambda y: torch.nested.nested_tensor(list(y)),
    "jagged": lambda y: torch.nested.nested_tensor(list(y), layout=torch.jagged),
    "ragged list": lambda y: [row.expand(i + 1, 2) for i, row in enumerate(y)],
    "as many as are positive": lambda y: y[y > 0],
    "empty": lambda y: y[:, :0],
    "half": lambda y: y.half(),
    "double": lambda y: y.double(),
    "expanded": lambda y: y[:, :1].expand(-1, 5),
    "subclass": lambda y: y.as_subclass(Tagged),
    "parameter": lambda y: nn.Parameter(y),
    "distribution": lambda y: torch.distributions.Normal(y, 1.0),
    "other distribution": lambda y: torch.distributions.Laplace(y, 1.0),
    "array": lambda y: y.detach().numpy(),
    "meta": lambda y: y.to("meta"),
    "quantized": lambda y: torch.quantize_per_tensor(y, 0.1, 0, torch.qint8),
    "generator": lambda y: (row for row in y),
    "inference tensor": lambda y: torch.inference_mode()(y.clone)(),
}


class Giving(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.net, self.give = network(), give

    def forward(self, x):
        return self.give(self.net(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("method", slow_but(METHODS, "auto"))
def test_outputs_of_all_kinds(name, method):
    """A prediction whose stds are those of the network, or one sentence."""
    model = Giving(OUTPUTS[name]).eval()
    result = attempt(lambda: hs.Uncertain(model, 0.01, **METHODS[method])(X))
    if isinstance(result, Exception):
        return
    leaves = [t for t in hs.trees.tensors_of(result.std) if t.is_floating_point()]
    if name == "meta":
        assert all(leaf.is_meta for leaf in leaves)
        return
    assert leaves and all(bool((t.isnan() | (t >= 0)).all()) for t in leaves)
    if name not in ("complex", "empty", "array") and method in ("auto", "linear"):
        assert any(bool((t > 0).any()) for t in leaves), "nothing varies, and no word"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", slow_but(METHODS, "auto"))
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_models_of_other_types(dtype, method, rows):
    net, x = network().to(dtype), inputs(rows, WIDTH).to(dtype)
    p = hs.Uncertain(net, 0.01, **METHODS[method])(x)
    q = hs.Uncertain(network(), 0.01, **METHODS[method])(x.float())
    coarse = {torch.float16: 0.05, torch.bfloat16: 0.3, torch.float64: 0.01}[dtype]
    torch.testing.assert_close(p.std.float(), q.std.float(), rtol=coarse, atol=1e-3)
