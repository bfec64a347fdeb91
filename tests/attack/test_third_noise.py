"""Third attack, noise and inputs: correlation, several inputs, types, scales, batch axes."""

import collections
import dataclasses
import itertools
import math
import types

import pytest
import torch
from third import (
    WIDTH,
    Net,
    add_noise,
    check,
    leaves,
    linear,
    outcome,
    rows,
    some_fast,
    spread,
    truth_of_calls,
    truth_of_rows,
)
from torch import nn
from torch.nn import functional as F

import howsure as hs

# Noises of an input of (rows, 6, 8), with how they are made by hand: std and generator to noise.


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator)


def ar1(x, g, s=0.2, rho=0.8):
    z = normal(g, *x.shape)
    out = [z[:, 0]]
    for t in range(1, x.shape[1]):
        out.append(rho * out[-1] + math.sqrt(1 - rho**2) * z[:, t])
    return x + s * torch.stack(out, 1)


COVARIANCE = (lambda a: a @ a.mT / 8 * 0.04 + 0.01 * torch.eye(8))(
    torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
)
FACTOR = 0.1 * torch.randn(48, 2, generator=torch.Generator().manual_seed(6))
STDS = torch.linspace(0.0, 0.3, 8)

NOISES = {
    "number": (lambda: 0.04, lambda x, g: x + 0.2 * normal(g, *x.shape)),
    "tensor": (lambda: STDS.square(), lambda x, g: x + STDS * normal(g, *x.shape)),
    "of rows": (
        lambda: torch.linspace(0, 0.1, 4)[:, None, None].expand(4, 6, 8),
        lambda x, g: x + torch.linspace(0, 0.1, 4)[:, None, None].sqrt() * normal(g, *x.shape),
    ),
    "std": (lambda: hs.noise.std(0.2), lambda x, g: x + 0.2 * normal(g, *x.shape)),
    "double": (
        lambda: torch.tensor(0.04, dtype=torch.float64),
        lambda x, g: x + 0.2 * normal(g, *x.shape),
    ),
    "channels": (
        lambda: hs.noise.per_channel(stds=[0.1, 0.2, 0.3, 0.0, 0.1, 0.2]),
        lambda x, g: (
            x + torch.tensor([0.1, 0.2, 0.3, 0.0, 0.1, 0.2])[:, None] * normal(g, *x.shape)
        ),
    ),
    "shot": (
        lambda: hs.noise.custom(lambda x: 0.05 * x.abs()),
        lambda x, g: x + (0.05 * x.abs()).sqrt() * normal(g, *x.shape),
    ),
    "range": (
        lambda: hs.noise.range_dependent(0.05, 0.1),
        lambda x, g: x + hs.noise.range_dependent(0.05, 0.1)(x).sqrt() * normal(g, *x.shape),
    ),
    "quantization": (
        lambda: hs.noise.quantization(0.5),
        lambda x, g: x + 0.5 / 12**0.5 * normal(g, *x.shape),
    ),
    "common mode": (
        lambda: hs.noise.common_mode(0.2),
        lambda x, g: x + 0.2 * normal(g, len(x), 1, 1),
    ),
    "common mode of axis 1": (
        lambda: hs.noise.common_mode(0.2, axis=1),
        lambda x, g: x + 0.2 * normal(g, len(x), 6, 1),
    ),
    "sum": (
        lambda: hs.noise.common_mode(0.2) + hs.noise.std(0.1),
        lambda x, g: x + 0.2 * normal(g, len(x), 1, 1) + 0.1 * normal(g, *x.shape),
    ),
    "covariance of an axis": (
        lambda: hs.noise.correlated(COVARIANCE, axis=2),
        lambda x, g: x + normal(g, *x.shape) @ torch.linalg.cholesky(COVARIANCE).mT,
    ),
    "factor": (
        lambda: hs.noise.correlated(factor=FACTOR),
        lambda x, g: x + (normal(g, len(x), 2) @ FACTOR.mT).reshape(x.shape),
    ),
    "ar1": (lambda: hs.noise.ar1(0.2, 0.8, axis=1), ar1),
    "random walk": (
        lambda: hs.noise.random_walk(0.1, axis=1),
        lambda x, g: x + 0.1 * normal(g, *x.shape).cumsum(1),
    ),
    "scaled": (lambda: hs.noise.std(0.1).scaled(4.0), lambda x, g: x + 0.2 * normal(g, *x.shape)),
    "independent parts": (
        lambda: hs.noise.ar1(0.2, 0.8, axis=1).independent(),
        lambda x, g: x + 0.2 * normal(g, *x.shape),
    ),
    "image rows": (
        lambda: hs.noise.rows(0.2),
        lambda x, g: x + 0.2 * normal(g, len(x), x.shape[1], 1),
    ),
}

