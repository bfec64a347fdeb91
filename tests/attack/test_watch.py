"""The cheap look before contents are compared: it sees every edit that a comparison would see."""

import copy
import functools
import types
from collections import OrderedDict, UserDict, defaultdict, deque
from typing import ClassVar

import numpy as np
import pytest
import test_stale_edits as stale
import torch
from torch import nn

import howsure as hs
from howsure.deploy.compiling import compiled
from howsure.deploy.compiling.compiled import Frozen, _walk
from howsure.deploy.compiling.watch import watch_over
from howsure.values import bits
from howsure.values.bits import same_bits
from howsure.values.contents import Snapshot, Walk

FACTORS = [1.0]
SETTINGS = types.ModuleType("settings_of_this_test")
SETTINGS.gain = 1.0


@pytest.fixture(autouse=True)
def as_it_was():
    own, kept = dict(vars(Rich)), {name: dict(vars(f)) for name, f in FUNCTIONS.items()}
    parts = {name: [getattr(f, part) for part in PARTS] for name, f in FUNCTIONS.items()}
    yield
    stale.Net.factor, stale.GAIN, SETTINGS.gain, FACTORS[:] = 1.0, 1.0, 1.0, [1.0]
    Rich.__bases__ = (stale.Net,)
    for name in [name for name in vars(Rich) if name not in own]:
        delattr(Rich, name)
    for name in ("limits", "static", "of_class", "seen"):
        setattr(Rich, name, own[name])
    for name, function in FUNCTIONS.items():
        function.__dict__ = kept[name]
        for part, value in zip(PARTS, parts[name], strict=True):
            setattr(function, part, value)


def scaled(x, by=1.0, *, shift=0.0):
    return x * by * FACTORS[0] * SETTINGS.gain + shift


def other(x, by=1.0, *, shift=0.0):
    return -x * by + shift


scaled.note = 1.0
FUNCTIONS = {"scaled": scaled, "other": other}
PARTS = ("__code__", "__defaults__", "__kwdefaults__")


class Slots:
    __slots__ = ("empty", "gain", "table")

    def __init__(self):
        self.gain, self.table, self.empty = 1.0, {"a": torch.ones(3)}, {}


class Rich(stale.Net):
    """Holds what models hold besides weights, in every kind of container."""

    limits: ClassVar = {"low": 0.0}

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU())])
        self.named = nn.ModuleDict({"a": nn.Linear(3, 3)})
        self.slots, self.partial = Slots(), functools.partial(scaled, by=2.0)
        self.tensors = {"list": [torch.ones(3)], "tuple": (torch.ones(3), [1.0])}
        self.rows, self.kinds = deque([1.0, 2.0]), {"relu", "tanh"}
        self.ordered, self.default = OrderedDict(a=1.0, b=2.0), defaultdict(list, a=[1.0])
        self.objects = [types.SimpleNamespace(gain=1.0, inner=types.SimpleNamespace(deep=[1.0]))]
        self.nothing, self.unset, self.bits = {}, set(), np.zeros((2, 2), dtype=bool)
        self.flat, self.large = torch.rand(33), torch.rand(64, 65)
        self.part, self.turned = nn.Parameter(self.flat[1:]), self.flat[:32].view(4, 8).T

    @staticmethod
    def static(x):
        return x * 1.0

    @classmethod
    def of_class(cls, x):
        return x

    @property
    def seen(self):
        return 1.0


class Heavier(Rich):
    factor = 2.0


class OtherBase(stale.Net):
    pass


def set_item(thing, key, value):
    thing[key] = value


