"""Third attack, models: torch.func, gradients of one's own, hooks, growth, views, layers."""

import collections
import contextlib
import functools
import math
import threading
import types

import numpy as np
import pytest
import torch
from third import (
    WIDTH,
    Net,
    add_noise,
    check,
    linear,
    rows,
    some_fast,
    truth_of_calls,
    truth_of_rows,
)
from torch import nn
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vmap,
)
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, rnn

MLP = linear(WIDTH, 12, 3)


# Gradients of one's own.


def function_of(forward, backward):
    """An operation with a backward pass that is given as a function of its input and gradient."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return forward(z)

        @staticmethod
        def backward(ctx, gradient):
            return backward(ctx.saved_tensors[0], gradient)

    return Own.apply


GRADIENTS = {
    "right": function_of(torch.sin, lambda z, g: g * z.cos()),
    "sign": function_of(torch.sin, lambda z, g: -g * z.cos()),
    "zero": function_of(torch.sin, lambda z, g: 0 * g),
    "double": function_of(torch.sin, lambda z, g: 2 * g * z.cos()),
    "clipped": function_of(torch.sin, lambda z, g: (g * z.cos()).clamp(-0.01, 0.01)),
    "normalized": function_of(torch.sin, lambda z, g: F.normalize(g * z.cos(), dim=-1)),
    "sign of gradient": function_of(torch.sin, lambda z, g: (g * z.cos()).sign()),
    "permuted": function_of(torch.sin, lambda z, g: (g * z.cos()).flip(-1)),
    "one unit wrong": function_of(
        torch.sin, lambda z, g: g * z.cos() * torch.tensor([5.0] + [1.0] * 11)
    ),
    "straight-through": function_of(torch.round, lambda z, g: g),
    "surrogate": function_of(lambda z: (z > 0).to(z), lambda z, g: g / (1 + 10 * z.abs()).square()),
    "reversed": function_of(lambda z: z.clone(), lambda z, g: -g),
    "guided relu": function_of(torch.relu, lambda z, g: g.relu() * (z > 0)),
    "noisy": function_of(torch.sin, lambda z, g: g * z.cos() + 0.3 * z.sin()),
    "none": function_of(torch.sin, lambda z, g: None),
    "half precision": function_of(torch.sin, lambda z, g: (g * z.cos()).half().float()),
}


def with_gradient(name):
    own = GRADIENTS[name]
    return Net(lambda s, x: s.b(own(s.a(x))), a=linear(WIDTH, 12), b=linear(12, 3)).eval()


# Transforms of torch.func.


def functional(s, x):
    return functional_call(s.net, dict(s.net.named_parameters()), (x,))


def changed_weights(s, x):
    return functional_call(s.net, {k: 2 * v for k, v in s.net.named_parameters()}, (x,))


def stacked(s, x):
    parameters, buffers = stack_module_state([s.a, s.b])
    run = lambda p, b: functional_call(s.a, (p, b), (x,))  # noqa: E731
    return vmap(run)(parameters, buffers).mean(0)


def hypernetwork(s, x):
    weights = s.hyper(x).reshape(-1, 3, WIDTH)
    return vmap(torch.mv)(weights, x)


def fast_weights(s, x):
    """A step of gradient descent on every row before it is predicted."""

    def loss(weight, row):
        return (row @ weight).square().sum()

    weight = s.weight
    steps = vmap(grad(loss), (None, 0))(weight, x)
    return torch.einsum("bi,bio->bo", x, weight - 0.01 * steps)


FUNCTIONAL = {
    "functional call": lambda: Net(functional, net=MLP),
    "doubled weights": lambda: Net(changed_weights, net=MLP),
    "stacked": lambda: Net(stacked, a=MLP, b=MLP),
    "vmap": lambda: Net(lambda s, x: vmap(s.net)(x), net=MLP),
    "vmap in chunks": lambda: Net(lambda s, x: vmap(s.net, chunk_size=2)(x), net=MLP),
    "vmap over columns": lambda: Net(
        lambda s, x: vmap(torch.tanh, in_dims=1, out_dims=1)(s.net(x)), net=MLP
    ),
    "forces": lambda: Net(lambda s, x: vmap(grad(lambda r: s.net(r).sum()))(x)[:, :3], net=MLP),
    "jacobian": lambda: Net(lambda s, x: vmap(jacrev(s.net))(x)[:, :, 0], net=MLP),
    "forward jacobian": lambda: Net(lambda s, x: vmap(jacfwd(s.net))(x)[:, :, 0], net=MLP),
    "hessian": lambda: Net(
        lambda s, x: vmap(hessian(lambda r: s.net(r).sum()))(x)[:, 0, :3], net=MLP
    ),
    "jvp": lambda: Net(lambda s, x: jvp(s.net, (x,), (torch.ones_like(x),))[1], net=MLP),
    "linearized": lambda: Net(lambda s, x: linearize(s.net, torch.zeros_like(x))[1](x), net=MLP),
    "hypernetwork": lambda: Net(hypernetwork, hyper=linear(WIDTH, 3 * WIDTH)),
    "fast weights": lambda: Net(
        fast_weights, weight=lambda: nn.Parameter(torch.randn(WIDTH, 3) / 6)
    ),
    "divergence": lambda: Net(
        lambda s, x: vmap(lambda r: jacrev(s.net)(r)[:3, :3].diagonal())(x), net=MLP
    ),
    "energy by autograd": lambda: Net(energy, net=MLP),
    "detached energy": lambda: Net(functools.partial(energy, create=False), net=MLP),
}


def energy(s, x, create=True):
    """Forces from the gradient of an energy, as networks of molecules have them."""
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        total = s.net(x).square().sum()
        return torch.autograd.grad(total, x, create_graph=create)[0][:, :3]


# Weights that are not leaves, are shared, pruned, quantized or sparse.


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


def parametrized(make):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)
        )
        make(net)
        return net

    return build


class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a, self.b = nn.Parameter(torch.randn(4, WIDTH) / 6), nn.Parameter(torch.randn(12, 4))

    def forward(self, x):
        return self.base(x) + x @ self.a.mT @ self.b.mT


def quantized():
    torch.manual_seed(0)
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(MLP().eval(), {nn.Linear})


def sparse_weight(layout):
    def build():
        torch.manual_seed(0)
        weight = torch.randn(3, WIDTH) * (torch.rand(3, WIDTH) > 0.5)
        kept = weight.to_sparse() if layout == "coo" else weight.to_sparse_csr()
        return Net(lambda s, x: torch.sparse.mm(kept, x.mT).mT.tanh())

    return build


def weight(outputs):
    """What makes a weight of so many rows."""
    return lambda: nn.Parameter(torch.randn(outputs, WIDTH) / 6)


def tied(s, x):
    return F.linear(torch.tanh(F.linear(x, s.w)), s.w.mT)[:, :3]


WEIGHTS = {
    "weight norm": parametrized(lambda n: parametrizations.weight_norm(n[0])),
    "spectral norm": parametrized(lambda n: parametrizations.spectral_norm(n[0])),
    "orthogonal": parametrized(lambda n: parametrizations.orthogonal(n[2])),
    "symmetric": parametrized(
        lambda n: parametrize.register_parametrization(n[2], "weight", Symmetric())
    ),
    "pruned": parametrized(lambda n: prune.random_unstructured(n[0], "weight", 0.5)),
    "pruned channels": parametrized(lambda n: prune.ln_structured(n[2], "weight", 0.5, 2, 0)),
    "tied": lambda: Net(tied, w=weight(12)),
    "twice": lambda: Net(lambda s, x: s.b(s.a(s.a(x).tanh())), a=linear(WIDTH, WIDTH), b=MLP),
    "shared": lambda: (lambda layer: nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer))(
        nn.Linear(WIDTH, WIDTH)
    ),
    "lora": lambda: nn.Sequential(Lora(nn.Linear(WIDTH, 12)), nn.Tanh(), nn.Linear(12, 3)),
    "quantized": quantized,
    "sparse": sparse_weight("coo"),
    "sparse csr": sparse_weight("csr"),
    "weight as buffer": lambda: Net(
        lambda s, x: x @ s.w, w=lambda: nn.Buffer(torch.randn(WIDTH, 3))
    ),
    "weight as attribute": lambda: (lambda w: Net(lambda s, x: (x @ w).sin()))(
        torch.randn(WIDTH, 3)
    ),
    "frozen": lambda: MLP().requires_grad_(requires_grad=False),
    "float16 weights": lambda: Net(lambda s, x: s.net(x.half()).float(), net=lambda: MLP().half()),
    "bfloat16 weights": lambda: Net(
        lambda s, x: s.net(x.bfloat16()).float(), net=lambda: MLP().bfloat16()
    ),
    "double weights": lambda: Net(lambda s, x: s.net(x.double()), net=lambda: MLP().double()),
    "complex weights": lambda: (lambda w: Net(lambda s, x: (x.to(w.dtype) @ w).abs()))(
        torch.randn(WIDTH, 3, dtype=torch.complex64)
    ),
    "embedding bag": lambda: Net(
        lambda s, x: x[:, :8] @ s.e(s.i, None, None).mT,
        e=lambda: nn.EmbeddingBag(5, 8),
        i=lambda: nn.Buffer(torch.tensor([[1, 2], [3, 4], [0, 1]])),
    ),
    "inference weights": lambda: in_inference_mode(MLP),
    "low rank": lambda: (lambda u, v: Net(lambda s, x: torch.linalg.multi_dot([x, u, v])))(
        torch.randn(WIDTH, 2), torch.randn(2, 3)
    ),
    "binary": lambda: Net(lambda s, x: F.linear(x, s.w.sign()).tanh(), w=weight(3)),
    "weights by softmax": lambda: Net(lambda s, x: x @ s.w.softmax(1).mT, w=weight(3)),
}


def in_inference_mode(make):
    with torch.inference_mode():
        return make()


# Hooks.


def hooked(add):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 3))
        add(net)
        return net

    return build


def spy(kept):
    """A hook that keeps what it sees."""
    return lambda module, args, out: kept.append(out)


HOOKS = {
    "doubled output": hooked(lambda n: n[0].register_forward_hook(lambda m, a, out: 2 * out)),
    "clamped output": hooked(
        lambda n: n[2].register_forward_hook(lambda m, a, out: out.clamp(-0.1, 0.1))
    ),
    "detached output": hooked(lambda n: n[0].register_forward_hook(lambda m, a, out: out.detach())),
    "half detached": hooked(
        lambda n: n[0].register_forward_hook(
            lambda m, a, out: torch.cat([out[:, :6], out[:, 6:].detach()], 1)
        )
    ),
    "changed input": hooked(lambda n: n.register_forward_pre_hook(lambda m, a: (a[0].square(),))),
    "written output": hooked(lambda n: n[0].register_forward_hook(lambda m, a, out: out.mul_(3))),
    "written input": hooked(
        lambda n: n[0].register_forward_pre_hook(
            lambda m, a: a[0].mul_(2) and None if False else None
        )
    ),
    "zeroed gradient": hooked(
        lambda n: n[0].register_full_backward_hook(lambda m, i, o: (0 * i[0],))
    ),
    "doubled gradient": hooked(
        lambda n: n[2].register_full_backward_pre_hook(lambda m, o: (2 * o[0],))
    ),
    "clipped gradient": hooked(
        lambda n: n[2].register_full_backward_hook(lambda m, i, o: (i[0].clamp(-1e-3, 1e-3),))
    ),
    "kept outputs": hooked(lambda n: n[0].register_forward_hook(spy([]))),
    "kept in module": hooked(
        lambda n: n[0].register_forward_hook(lambda m, a, out: setattr(m, "last", out))
    ),
    "removed itself": hooked(lambda n: removing(n[0])),
    "hook on a weight": hooked(lambda n: n[0].weight.register_hook(lambda g: 0 * g)),
    "always called": hooked(
        lambda n: n[0].register_forward_hook(lambda m, a, out: out + 1, always_call=True)
    ),
    "with keywords": hooked(
        lambda n: n[0].register_forward_hook(lambda m, a, k, out: out.sin(), with_kwargs=True)
    ),
    "patched forward": hooked(
        lambda n: setattr(n[0], "forward", lambda x: F.linear(x, n[0].weight).sin())
    ),
    "patched by method": hooked(
        lambda n: setattr(
            n[0], "forward", types.MethodType(lambda s, x: 2 * F.linear(x, s.weight), n[0])
        )
    ),
}


def removing(module):
    """A hook that is there for one call only."""

    def hook(m, args, out):
        handle.remove()
        return out

    handle = module.register_forward_hook(hook)


# What a model keeps from call to call.


class Growing(nn.Module):
    """Keeps something in every call that later calls may use."""

    def __init__(self, keep, start):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.keep, self.memory = MLP(), keep, start

    def forward(self, x):
        y = self.net(x)
        return y if (kept := self.keep(self, y)) is None else kept


def cat_buffer(s, y):
    s.memory = torch.cat([s.memory, y.detach().mean(0, keepdim=True)])
    return y * len(s.memory)


def append(s, y):
    s.memory.append(y)
    return y + len(s.memory)


def push(s, y):
    s.memory.append(float(len(y)))
    return y * len(s.memory)


def count_shapes(s, y):
    s.memory[tuple(y.shape)] = s.memory.get(tuple(y.shape), 0) + 1
    return y * s.memory[tuple(y.shape)]


def module_grows(s, y):
    s.add_module(f"layer{len(s._modules)}", nn.Identity())
    return y * len(s._modules)


def remembers_first(s, y):
    if not s.memory:
        s.memory.append(y.detach().mean())
    return y - s.memory[0]


def remembers_last(s, y):
    last, s.memory = s.memory, y.detach()
    return y if last is None or last.shape != y.shape else 0.5 * (y + last)


def alternates(s, y):
    s.memory = not s.memory
    return y if s.memory else 2 * y


def counts_in_array(s, y):
    s.memory += 1
    return y * float(s.memory[0])


GROWING = {
    "buffer": lambda: Growing(cat_buffer, torch.zeros(1, 3)),
    "list": lambda: Growing(append, []),
    "deque": lambda: Growing(push, collections.deque(maxlen=3)),
    "shapes": lambda: Growing(count_shapes, {}),
    "modules": lambda: Growing(module_grows, None),
    "first": lambda: Growing(remembers_first, []),
    "last": lambda: Growing(remembers_last, None),
    "alternates": lambda: Growing(alternates, False),
    "array": lambda: Growing(counts_in_array, np.ones(1)),
}


# What a model returns of its input.

VIEWS = {
    "itself": lambda x: x,
    "view": lambda x: x.view(len(x), -1),
    "part": lambda x: x[:, :3],
    "every other": lambda x: x[:, ::2],
    "transposed twice": lambda x: x.mT.mT,
    "expanded": lambda x: x[:, :1].expand(-1, 3),
    "strided": lambda x: x.contiguous().as_strided((len(x), 3), (x.shape[1], 2)),
    "windows": lambda x: x.unfold(1, 4, 4),
    "split": lambda x: x.split(10, 1),
    "chunks": lambda x: list(x.chunk(4, 1)),
    "unbound": lambda x: x[:, :3].unbind(1),
    "flipped": lambda x: x.flip(1),
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "clone": lambda x: x.clone(),
    "itself twice": lambda x: {"a": x, "b": x},
    "beside a sum": lambda x: (x, x.sum(1)),
    "real part": lambda x: torch.complex(x, x).real,
    "written": lambda x: x.add_(1),
    "clamped in place": lambda x: x.clamp_(-1, 1),
    "one column written": lambda x: x.index_fill_(1, torch.tensor([0]), 2.0) * 2,
    "written through a view": lambda x: (x[:, :3].mul_(2), x)[1],
    "written by out=": lambda x: (
        torch.sin(x, out=torch.empty_like(x)) if not x.requires_grad else x.sin()
    ),
    "relu in place": lambda x: F.relu(x, inplace=True),
    "sorted in place": lambda x: (
        x.copy_(x.sort(1).values) if not x.requires_grad else x.sort(1).values
    ),
    "by numpy view": lambda x: torch.from_numpy(x.detach().numpy()[:, ::-1].copy()),
    "pinned": lambda x: x.contiguous(memory_format=torch.contiguous_format) * 1,
}


# Layers and algorithms.


def rk4(s, x):
    z, h = s.a(x), 0.2
    for _ in range(5):
        k1 = s.f(z)
        k2 = s.f(z + h / 2 * k1)
        k3 = s.f(z + h / 2 * k2)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + s.f(z + h * k3))
    return z[:, :3]


def equilibrium(s, x):
    """Fixed-point iterations until all rows have converged."""
    z, u = torch.zeros(len(x), 12), s.a(x)
    for _ in range(60):
        new = torch.tanh(0.5 * s.f(z) + u)
        if float((new - z).abs().max()) < 1e-6:
            break
        z = new
    return z[:, :3]


def mixture_of_experts(k, soft):
    def run(s, x):
        scores = s.g(x)
        values, chosen = scores.topk(k, 1)
        weights = values.softmax(1) if soft else torch.ones_like(values)
        experts = torch.stack([s.a(x), s.b(x), s.c(x)], 1)
        picked = experts.gather(1, chosen[:, :, None].expand(-1, -1, 3))
        return (weights[:, :, None] * picked).sum(1)

    return lambda: Net(run, g=linear(WIDTH, 3), a=MLP, b=MLP, c=MLP)


def masked_experts(s, x):
    """Experts that run on the rows that chose them."""
    chosen, out = s.g(x).argmax(1), torch.zeros(len(x), 3)
    for number, expert in enumerate((s.a, s.b)):
        mask = chosen == number
        if mask.any():
            out[mask] = expert(x[mask])
    return out


def tree(s, x):
    """A decision tree of depth 2 with linear leaves."""
    left, low = x[:, 0] > 0, x[:, 1] > 0.3
    leaves = torch.stack([s.a(x), s.b(x), s.c(x), s.d(x)], 1)
    return leaves[torch.arange(len(x)), 2 * left.long() + low.long()]


def knn(s, x):
    near = torch.cdist(x, s.points).topk(3, 1, largest=False).indices
    return s.values[near].mean(1)


def gaussian_process(s, x):
    k = torch.exp(-torch.cdist(x, s.points).square() / WIDTH)
    return k @ torch.linalg.solve(
        torch.exp(-torch.cdist(s.points, s.points).square() / WIDTH) + 0.1 * torch.eye(20), s.values
    )


def squash(z):
    n = z.square().sum(-1, keepdim=True)
    return n / (1 + n) * z / n.sqrt()


def rodrigues(s, x):
    """A rotation of a vector by an axis and an angle."""
    w = s.a(x)[:, :3]
    angle = w.norm(dim=1, keepdim=True)
    axis, v = w / angle, torch.tensor([[1.0, 0.0, 0.0]]).expand(len(x), 3)
    return (
        v * angle.cos()
        + torch.linalg.cross(axis, v) * angle.sin()
        + axis * (axis * v).sum(1, keepdim=True) * (1 - angle.cos())
    )


def kalman(s, x):
    """A filter over the readings of a row."""
    m, p = torch.zeros(len(x)), torch.ones(len(x))
    for t in range(WIDTH):
        p = p + 0.1
        k = p / (p + 0.5)
        m = m + k * (x[:, t] - m)
        p = (1 - k) * p
    return m[:, None]


def viterbi(s, x):
    """The score of the best path."""
    z = s.a(x).reshape(-1, 4, 3)
    best = z[:, 0]
    for t in range(1, 4):
        best = (best[:, :, None] + s.w[None, :3, :3]).amax(1) + z[:, t]
    return best.amax(1, keepdim=True)


def soft_argmax(s, x):
    return (s.a(x).softmax(1) * torch.arange(12.0)).sum(1, keepdim=True)


def rotary(s, x):
    z = x.reshape(-1, 4, 10)
    angle = torch.arange(4.0)[:, None]
    turned = torch.cat(
        [
            z[..., :5] * angle.cos() - z[..., 5:] * angle.sin(),
            z[..., :5] * angle.sin() + z[..., 5:] * angle.cos(),
        ],
        -1,
    )
    return F.scaled_dot_product_attention(turned, turned, z, is_causal=True).flatten(1)[:, :3]


def coupling(s, x):
    a, b = x[:, :20], x[:, 20:]
    h = s.net(a)
    return (b * h[:, :20].tanh().exp() + h[:, 20:])[:, :3]


def scan(s, x):
    """A linear recurrence with gates of the input."""
    z, h, out = s.a(x).reshape(-1, 4, 3), torch.zeros(len(x), 3), []
    for t in range(4):
        gate = z[:, t].sigmoid()
        h = gate * h + (1 - gate) * z[:, t]
        out.append(h)
    return torch.stack(out, 1)


def message_passing(s, x):
    nodes = x.reshape(-1, 8, 5)
    sources, targets = torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.tensor([1, 2, 3, 4, 5, 6, 7])
    for _ in range(2):
        nodes = nodes + torch.zeros_like(nodes).index_add(1, targets, s.f(nodes[:, sources]))
    return nodes.mean(1)


def histogram(s, x):
    return torch.stack([torch.histc(row, 5, -3, 3) for row in x.detach()])


def padded(s, x):
    lengths = torch.tensor([2 + i % 4 for i in range(len(x))])
    packed = rnn.pack_padded_sequence(
        x.reshape(-1, 5, 8), lengths, batch_first=True, enforce_sorted=False
    )
    return s.out(s.gru(packed)[1][0])


def early_exit(s, x):
    """Rows that are sure leave after the first head."""
    y = s.a(x)
    return torch.where(y.softmax(1).amax(1, keepdim=True) > 0.5, y, s.b(x))


def beam(s, x):
    z = s.a(x)
    top = z.topk(3, 1).values
    return top.logsumexp(1, keepdim=True)


def nms(s, x):
    """The box of the largest score, among those that do not overlap."""
    z = s.a(x).reshape(-1, 4, 3)
    keep = z[..., 2].argmax(1)
    return z[torch.arange(len(z)), keep, :2]


def interpolated(s, x):
    """A table that is looked up between its nodes."""
    z = s.a(x)[:, :1].clamp(-0.99, 0.99)
    place = (z + 1) * 4
    low = place.floor().long().clamp(max=7)
    table = torch.tensor([0.0, 1.0, 0.5, 2.0, -1.0, 0.0, 3.0, 1.0, 0.0])
    return table[low] + (place - low) * (table[low + 1] - table[low])


def layers(*parts):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(*[part() for part in parts])

    return build


def reshaped(*shape):
    return lambda: nn.Unflatten(1, shape)


IMAGE = reshaped(1, 5, 8)
ALGORITHMS = {
    "runge-kutta": lambda: Net(rk4, a=linear(WIDTH, 12), f=linear(12, 12, 12)),
    "equilibrium": lambda: Net(equilibrium, a=linear(WIDTH, 12), f=linear(12, 12)),
    "experts, best": mixture_of_experts(1, soft=False),
    "experts, two": mixture_of_experts(2, soft=True),
    "experts by mask": lambda: Net(masked_experts, g=linear(WIDTH, 2), a=MLP, b=MLP),
    "tree": lambda: Net(tree, a=MLP, b=MLP, c=MLP, d=MLP),
    "nearest neighbors": lambda: Net(
        knn,
        points=lambda: nn.Buffer(torch.randn(20, WIDTH)),
        values=lambda: nn.Buffer(torch.randn(20, 3)),
    ),
    "gaussian process": lambda: Net(
        gaussian_process,
        points=lambda: nn.Buffer(torch.randn(20, WIDTH)),
        values=lambda: nn.Buffer(torch.randn(20, 3)),
    ),
    "capsules": lambda: Net(lambda s, x: squash(s.a(x).reshape(-1, 4, 3)), a=linear(WIDTH, 12)),
    "rotation": lambda: Net(rodrigues, a=MLP),
    "kalman filter": lambda: Net(kalman),
    "viterbi": lambda: Net(viterbi, a=linear(WIDTH, 12), w=weight(3)),
    "soft argmax": lambda: Net(soft_argmax, a=linear(WIDTH, 12)),
    "sharp soft argmax": lambda: Net(
        lambda s, x: ((40 * s.a(x)).softmax(1) * torch.arange(12.0)).sum(1, keepdim=True),
        a=linear(WIDTH, 12),
    ),
    "rotary attention": lambda: Net(rotary),
    "coupling": lambda: Net(coupling, net=linear(20, 40)),
    "scan": lambda: Net(scan, a=linear(WIDTH, 12)),
    "message passing": lambda: Net(message_passing, f=linear(5, 5)),
    "histogram": lambda: Net(histogram),
    "packed sequence": lambda: Net(
        padded, gru=lambda: nn.GRU(8, 6, batch_first=True), out=linear(6, 3)
    ),
    "early exit": lambda: Net(early_exit, a=MLP, b=MLP),
    "beam": lambda: Net(beam, a=linear(WIDTH, 12)),
    "best box": lambda: Net(nms, a=linear(WIDTH, 12)),
    "interpolation": lambda: Net(interpolated, a=MLP),
    "maxout": lambda: Net(lambda s, x: s.a(x).reshape(-1, 3, 4).amax(2), a=linear(WIDTH, 12)),
    "layer norm of two": lambda: Net(lambda s, x: F.layer_norm(s.a(x), (2,)), a=linear(WIDTH, 2)),
    "instance norm": layers(
        IMAGE,
        lambda: nn.Conv2d(1, 3, 3),
        lambda: nn.InstanceNorm2d(3),
        nn.Flatten,
        lambda: nn.Linear(54, 2),
    ),
    "group norm": layers(
        IMAGE,
        lambda: nn.Conv2d(1, 4, 3),
        lambda: nn.GroupNorm(2, 4),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(72, 2),
    ),
    "batch norm": layers(
        IMAGE,
        lambda: nn.Conv2d(1, 4, 3),
        lambda: nn.BatchNorm2d(4),
        nn.SiLU,
        nn.Flatten,
        lambda: nn.Linear(72, 2),
    ),
    "max pools": layers(
        IMAGE,
        lambda: nn.Conv2d(1, 4, 3, padding=1),
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        lambda: nn.Linear(32, 2),
    ),
    "global max pool": layers(
        IMAGE, lambda: nn.Conv2d(1, 4, 3), lambda: nn.AdaptiveMaxPool2d(1), nn.Flatten
    ),
    "transposed convolution": layers(
        IMAGE, lambda: nn.ConvTranspose2d(1, 2, 3), nn.ELU, nn.Flatten, lambda: nn.Linear(140, 2)
    ),
    "unpooling": lambda: Net(
        lambda s, x: F.max_unpool1d(*F.max_pool1d(x[:, None], 2, return_indices=True), 2).flatten(
            1
        )[:, :6]
    ),
    "squeeze and excite": lambda: Net(lambda s, x: s.a(x) * s.b(x).sigmoid(), a=MLP, b=MLP),
    "one relu at the end": layers(lambda: nn.Linear(WIDTH, 1), nn.ReLU),
    "one sigmoid at the end": layers(lambda: nn.Linear(WIDTH, 1), nn.Sigmoid),
    "steep sigmoid": lambda: Net(lambda s, x: (30 * s.a(x)).sigmoid(), a=MLP),
    "two units": layers(lambda: nn.Linear(WIDTH, 2), nn.Tanh, lambda: nn.Linear(2, 3)),
    "steep unit": lambda: Net(
        lambda s, x: s.b((20 * s.a(x)).tanh()), a=linear(WIDTH, 1), b=linear(1, 3)
    ),
    "exponential": lambda: Net(lambda s, x: (6 * s.a(x)).exp(), a=MLP),
    "logarithm": lambda: Net(lambda s, x: s.a(x).abs().log(), a=MLP),
    "ratio": lambda: Net(lambda s, x: s.a(x)[:, :1] / (0.05 + s.a(x)[:, 1:].square()), a=MLP),
    "power": lambda: Net(lambda s, x: s.a(x).abs().pow(s.b(x)), a=MLP, b=MLP),
    "heading": lambda: Net(lambda s, x: torch.atan2(*s.a(x)[:, :2].unbind(1))[:, None], a=MLP),
    "wrapped angle": lambda: Net(lambda s, x: (4 * s.a(x)).remainder(2 * math.pi), a=MLP),
    "quantized output": lambda: Net(lambda s, x: (s.a(x) * 10).round() / 10, a=MLP),
    "rare alarm": lambda: Net(lambda s, x: s.a(x) + 5 * (s.a(x) > 0.4), a=MLP),
    "hysteresis": lambda: Net(lambda s, x: torch.where(s.a(x).abs() < 0.2, 0.0, s.a(x)), a=MLP),
    "if of a row": lambda: Net(
        lambda s, x: torch.stack([r.sin() if float(r[0]) > 0 else r.cos() for r in s.a(x)]), a=MLP
    ),
    "transformer layer": lambda: Net(
        lambda s, x: s.t(x.reshape(-1, 5, 8)).mean(1),
        t=lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ),
    "bidirectional": lambda: Net(
        lambda s, x: s.g(x.reshape(-1, 5, 8))[0].mean(1),
        g=lambda: nn.LSTM(8, 3, bidirectional=True, batch_first=True),
    ),
    "attention weights": lambda: Net(
        lambda s, x: s.m(*3 * [x.reshape(-1, 5, 8)])[1].flatten(1),
        m=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "cosine head": lambda: Net(
        lambda s, x: F.cosine_similarity(s.a(x)[:, None], s.w[None], dim=2),
        a=linear(WIDTH, 12),
        w=lambda: nn.Buffer(torch.randn(3, 12)),
    ),
    "distance to prototypes": lambda: Net(
        lambda s, x: -torch.cdist(s.a(x), s.w),
        a=linear(WIDTH, 12),
        w=lambda: nn.Buffer(torch.randn(3, 12)),
    ),
    "gradient checkpoint": lambda: Net(
        lambda s, x: torch.utils.checkpoint.checkpoint(s.a, x, use_reentrant=False), a=MLP
    ),
    "autocast": lambda: Net(autocast, a=MLP),
    "compiled part": lambda: Net(
        lambda s, x: s.a(x), a=lambda: torch.jit.trace(MLP().eval(), torch.ones(1, WIDTH))
    ),
    "exported": lambda: torch.export.export(
        MLP().eval(),
        (torch.ones(2, WIDTH),),
        dynamic_shapes=({0: torch.export.Dim("b", max=10**6)},),
    ).module(),
    "fx": lambda: torch.fx.symbolic_trace(MLP()),
    "scripted": lambda: torch.jit.script(MLP()),
    "frozen script": lambda: torch.jit.freeze(torch.jit.script(MLP().eval())),
    "in a thread": lambda: Net(threaded, a=MLP),
    "without gradients by a decorator": lambda: Net(torch.no_grad()(lambda s, x: s.a(x)), a=MLP),
    "inference mode": lambda: Net(torch.inference_mode()(lambda s, x: s.a(x)), a=MLP),
    "gradients switched": lambda: Net(switched, a=MLP, b=MLP),
    "double branch": lambda: Net(
        lambda s, x: s.a(x.double().float()) + s.b(x.half().float()), a=MLP, b=MLP
    ),
    "integers in between": lambda: Net(lambda s, x: s.a((x * 50).int().float() / 50), a=MLP),
    "string keys": lambda: Net(lambda s, x: {"a b": s.a(x), "": s.b(x)}, a=MLP, b=MLP),
}


def autocast(s, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return s.a(x).float()


def threaded(s, x):
    """A pass in a thread of its own."""
    out = []
    thread = threading.Thread(target=lambda: out.append(s.a(x)))
    thread.start()
    thread.join()
    return out[0]


def switched(s, x):
    """One branch with gradients, one without."""
    with torch.set_grad_enabled(mode=False):
        b = s.b(x)
    return s.a(x) + b


def of_view(name):
    return Net(lambda s, x: VIEWS[name](x)).eval()


CASES = {
    **{f"gradient: {name}": functools.partial(with_gradient, name) for name in GRADIENTS},
    **{f"func: {name}": make for name, make in FUNCTIONAL.items()},
    **{f"weights: {name}": make for name, make in WEIGHTS.items()},
    **{f"hook: {name}": make for name, make in HOOKS.items()},
    **{f"grows: {name}": make for name, make in GROWING.items()},
    **{f"view: {name}": functools.partial(of_view, name) for name in VIEWS},
    **{f"layer: {name}": make for name, make in ALGORITHMS.items()},
}


def run(name, var, seed=0, **options):
    """The outcome for a model of the table."""
    torch.manual_seed(seed)
    model, x = CASES[name](), rows(seed=seed + 1)
    with contextlib.suppress(NotImplementedError):
        model.eval()
    if name.startswith("grows") or name in ONE_BY_ONE:
        truth = truth_of_calls(model, x, add_noise(var))
    else:
        truth = truth_of_rows(model, x, var)
    return check(model, x, var, truth, **options)


ONE_BY_ONE = {"layer: packed sequence", "hook: removed itself"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_fast(CASES, 4))
def test_models(name):
    found = run(name, 0.01)
    assert "WRONG" not in found, found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("var", [1e-4, 0.1])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_models_at_other_inputs(name, seed, var):
    found = run(name, var, seed)
    assert "WRONG" not in found, found