NETWORKS = {
    "smooth": lambda: Net(lambda s, x: s.a(x.flatten(1)), a=linear(48, 12, 3)),
    "recurrent": lambda: Net(
        lambda s, x: s.b(s.g(x)[0][:, -1]), g=lambda: nn.GRU(8, 6, batch_first=True), b=linear(6, 2)
    ),
    "convolution": lambda: nn.Sequential(
        nn.Conv1d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)
    ),
    "maximum": lambda: Net(lambda s, x: s.a(x.flatten(1)).amax(1, keepdim=True), a=linear(48, 4)),
    "steps": lambda: Net(
        lambda s, x: (4 * s.a(x.flatten(1))).round() + 0.1 * s.a(x.flatten(1)), a=linear(48, 3)
    ),
    "mean": lambda: Net(lambda s, x: x.mean((1, 2))),
    "differences": lambda: Net(lambda s, x: x.diff(dim=1).square().mean((1, 2))),
}


def run_noise(noise, network, method="auto"):
    make, by_hand = NOISES[noise]
    torch.manual_seed(0)
    model, x = NETWORKS[network]().eval(), rows(4, 6, 8)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        noisy = torch.cat([by_hand(x, generator) for _ in range(3000)])
        truth = spread(model(noisy).double().reshape(3000, -1))
    return check(model, x, make(), truth, method=method)


# Structures of inputs and outputs.

Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Result:
    """An output as libraries of transformers have them."""

    logits: torch.Tensor
    hidden: tuple
    loss: object = None


class Output(collections.OrderedDict):
    """A dict whose keys are attributes."""

    def __getattr__(self, name):
        return self[name]


A, B = rows(4, WIDTH), rows(4, 8, seed=2)
TWO = {
    "tuple": ((A, B), lambda s, a, b: s.a(a) + s.b(b)),
    "keywords": ({"a": A, "b": B}, lambda s, a, b: s.a(a) * s.b(b)),
    "integers beside": ((A, torch.tensor([0, 1, 2, 0])), lambda s, a, i: s.a(a) + s.e(i)),
    "mask beside": ((A, B > 0), lambda s, a, m: s.a(a) * m[:, :3]),
    "double beside": ((A, B.double()), lambda s, a, b: s.a(a).double() + s.b(b.float())),
    "half beside": ((A, B.half()), lambda s, a, b: s.a(a) + s.b(b.float())),
    "numbers of rows": ((A, torch.arange(4.0)), lambda s, a, t: s.a(a) * t[:, None].cos()),
    "swapped output": ((A, B), lambda s, a, b: {"b": s.b(b), "a": s.a(a)}),
    "named tuple out": ((A, B), lambda s, a, b: Pair(s.a(a), s.b(b).sin())),
    "data class out": ((A, B), lambda s, a, b: Result(s.a(a), (s.b(b), a[:, :2]))),
    "ordered dict out": ((A, B), lambda s, a, b: Output(logits=s.a(a), hidden=s.b(b))),
    "nested out": ((A, B), lambda s, a, b: [{"x": (s.a(a), [s.b(b)])}, a.sum(1)]),
    "none out": ((A, B), lambda s, a, b: (s.a(a), None, s.b(b))),
    "text out": ((A, B), lambda s, a, b: {"y": s.a(a), "name": "net", "version": 3}),
    "namespace out": ((A, B), lambda s, a, b: types.SimpleNamespace(y=s.a(a), z=s.b(b))),
    "integers out": ((A, B), lambda s, a, b: (s.a(a), s.b(b).argmax(1))),
    "double out": ((A, B), lambda s, a, b: (s.a(a).double(), s.b(b))),
    "scalars of rows": ((A, B), lambda s, a, b: (s.a(a).sum(1), s.b(b)[:, 0])),
    "images out": ((A, B), lambda s, a, b: s.a(a)[:, :, None, None] * b[:, None, :, None]),
    "one ignored": ((A, B), lambda s, a, b: s.a(a)),
    "same twice": ((A, A), lambda s, a, b: s.a(a - b)),
    "product": ((A, B), lambda s, a, b: torch.einsum("bi,bj->bij", s.a(a), s.b(b))),
    "concatenated": ((A, B), lambda s, a, b: s.a(torch.cat([a[:, :32], b], 1))),
    "attention": (
        (A.reshape(4, 5, 8), B[:, None]),
        lambda s, a, b: F.scaled_dot_product_attention(b, a, a),
    ),
    "sequence and start": (
        (A.reshape(4, 5, 8), B[:, :6]),
        lambda s, a, b: s.g(a, b[None])[0][:, -1],
    ),
}


