"""Second attack, state: a model that writes something is the same afterwards, and so is its std."""

import collections
import copy
import dataclasses
import random
import threading
import types
import weakref

import numpy as np
import pytest
import torch
from second import inputs, same
from torch import nn

import howsure as hs

X = inputs()


@dataclasses.dataclass
class Memory:
    steps: int = 0
    last: object = None


Pair = collections.namedtuple("Pair", "one two")


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = torch.zeros(3)


class Tally:
    """Counts in a property."""

    def __init__(self):
        self._count = 0

    @property
    def count(self):
        return self._count

    @count.setter
    def count(self, value):
        self._count = value


class Stateful(nn.Module):
    """Two layers and something that each call writes; the output does not depend on it."""

    def __init__(self, make, write):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(40, 8), nn.Tanh(), nn.Linear(8, 2))
        self.state, self.write = make(), write

    def forward(self, x):
        y = self.net(x)
        self.write(self, x.detach(), y.detach())
        return y


def set_state(value):
    def write(model, x, y):
        model.state = value(x, y)

    return write


def buffer(model, x, y):
    if "late" not in model._buffers:
        model.register_buffer("late", x.mean(0))
    model.late.mul_(0.9).add_(x.mean(0))


def attribute_of_layer(model, x, y):
    model.net[0].seen = getattr(model.net[0], "seen", 0) + 1


def grow(model, x, y):
    model.state.append(y.clone())


def delete(model, x, y):
    if "gone" in vars(model):
        del model.gone


KINDS = {
    "int": (int, set_state(lambda x, y: 5)),
    "tensor": (lambda: torch.zeros(2), lambda m, x, y: m.state.add_(1)),
    "view of a tensor": (lambda: torch.zeros(4, 4)[1:3], lambda m, x, y: m.state.add_(1)),
    "tensor out=": (lambda: torch.zeros(2), lambda m, x, y: torch.sum(y, 0, out=m.state)),
    "tensor.data": (lambda: torch.zeros(2), lambda m, x, y: setattr(m.state, "data", y.sum(0))),
    "resized": (lambda: torch.zeros(2), lambda m, x, y: m.state.resize_(7)),
    "list": (list, grow),
    "nested list": (lambda: [[0]], lambda m, x, y: m.state[0].append(1)),
    "deque": (lambda: collections.deque(maxlen=2), grow),
    "dict": (dict, lambda m, x, y: m.state.update(y=y)),
    "ordered dict": (collections.OrderedDict, lambda m, x, y: m.state.update(y=y)),
    "default dict": (
        lambda: collections.defaultdict(list), lambda m, x, y: m.state["y"].append(1)),
    "counter": (collections.Counter, lambda m, x, y: m.state.update("ab")),
    "set": (set, lambda m, x, y: m.state.add(len(m.state))),
    "bytearray": (lambda: bytearray(b"ab"), lambda m, x, y: m.state.append(1)),
    "array": (lambda: np.zeros(3), lambda m, x, y: m.state.__iadd__(1)),
    "array of objects": (
        lambda: np.array([[], 1], dtype=object), lambda m, x, y: m.state[0].append(1)),
    "dataclass": (Memory, lambda m, x, y: setattr(m.state, "steps", m.state.steps + 1)),
    "namespace": (
        lambda: types.SimpleNamespace(h=torch.zeros(2)), lambda m, x, y: m.state.h.add_(1)),
    "slots": (Slotted, lambda m, x, y: m.state.value.add_(1)),
    "property": (Tally, lambda m, x, y: setattr(m.state, "count", m.state.count + 1)),
    "object in an object": (
        lambda: Memory(last=Memory()), lambda m, x, y: setattr(m.state.last, "steps", 3)),
    "tuple of lists": (lambda: ([], []), lambda m, x, y: m.state[1].append(2)),
    "buffer made late": (int, buffer),
    "buffer replaced": (
        int, lambda m, x, y: m.register_buffer("fresh", y.mean(0))),
    "attribute of a layer": (int, attribute_of_layer),
    "attribute deleted": (int, delete),
    "module added": (int, lambda m, x, y: m.net[0].add_module("extra", nn.Identity())),
    "module dict": (nn.ModuleDict, lambda m, x, y: m.state.update({"a": nn.Identity()})),
    "hook added": (int, lambda m, x, y: m.net.register_forward_hook(lambda *a: None)),
    "mode changed": (int, lambda m, x, y: m.net[1].train()),
    "buffer of a layer": (
        lambda: nn.BatchNorm1d(2), lambda m, x, y: m.state.running_mean.mul_(0.9)),
    "flag of a layer": (int, lambda m, x, y: setattr(m.net[1], "inplace", True)),
    "named tuple": (lambda: Pair([], 1), lambda m, x, y: m.state.one.append(1)),
    "generator": (
        lambda: torch.Generator().manual_seed(3),
        lambda m, x, y: torch.randn(1, generator=m.state)),
    "random": (lambda: random.Random(3), lambda m, x, y: m.state.random()),
    "numpy generator": (lambda: np.random.default_rng(3), lambda m, x, y: m.state.random()),
    "iterator": (lambda: [iter(range(10**6))], lambda m, x, y: next(m.state[0])),
    "closure": (lambda: None, None),
    "partial": (lambda: None, None),
    "lock": (threading.Lock, lambda m, x, y: m.state.acquire(False) and m.state.release()),
    "weak": (
        lambda: weakref.WeakValueDictionary(), lambda m, x, y: m.state.update(net=m.net)),
    "global generators": (
        int, lambda m, x, y: (torch.rand(1), random.random(), np.random.rand())),  # noqa: NPY002
}  # fmt: skip
# What is written in C, or belongs to others, cannot be copied: the call still gives right numbers.
SHARED = {"iterator", "weak", "closure", "partial"}


