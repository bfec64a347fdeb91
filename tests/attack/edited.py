"""A model, and all the ways in which it can be edited between two calls."""

import ctypes
import types

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, vector_to_parameters

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


def trained(model, optimizer):
    model.requires_grad_(True)
    step = optimizer([p for p in model.parameters()])
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


def parametrized(model):
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
    "weight_norm, then its original": parametrized,
    "own parametrization": lambda m: parametrize.register_parametrization(
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
