"""The cheap look before contents are compared: it sees every edit that a comparison would see."""

import copy
from collections import UserDict

import edited as stale
import numpy as np
import pytest
import torch
from torch import nn
from watched import EDITS, FACTORS, FUNCTIONS, PARTS, SETTINGS, Rich, Slots, rich, set_, set_item

import howsure as hs
from howsure.deploy.compiling import compiled
from howsure.deploy.compiling.compiled import Frozen, _walk
from howsure.deploy.compiling.watch import watch_over
from howsure.values.contents import Snapshot, Walk


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


def test_a_copied_model_was_not_edited():
    """Python notes on a class how its objects are copied."""
    if "__slotnames__" in vars(Slots):
        del Slots.__slotnames__
    model = rich()
    setup = setup_of(model)
    frozen = Frozen(setup)
    copy.deepcopy(model)
    assert "__slotnames__" in vars(Slots) and frozen.holds(setup)