def build(name):
    make, write = KINDS[name]
    if name == "closure":
        seen = []
        model = Stateful(make, lambda m, x, y: seen.append(1))
        model.seen_by_test = seen
        return model.eval()
    if name == "partial":
        import functools

        seen = []
        model = Stateful(make, functools.partial(lambda kept, m, x, y: kept.append(1), seen))
        model.seen_by_test = seen
        return model.eval()
    model = Stateful(make, write)
    model.gone = 1
    return model.eval()


def look(model):
    """All that a model has, as a copy where one can be made."""

    def copied(value):
        if isinstance(value, nn.Module):
            return {name: copied(item) for name, item in vars(value).items()}
        if isinstance(value, dict):
            return {name: copied(item) for name, item in value.items()}
        if isinstance(value, torch.Tensor):
            return value.detach().clone(), value.requires_grad, value.data_ptr()
        if isinstance(value, Slotted):
            return value.value.clone()
        if isinstance(value, torch.Generator):
            return value.get_state()
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, np.random.Generator):
            return str(value.bit_generator.state)
        try:
            return copy.deepcopy(value)
        except TypeError:
            return repr(value)

    return copied(model)


SETTINGS = {
    "auto": {},
    "linear": {"method": "linear"},
    "noise_sampling": {"method": "noise_sampling", "samples": 20},
    "mc_dropout": {"method": "mc_dropout", "rate": 0.1, "samples": 5},
    "sampled_adf": {"method": "sampled_adf", "rate": 0.1, "samples": 3},
}


def unchanged(name, settings):
    model = build(name)
    before, random_before = look(model), torch.get_rng_state()
    plain = build(name).net(X)
    sure = hs.Uncertain(model, 0.01, **settings)
    first, second = sure(X), sure(X)
    assert torch.equal(torch.get_rng_state(), random_before)
    if name not in SHARED:
        assert same(before, look(model)), "the model was changed"
    torch.testing.assert_close(first.std, second.std)
    if "rate" not in settings:
        torch.testing.assert_close(first.mean, plain, rtol=0.02, atol=0.05)
    return first


@pytest.mark.parametrize("name", KINDS)
def test_state_is_the_same_after_a_call(name):
    p = unchanged(name, {})
    q = hs.Uncertain(build(name).net, 0.01)(X)
    torch.testing.assert_close(p.std, q.std, rtol=0.3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in SETTINGS if name != "auto"])
@pytest.mark.parametrize("name", KINDS)
def test_state_is_the_same_whatever_the_method(name, method):
    try:
        p = unchanged(name, SETTINGS[method])
    except (hs.NoRuleError, RuntimeError):
        assert method == "sampled_adf"  # There is no rule for what the model writes.
        return
    assert bool((p.std > 0).all())


@pytest.mark.parametrize("name", ["tensor", "list", "dict", "dataclass", "buffer made late", "int"])
def test_state_is_the_same_after_a_fit(name):
    model = build(name)
    x = inputs(60, seed=4)
    y = model.net(x).detach() + 0.1 * torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    before = look(model)
    hs.Uncertain(model, 0.01).fit([(x, y)], show_progress=False)
    assert same(before, look(model)), "the model was changed"


@pytest.mark.parametrize("method", [name for name in SETTINGS if name != "sampled_adf"])
def test_a_model_that_writes_its_weights_is_refused(method):
    def write(model, x, y):
        with torch.no_grad():
            model.net[0].bias.add_(1)

    model = Stateful(int, write).eval()
    with pytest.raises(ValueError, match="writes its own weights"):
        hs.Uncertain(model, 0.01, **SETTINGS[method])(X)