def run_two(name, noise):
    """The noise is one number, is on the first input, or differs between them."""
    x, forward = TWO[name]
    model = Net(
        forward,
        a=linear(WIDTH, 3),
        b=linear(8, 3),
        e=lambda: nn.Embedding(3, 3),
        g=lambda: nn.GRU(8, 6, batch_first=True),
    ).eval()
    values = list(x.values()) if isinstance(x, dict) else list(x)
    is_real = [t.is_floating_point() for t in values]
    variances = {"all": [0.02, 0.02], "first": [0.02, 0.0], "each": [0.01, 0.05]}[noise]
    variances = [v if real else 0.0 for v, real in zip(variances, is_real, strict=True)]
    given = 0.02
    if noise != "all":
        parts = [v or None for v in variances]
        given = dict(zip(x, parts, strict=True)) if isinstance(x, dict) else tuple(parts)
    generator, draws = torch.Generator().manual_seed(4), 3000
    with torch.no_grad():
        many = [
            (t + math.sqrt(v) * normal(generator, draws, *t.shape).to(t.dtype)).flatten(0, 1)
            if v
            else t.repeat(draws, *(1,) * (t.dim() - 1))
            for t, v in zip(values, variances, strict=True)
        ]
        out = model(**dict(zip(x, many, strict=True))) if isinstance(x, dict) else model(*many)
        truth = spread(torch.cat([t.reshape(draws, -1) for t in leaves(out)], 1))
    return check_call(model, x, given, truth)


def check_call(model, x, noise, truth):
    def predict():
        sure = hs.Uncertain(model, noise)
        return sure(**x) if isinstance(x, dict) else sure(*x)

    return outcome(predict, *truth)


# Types and scales.

SCALES = {
    f"{dtype}, inputs {size:g}, outputs {out:g}": (dtype, size, out)
    for dtype, size, out in itertools.product(
        ("float32", "float64"), (1e-12, 1e-3, 1.0, 1e4, 1e12), (1e-18, 1e-6, 1.0, 1e6, 1e14)
    )
}
ODD_TYPES = {
    f"{name}, {head}": (dtype, head)
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16))
    for head in ("linear", "tanh", "softmax", "square")
}
HEADS = {
    "linear": lambda z: z,
    "tanh": torch.tanh,
    "softmax": lambda z: z.softmax(-1),
    "square": torch.square,
}


def run_scale(name):
    """Noise of a tenth of the inputs' size."""
    dtype, size, out = SCALES[name]
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 3)).to(kind)
    model = Net(lambda s, x: out * s.a(x / size), a=lambda: inner).eval()
    x = size * rows().to(kind)
    truth = truth_of_rows(model, x, (0.1 * size) ** 2)
    return check(model, x, (0.1 * size) ** 2, truth)