set_ = setattr
RELATIVES = {
    "weight in a list": lambda m: m.blocks[1][0].weight.data.mul_(2),
    "weight in a dict": lambda m: m.named["a"].bias.data.add_(1),
    "smallest step of one weight": lambda m: m.hidden.weight.view(torch.int32)[7, 63].add_(1),
    "sign of a zero": lambda m: m.named["a"].bias.data.fill_(-0.0),
    "replaced submodule": lambda m: set_item(m.blocks, 0, nn.Linear(3, 3)),
    "equal shape, other layer": lambda m: set_item(m.blocks[1], 1, nn.ReLU6()),
    "submodule added": lambda m: m.blocks.append(nn.ReLU()),
    "submodule in a dict replaced": lambda m: set_item(m.named, "a", nn.Linear(3, 3)),
    "attribute of a submodule": lambda m: set_(m.conv, "stride", (1, 1)),
    "new attribute of a submodule": lambda m: set_(m.blocks[1][0], "note", 1.0),
    "training of a submodule": lambda m: m.blocks[1].train(),
    "hook of a submodule": lambda m: m.blocks[1][0].register_forward_hook(lambda *a: None),
    "pre-hook of a submodule": lambda m: m.act.register_forward_pre_hook(lambda *a: None),
    "class of an object": lambda m: set_(m, "__class__", Heavier),
    "class of a submodule": lambda m: set_(m.act, "__class__", nn.ReLU6),
    "attributes all at once": lambda m: set_(m.act, "__dict__", {**vars(m.act), "inplace": True}),
    "slot": lambda m: set_(m.slots, "gain", 2.0),
    "slot deleted": lambda m: delattr(m.slots, "gain"),
    "tensor in a dict in a slot": lambda m: m.slots.table["a"].numpy().__imul__(2),
    "empty dict in a slot": lambda m: m.slots.empty.update(a=1),
    "empty dict": lambda m: m.nothing.update(a=1),
    "empty set": lambda m: m.unset.add(1),
    "arguments of a partial": lambda m: m.partial.keywords.update(by=3.0),
    "function of a partial": lambda m: m.partial.__setstate__(
        (other, m.partial.args, m.partial.keywords, vars(m.partial))
    ),
    "tensor in a list in a dict": lambda m: m.tensors["list"][0].mul_(2),
    "tensor in a list replaced": lambda m: set_item(m.tensors["list"], 0, 2 * torch.ones(3)),
    "tensor in a tuple": lambda m: m.tensors["tuple"][0].data.fill_(2),
    "list in a tuple": lambda m: m.tensors["tuple"][1].append(2.0),
    "order of a deque": lambda m: m.rows.rotate(1),
    "deque shortened": lambda m: m.rows.pop(),
    "set": lambda m: m.kinds.add("gelu"),
    "order of a dict": lambda m: m.ordered.move_to_end("a"),
    "item deleted": lambda m: m.ordered.pop("a"),
    "list in a defaultdict": lambda m: m.default["a"].append(2.0),
    "key made by looking": lambda m: m.default["b"],
    "deep attribute": lambda m: set_item(m.objects[0].inner.deep, 0, 2.0),
    "array": lambda m: set_item(m.bits, (1, 1), True),
    "array through a view": lambda m: m.array[3:4].fill(2),
    "array in another shape": lambda m: set_(m.bits, "shape", (4,)),
    "larger tensor of a part": lambda m: m.flat.data[32].add_(1),
    "part of a larger tensor": lambda m: m.part.data[0].add_(1),
    "one number of a large tensor": lambda m: set_item(m.large.numpy(), (63, 64), 2.0),
    "transposed": lambda m: m.turned.t_(),
    "strides": lambda m: set_(m.hidden.weight, "data", m.hidden.weight.data.reshape(64, 8).T),
    "buffer replaced": lambda m: set_(m, "gains", 2 * torch.ones(64)),
    "buffer unregistered": lambda m: m._buffers.pop("gains"),
    "buffer by storage": lambda m: m.gains.untyped_storage().fill_(3),
    "tensor of another dtype": lambda m: set_(m.plain, "data", m.plain.data.double()),
    "dict of the class": lambda m: m.limits.update(low=1.0),
    "new attribute of the class": lambda m: set_(Rich, "factor", 3.0),
    "static method": lambda m: set_(Rich, "static", staticmethod(other)),
    "class method": lambda m: set_(Rich, "of_class", classmethod(other)),
    "property": lambda m: set_(Rich, "seen", property(lambda self: 2.0)),
    "bases of the class": lambda m: set_(Rich, "__bases__", (OtherBase,)),
    "method of the object": lambda m: set_(m, "static", other),
    "code": lambda m: set_(scaled, "__code__", other.__code__),
    "defaults": lambda m: set_(scaled, "__defaults__", (2.0,)),
    "defaults by name": lambda m: scaled.__kwdefaults__.update(shift=1.0),
    "attribute of a function": lambda m: set_(scaled, "note", 2.0),
    "new attribute of a function": lambda m: set_(scaled, "more", 2.0),
    "list that is a global": lambda m: set_item(FACTORS, 0, 2.0),
    "attribute of a module": lambda m: set_(SETTINGS, "gain", 2.0),
    "closure": lambda m: m.closure.change(2.0),
}
EDITS = {**stale.EDITS, **RELATIVES}


