"""A model with parts of every kind, and edits that a look must see."""

import functools
import types
from collections import OrderedDict, defaultdict, deque
from typing import ClassVar

import edited as stale
import numpy as np
import torch
from torch import nn

FACTORS = [1.0]
SETTINGS = types.ModuleType("settings_of_this_test")
SETTINGS.gain = 1.0


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