def run_type(name):
    dtype, head = ODD_TYPES[name]
    model = Net(lambda s, x: HEADS[head](s.a(x)), a=linear(WIDTH, 12, 3)).eval().to(dtype)
    x = rows().to(dtype)
    return check(model, x, 0.04, truth_of_rows(model, x, 0.04))


OFFSETS = {
    f"offset {o:g}, var {v:g}": (o, v) for o in (10.0, 1e3, 1e5, 1e7) for v in (1e-4, 0.01, 1.0)
}


def run_offset(name):
    """Readings far from 0, which the network subtracts, or whose outputs are far from 0."""
    offset, var = OFFSETS[name]
    model = Net(lambda s, x: s.a(x - offset) + offset, a=linear(WIDTH, 12, 3)).eval()
    x = offset + rows()
    return check(model, x, var, truth_of_rows(model, x, var))


# Batch axes.


AXES = {
    "steps first": (1, (5, 3, 8), lambda s, x: s.b(s.g(x)[0])),
    "steps first, last step": (1, (5, 3, 8), lambda s, x: s.b(s.g(x)[0])[-1]),
    "features first": (1, (8, 3), lambda s, x: s.b(s.c(x.mT)).mT),
    "as many as features": (1, (8, 8), lambda s, x: s.b(s.c(x.mT)).mT),
    "last axis": (-1, (8, 3), lambda s, x: s.b(s.c(x.mT)).mT),
    "third axis": (2, (2, 4, 3), lambda s, x: s.b(s.c(x.reshape(8, 3).mT)).mT),
    "one input": (None, (8,), lambda s, x: s.b(s.c(x))),
    "one image": (None, (4, 8), lambda s, x: s.b(s.c(x)).mean(0)),
    "one cloud": (None, (5, 8), lambda s, x: s.b(s.c(x)).amax(0)),
    "one set, rows out": (None, (5, 8), lambda s, x: s.b(s.c(x)).softmax(0)),
    "one row": (0, (1, 8), lambda s, x: s.b(s.c(x))),
    "one scalar": (None, (), lambda s, x: x.sin()),
    "scalars": (0, (3,), lambda s, x: x.sin()),
    "no rows out": (None, (3, 8), lambda s, x: s.b(s.c(x)).sum()),
    "pairs of rows": (0, (4, 8), lambda s, x: s.b(s.c(x)) - s.b(s.c(x)).flip(0)),
    "normalized over rows": (0, (4, 8), lambda s, x: F.normalize(s.b(s.c(x)), dim=0)),
}


def run_axis(name, var):
    axis, shape, forward = AXES[name]
    model = Net(forward, g=lambda: nn.GRU(8, 6), b=linear(6, 2), c=linear(8, 6)).eval()
    x = rows(1, *shape)[0] if shape else torch.tensor(0.3)
    truth = truth_of_calls(model, x, add_noise(var), draws=1500)
    return check(model, x, var, truth, batch_dim=axis)


@pytest.mark.parametrize("network", some_fast(NETWORKS, 3))
@pytest.mark.parametrize("noise", NOISES)
def test_noises(noise, network):
    found = run_noise(noise, network)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("noise", some_fast(["each", "first", "all"], 3))
@pytest.mark.parametrize("name", TWO)
def test_several_inputs(name, noise):
    """One number for several inputs is refused, and so is an output of a class of one's own."""
    found = run_two(name, noise)
    assert "WRONG" not in found, found
    assert (found == "refused") == (noise == "all" or name == "namespace out"), found


@pytest.mark.parametrize("name", some_fast(SCALES, 5))
def test_scales(name):
    found = run_scale(name)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("name", ODD_TYPES)
def test_narrow_types(name):
    found = run_type(name)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("name", some_fast(OFFSETS, 3))
def test_readings_far_from_zero(name):
    found = run_offset(name)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("var", some_fast([0.1, 0.001], 2))
@pytest.mark.parametrize("name", some_fast(AXES, 4))
def test_batch_axes(name, var):
    found = run_axis(name, var)
    assert "WRONG" not in found, found