def rich():
    torch.manual_seed(0)
    made = Rich().eval().requires_grad_(False)
    made.named["a"].bias.data.zero_()
    return made


def setup_of(model):
    return hs.Uncertain(model, hs.noise.std(torch.full((8,), 0.1)), "adf").setup


def without_comparing(monkeypatch):
    """From now on, contents are not compared."""

    def refuse(setup):
        raise AssertionError("the contents were compared")

    monkeypatch.setattr(compiled, "_walk", refuse)


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_is_seen(name, monkeypatch):
    model = rich()
    setup = setup_of(model)
    frozen, kept = Frozen(setup), Snapshot(_walk(setup).leaves)
    with monkeypatch.context() as patch:
        without_comparing(patch)
        assert frozen.holds(setup), "the watch is not active"
    EDITS[name](model)
    assert not kept.holds(_walk(setup).leaves), "the edit changes nothing"
    assert frozen.watch is not None and not frozen.watch.holds()
    assert not frozen.holds(setup)


@pytest.mark.parametrize("edit", [lambda t: t.append(2.0), lambda t: t.pop()])
def test_the_length_of_the_last_list_is_watched(edit):
    """All parts are compared in one sequence, which an edit at its end makes longer or shorter."""
    things = [1.0]
    walk = Walk(things)
    watch = watch_over(walk, Snapshot(walk.leaves))
    assert watch is not None and watch.holds()
    edit(things)
    assert not watch.holds()


@pytest.mark.parametrize("make", [stale.net, rich], ids=["plain", "rich"])
def test_what_was_put_back_holds_again_and_is_watched(make, monkeypatch):
    model = make()
    setup = setup_of(model)
    frozen = Frozen(setup)
    model.scale, model.conv.weight.data = float("1.0"), model.conv.weight.data.clone()
    assert frozen.watch is not None and not frozen.watch.holds()
    assert frozen.holds(setup)
    without_comparing(monkeypatch)
    assert frozen.holds(setup), "the watch is not active"


def test_settings_are_watched():
    model, noise = rich(), torch.full((8,), 0.01)
    setup = hs.Uncertain(model, noise, "adf").setup
    frozen = Frozen(setup)
    assert frozen.holds(setup)
    assert not frozen.holds(hs.Uncertain(model, 2 * noise, "adf").setup)
    assert not frozen.holds(hs.Uncertain(rich().double(), noise, "adf").setup)


def test_addresses_that_are_used_again_are_no_proof():
    """Whatever is done with released memory, an old part is never taken for a new one."""
    model = rich()
    setup = setup_of(model)
    frozen = Frozen(setup)
    for factor in range(2, 30):
        shape = model.hidden.weight.shape
        model.hidden.weight = None
        model.hidden.weight = nn.Parameter(torch.full(shape, float(factor)), requires_grad=False)
        model.listed[1] = None
        model.listed[1] = {"depth": float(factor)}
        assert not frozen.holds(setup)
        frozen = Frozen(setup)
        assert frozen.watch is not None and frozen.holds(setup)


class MyDict(dict):
    pass


class MyList(list):
    pass


class Wrapped(torch.Tensor):
    """A tensor that consists of another."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


UNSEEN = {
    "subclass of dict": (MyDict(a=1.0), lambda t: t.update(a=2.0)),
    "other mapping": (UserDict(a=1.0), lambda t: t.update(a=2.0)),
    "subclass of list": (MyList([1.0]), lambda t: t.append(2.0)),
    "array of objects": (np.array([1.0, None]), lambda t: set_item(t, 1, 2.0)),
    "record": (np.zeros(1, "f4,f4")[0], lambda t: set_item(t, 0, 2.0)),
    "generator": (torch.Generator(), lambda t: t.manual_seed(7)),
    "complex": (torch.ones(3, dtype=torch.complex64), lambda t: t.mul_(2)),
    "sparse": (torch.eye(3).to_sparse(), lambda t: t.mul_(2)),
    "meta": (torch.ones(3, device="meta"), lambda t: t.resize_(4)),
    "tensor of tensors": (Wrapped(torch.ones(3)), lambda t: set_(t, "inner", torch.zeros(3))),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_watched_is_compared(name):
    thing, edit = UNSEEN[name]
    thing = thing if name == "tensor of tensors" else copy.deepcopy(thing)
    model = rich()
    model.config.thing = thing
    setup = setup_of(model)
    frozen = Frozen(setup)
    assert frozen.watch is None and frozen.holds(setup)
    edit(thing)
    assert not frozen.holds(setup)


def test_a_copy_has_contents_and_a_watch_of_its_own():
    model = rich()
    setup = setup_of(model)
    frozen = Frozen(setup)
    assert copy.deepcopy(frozen).watch is None
    copied = copy.copy(frozen)
    assert copied.watch is None and copied.holds(setup) and copied.watch is not None
    model.scale = 2.0
    assert not copied.holds(setup)


@pytest.fixture(params=["by the C library", "by torch"])
def compared(request, monkeypatch):
    """Both ways to compare memory."""
    assert bits._memcmp is not None
    if request.param == "by torch":
        monkeypatch.setattr(bits, "_memcmp", None)


LAYOUTS = {
    "rows": lambda t: t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "turned": lambda t: t.transpose(0, 3),
    "part": lambda t: t[:, 1:3],
    "every second": lambda t: t[..., ::2],
    "the same again": lambda t: t[:1].expand(3, -1, -1, -1),
    "one number": lambda t: t[0, 0, 0, 0],
    "conjugate": torch.conj,
    "negative view": lambda t: torch._neg_view(t),
}


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_bits_in_any_layout(change, dtype):
    """Equal by value and layout, or by value alone; other numbers, another zero, another NaN."""
    one = change(torch.randn(3, 4, 5, 6, dtype=dtype))
    for same in (one.clone(), one.clone(memory_format=torch.contiguous_format)):
        assert same_bits(one, same) and same_bits(same, one)
    for at in ((0,) * one.dim(), (-1,) * one.dim()):
        for before, after in ((1.0, 1.0 + 1e-6), (0.0, -0.0), (float("nan"), 1.0)):
            was, now = one.clone(), one.clone()
            was[at], now[at] = before, after
            assert not same_bits(was, now) and same_bits(was, was.clone())


@pytest.mark.usefixtures("compared")
def test_bits_of_nothing_and_of_memory_that_has_gone():
    assert same_bits(torch.empty(0, 3), torch.empty(0, 3))
    assert not same_bits(torch.empty(0, 3), torch.empty(3, 0))
    one = torch.ones(2, 8)
    two = one.clone()
    two.untyped_storage().resize_(32)
    assert not same_bits(one, two) and not same_bits(two, one)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16, torch.complex64])
def test_parts_of_larger_tensors_are_compared_wherever_they_begin(dtype):
    whole = torch.arange(40).to(dtype)
    for begin in range(9):
        part = whole[begin : begin + 8]
        assert same_bits(part, part.clone()) and not same_bits(part, part + 1)


def test_a_copied_model_was_not_edited():
    """Python notes on a class how its objects are copied."""
    if "__slotnames__" in vars(Slots):
        del Slots.__slotnames__
    model = rich()
    setup = setup_of(model)
    frozen = Frozen(setup)
    copy.deepcopy(model)
    assert "__slotnames__" in vars(Slots) and frozen.holds(setup)
