"""Random programs from a seed: small modules made of everything that can mislead a method.

Each knows how its plain passes can be sampled, which is the truth that methods are held against.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTHS = (3, 4, 6)


class Scaled(torch.autograd.Function):
    """2 x, with a backward pass that is right, or wrong, or none."""

    @staticmethod
    def forward(context, x, slope):
        context.slope = slope
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return (None if context.slope is None else context.slope * gradient), None


@dataclass(frozen=True)
class Step:
    """One step of a program, (rows, width) to (rows, width).

    Attributes:
        run: The step; its second argument is a module with weights.
        kind: "move" (elements are moved or scaled one by one), "linear", or "curved".
        rows: Whether the rows of a batch do not influence each other.
        is_random: Whether it draws random numbers.
        is_flat: Whether the output has steps, or is flat near some inputs.
    """

    run: object
    kind: str = "curved"
    rows: bool = True
    is_random: bool = False
    is_flat: bool = False


class Weights(nn.Module):
    """Parameters that a step may use."""

    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.b = nn.Parameter(torch.randn(width))
        self.gru = nn.GRU(1, 3, batch_first=True)
        self.lstm = nn.LSTM(1, 3, batch_first=True)
        self.cell = nn.GRUCell(width, width)
        self.attend = nn.MultiheadAttention(width, 1, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.scores = nn.BatchNorm1d(width)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.register_buffer("order", torch.randperm(width))
        self.register_buffer("canvas", torch.zeros(1))


def _in_place_on_a_view(h, m):
    y = h.clone()
    y[:, :2].mul_(3.0)
    y[:, 0] += 1.0
    return y


def _in_place_between(h, m):
    y = torch.tanh(h)
    z = y * 2
    y = y.add(1)
    z.add_(y)
    return z


def _written_slices(h, m):
    y = torch.zeros_like(h)
    for i in range(h.shape[1]):
        y[:, i] = torch.tanh(h[:, i]) + (y[:, i - 1] if i else 0)
    return y


def _under(context):
    def run(h, m):
        with context():
            y = torch.tanh(h @ m.w)
        return y.clone()

    return run


def _partly_hidden(h, m):
    return 0.5 * torch.tanh(h) + 0.5 * torch.tanh(h).detach()


def _straight_through(h, m):
    return h + (torch.round(h * 2) / 2 - h).detach()


def _one_hot(h, m):
    return F.one_hot(h.argmax(1), h.shape[1]).to(h.dtype) + 0.1 * h


def _rows_attend(h, m):
    return torch.softmax(h @ h.T / 2, 1) @ h


def _batch_statistics(h, m):
    return (h - h.mean(0)) / (h.var(0, correction=0) + 0.5).sqrt()


def _encoder(h, m):
    mean, std = h @ m.w, 0.3 * torch.exp(0.2 * torch.tanh(h))
    return mean + std * torch.randn_like(std)


def _unfolded(h, m):
    return torch.stack([torch.tanh(row) for row in h.unbind(0)])


def _memory(h, m):
    state = torch.zeros_like(h)
    for _ in range(3):
        state = m.cell(h, state)
    return state


def _topk(h, m):
    values, _ = h.topk(h.shape[1], 1)
    return values


def _masked(h, m):
    return torch.where(h > 0, h, 0.2 * h)


def _boolean_write(h, m):
    y = h.clone()
    y[h < 0] = 0.0
    return y + 0.1 * h


def _attention(h, m):
    return h + m.attend(h[:, None], h[:, None], h[:, None], need_weights=False)[0][:, 0]


def _self_attention_over_features(h, m):
    q = h[:, :, None] * torch.ones(1, 1, 2, dtype=h.dtype)
    return h + F.scaled_dot_product_attention(q, q, q)[:, :, 0]


def _mixed_precision(h, m):
    return torch.tanh(h.double() @ m.w.double()).to(h.dtype)


STEPS = {
    "linear": Step(lambda h, m: h @ m.w + m.b, "linear"),
    "einsum": Step(lambda h, m: torch.einsum("bi,ji->bj", h, m.w), "linear"),
    "baddbmm": Step(lambda h, m: torch.addmm(m.b, h, m.w), "linear"),
    "transposed": Step(lambda h, m: (m.w @ h.T).T, "linear"),
    "conv": Step(lambda h, m: m.conv(h[:, None])[:, 0], "linear"),
    "cumsum": Step(lambda h, m: h.cumsum(1), "linear"),
    "mean taken off": Step(lambda h, m: h - 0.5 * h.mean(1, keepdim=True), "linear"),
    "flip": Step(lambda h, m: h.flip(1), "move"),
    "index": Step(lambda h, m: h[:, m.order], "move"),
    "gather": Step(lambda h, m: h.gather(1, m.order.expand(len(h), -1)), "move"),
    "roll": Step(lambda h, m: h.roll(1, 1), "move"),
    "strided": Step(lambda h, m: torch.cat([h[:, ::2], h[:, 1::2]], 1), "move"),
    "index_select": Step(lambda h, m: h.index_select(1, m.order), "move"),
    "stacked": Step(lambda h, m: torch.stack(h.unbind(1)[::-1], 1), "move"),
    "view in place": Step(_in_place_on_a_view, "move"),
    "scale": Step(lambda h, m: h * m.b + 1, "move"),
    "offset": Step(lambda h, m: h + 1000.0, "move"),
    "detach": Step(lambda h, m: h.detach() * 2, "move"),
    "data": Step(lambda h, m: h.data + 1, "move"),
    "scaled": Step(lambda h, m: Scaled.apply(h, 2.0), "move"),
    "wrong backward": Step(lambda h, m: Scaled.apply(h, 5.0), "move"),
    "no backward": Step(lambda h, m: Scaled.apply(h, None), "move"),
    "written slices": Step(_written_slices),
    "in place": Step(_in_place_between),
    "relu_": Step(lambda h, m: F.relu(h @ m.w + m.b, inplace=True)),
    "tanh": Step(lambda h, m: torch.tanh(h @ m.w)),
    "tanh transposed": Step(lambda h, m: torch.tanh((h @ m.w).T).T),
    "gelu": Step(lambda h, m: F.gelu(h @ m.w + m.b)),
    "silu": Step(lambda h, m: F.silu(h) + h),
    "softplus": Step(lambda h, m: F.softplus(h) - h),
    "elu": Step(lambda h, m: F.elu(h, 0.7)),
    "leaky": Step(lambda h, m: F.leaky_relu(h, 0.2)),
    "abs": Step(lambda h, m: h.abs() + 0.3 * h),
    "sin": Step(lambda h, m: torch.sin(h)),
    "softmax": Step(lambda h, m: torch.softmax(h, 1)),
    "layer norm": Step(lambda h, m: m.norm(h)),
    "batch norm": Step(lambda h, m: m.scores(h)),
    "product": Step(lambda h, m: h * torch.sigmoid(h @ m.w)),
    "bilinear": Step(lambda h, m: torch.einsum("bi,ij,bj->bi", h, m.w, h)),
    "square": Step(lambda h, m: h.square() / 4 + h, is_flat=True),
    "norm": Step(lambda h, m: h / (1 + h.norm(dim=1, keepdim=True))),
    "cosine": Step(lambda h, m: F.cosine_similarity(h[:, None], m.w[None], -1)),
    "gru": Step(lambda h, m: m.gru(h[:, :, None])[0].mean(2)),
    "lstm": Step(lambda h, m: h + m.lstm(h[:, :, None])[0].mean(2)),
    "cell": Step(_memory),
    "attention": Step(_attention),
    "feature attention": Step(_self_attention_over_features),
    "max": Step(lambda h, m: torch.maximum(h, h.flip(1)) + 0.1 * h),
    "amax": Step(lambda h, m: h - 0.5 * h.amax(1, keepdim=True)),
    "topk": Step(_topk),
    "sort": Step(lambda h, m: h.sort(1).values),
    "where": Step(_masked),
    "boolean write": Step(_boolean_write),
    "clamp": Step(lambda h, m: h.clamp(-1, 1) + 0.1 * h),
    "no_grad": Step(_under(torch.no_grad)),
    "inference_mode": Step(_under(torch.inference_mode)),
    "partly hidden": Step(_partly_hidden),
    "straight through": Step(_straight_through, is_flat=True),
    "round": Step(lambda h, m: torch.round(h * 4) / 4, is_flat=True),
    "sign": Step(lambda h, m: torch.sign(h) + 0.2 * h, is_flat=True),
    "one hot": Step(_one_hot, is_flat=True),
    "checkpoint": Step(
        lambda h, m: checkpoint(lambda v: torch.tanh(v @ m.w), h, use_reentrant=False)
    ),
    "reentrant checkpoint": Step(
        lambda h, m: checkpoint(lambda v: torch.tanh(v @ m.w), h, use_reentrant=True)
    ),
    "unfolded": Step(_unfolded),
    "mixed precision": Step(_mixed_precision),
    "rows attend": Step(_rows_attend, rows=False),
    "batch statistics": Step(_batch_statistics, rows=False),
    "rows summed": Step(lambda h, m: h + 0.3 * torch.tanh(h.sum(0)), rows=False),
    "rows shifted": Step(lambda h, m: 0.5 * h + h.roll(1, 0), rows=False),
    "encoder": Step(_encoder, is_random=True),
    "dropout left on": Step(lambda h, m: F.dropout(h, 0.3, True), is_random=True),
    "noisy": Step(lambda h, m: h + 0.2 * torch.randn(h.shape, dtype=h.dtype), is_random=True),
}


def _into_a_buffer(h, m):
    m.canvas.resize_(h.shape).copy_(h.detach())
    return torch.tanh(m.canvas @ m.w)


def _into_storage(h, m):
    y = torch.zeros_like(h)
    y.data_ptr()
    y.untyped_storage().copy_(h.detach().contiguous().untyped_storage())
    return y * 2


def _branch(h, m):
    return h if h.sum() > 0 else -2 * h


def _row_branch(h, m):
    return torch.stack([row if row[0] > 0 else -2 * row for row in h])


def _set_data(h, m):
    y = torch.zeros_like(h)
    y.data = h.data
    return y + 1


# Ways for a value to leave the graph. Numbers that are taken out of a call belong to all its rows.
LEAKS = {
    "item": Step(lambda h, m: h * h.mean().item(), rows=False),
    "float": Step(lambda h, m: h + float(h[0, 0]), rows=False),
    "int": Step(lambda h, m: h + int(10 * h[0, 0]), rows=False, is_flat=True),
    "tolist": Step(lambda h, m: torch.tensor(h.tolist(), dtype=h.dtype) @ m.w),
    "numpy": Step(lambda h, m: torch.from_numpy(h.detach().numpy() * 2)),
    "numpy that needs no gradient": Step(lambda h, m: torch.from_numpy(h.numpy() * 2)),
    "asarray": Step(lambda h, m: torch.as_tensor(np.tanh(np.asarray(h.detach())))),
    "tensor": Step(lambda h, m: torch.tensor(h) * 2),
    "copied tensor": Step(lambda h, m: h.new_tensor(h) * 2),
    "dlpack": Step(lambda h, m: torch.from_dlpack(h.detach()) * 2),
    "frombuffer": Step(
        lambda h, m: torch.frombuffer(
            bytearray(h.detach().contiguous().numpy().tobytes()), dtype=h.dtype
        ).reshape(h.shape)
    ),
    "mask": Step(lambda h, m: h * (h > 0)),
    "mask to numbers": Step(lambda h, m: (h > 0).to(h.dtype) + 0.1 * h, is_flat=True),
    "where": Step(lambda h, m: torch.where(h > 0.2, h, h.new_tensor(0.2))),
    "data": Step(lambda h, m: h.data * 2),
    "data set": Step(_set_data),
    "detach_": Step(lambda h, m: (h * 1).detach_() * 2),
    "buffer": Step(_into_a_buffer),
    "storage": Step(_into_storage),
    "if": Step(_branch, rows=False, is_flat=True),
    "if of a row": Step(_row_branch, is_flat=True),
    "nonzero": Step(lambda h, m: h * (1 + (h > 0).nonzero().shape[0]), rows=False, is_flat=True),
    "index of a maximum": Step(lambda h, m: h.gather(1, h.argmax(1, True)) + 0.2 * h),
    "long": Step(lambda h, m: (4 * h).long().to(h.dtype) / 4 + 0.1 * h, is_flat=True),
    "string": Step(lambda h, m: h * float(f"{float(h.sum()):.6f}"), rows=False),
    "deepcopy": Step(lambda h, m: copy.deepcopy(h.detach()) * 2),
    "requires_grad_": Step(lambda h, m: h.detach().requires_grad_() * 2),
    "set_grad_enabled": Step(_under(lambda: torch.set_grad_enabled(False))),
}
ALL = {**STEPS, **LEAKS}


@dataclass(frozen=True)
class Form:
    """How a program takes its inputs and gives its outputs."""

    inputs: str
    outputs: str
    batch_dim: int
    dtype: torch.dtype
    level: float


INPUTS = ("one", "two", "aside", "same twice", "expanded", "strided", "stationary")
OUTPUTS = ("plain", "pair", "named", "dead", "single")
LEVELS = (1e-4, 0.01, 0.1, 1.0, 3.0)


class Program(nn.Module):
    """Steps between inputs and a head with dropout of its own, which is off."""

    def __init__(self, names, form, width):
        super().__init__()
        self.names, self.form = names, form
        self.weights = nn.ModuleList(Weights(width) for _ in names)
        self.head = nn.Linear(width, 2)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("centre", torch.randn(width))

    def forward(self, x, other=None):
        axis, form = self.form.batch_dim, self.form
        h = x.movedim(axis, 0)
        if form.inputs in ("two", "aside", "same twice"):
            h = h + torch.tanh(other.movedim(axis, 0))
        if form.inputs == "stationary":
            h = (h - self.centre).square()
        for name, weights in zip(self.names, self.weights, strict=True):
            h = ALL[name].run(h, weights)
        y = self.head(self.drop(h)).movedim(0, axis)
        if form.outputs == "pair":
            return y, h.movedim(0, axis)
        if form.outputs == "named":
            return {"y": y, "rows": len(h)}
        if form.outputs == "dead":
            return torch.cat([y, torch.full_like(y, 3.0)], 1 - axis)
        return y.select(1 - axis, 0) if form.outputs == "single" and axis == 0 else y


@dataclass(frozen=True)
class Case:
    """A program with inputs and the variances of their noise."""

    program: Program
    inputs: tuple
    noise: tuple

    @property
    def steps(self):
        return [ALL[name] for name in self.program.names]

    @property
    def rows(self):
        return all(step.rows for step in self.steps)

    @property
    def is_random(self):
        return any(step.is_random for step in self.steps)

    @property
    def is_flat(self):
        return self.program.form.inputs == "stationary" or any(s.is_flat for s in self.steps)

    @property
    def is_exact_by_rules(self):
        """Whether elements stay independent and are only moved and scaled before the head."""
        plain = self.program.form.inputs in ("one", "expanded", "strided")
        return plain and all(step.kind == "move" for step in self.steps)

    def __str__(self):
        form = self.program.form
        return f"{' > '.join(self.program.names)} | {form}"


def case(seed, name=None):
    """The program of a seed; of one step and in the plainest form, if the step is named."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    width = choose.choice(WIDTHS)
    # Often as many rows as features: whoever guesses the batch axis by its length is caught.
    rows = choose.choice((1, 2, 3, width, width))
    form = Form(
        choose.choice((*INPUTS, "one", "one", "one")),
        choose.choice(OUTPUTS),
        choose.choice((0, 0, 0, 1)),
        choose.choice((torch.float32, torch.float32, torch.float64)),
        choose.choice(LEVELS),
    )
    if name is not None:
        form, rows = Form("one", "plain", 0, torch.float32, 0.3), 3
        return Case(*_plainest(name, form, rows, width, choose))
    names = [choose.choice(list(STEPS)) for _ in range(choose.choice((1, 1, 2, 3)))]
    program = (
        Program(names, form, width).to(form.dtype).eval().requires_grad_(choose.random() < 0.5)
    )
    inputs, noise = _inputs(program, form, rows, width, choose)
    return Case(program, inputs, noise)


def _plainest(name, form, rows, width, choose):
    program = Program([name], form, width).eval().requires_grad_(False)
    return program, *_inputs(program, form, rows, width, choose)


def _inputs(program, form, rows, width, choose):
    x = torch.randn(rows, width, dtype=form.dtype)
    if form.inputs == "expanded":
        x = torch.randn(1, width, dtype=form.dtype).expand(rows, width)
    if form.inputs == "stationary":
        x = program.centre.expand(rows, width)
    if form.batch_dim == 1:
        x = x.T if form.inputs == "strided" else x.T.contiguous()
    elif form.inputs == "strided":
        x = torch.randn(width, rows, dtype=form.dtype).T
    own = torch.full(x.shape, form.level**2, dtype=form.dtype)
    if choose.random() < 0.25:  # Some sensors have no noise.
        own.select(1 - form.batch_dim, 0).zero_()
    if form.inputs in ("two", "aside", "same twice"):
        other = x if form.inputs == "same twice" else torch.randn_like(x)
        return (x, other), (own, None if form.inputs == "aside" else own / 4)
    return (x,), (own,)


def truth(case, samples, *, noise=True, dropout=False, seed=0):
    """Outputs of plain passes, (samples, outputs): of one batch if rows are independent."""
    torch.manual_seed(1_000_003 + seed)
    axis, count = case.program.form.batch_dim, case.inputs[0].shape[case.program.form.batch_dim]
    noisy = []
    for x, var in zip(case.inputs, case.noise, strict=True):
        many = x.expand(samples, *x.shape)
        drawn = torch.randn(many.shape, dtype=x.dtype) if noise and var is not None else None
        noisy.append(many.clone() if drawn is None else many + var.sqrt() * drawn)
    case.program.drop.train(dropout)
    try:
        with torch.no_grad():
            if not case.rows:
                outputs = [case.program(*(n[i] for n in noisy)) for i in range(samples)]
                return torch.stack([flat(y) for y in outputs])
            folded = [n.movedim(1 + axis, 1).flatten(0, 1).movedim(0, axis) for n in noisy]
            return _by_sample(case.program(*folded), samples, count, axis)
    finally:
        case.program.drop.eval()


def _by_sample(output, samples, count, axis):
    columns = []
    for part in tensors(output):
        own = axis if part.dim() > 1 else 0
        rows = part.movedim(own, 0).unflatten(0, (samples, count)).movedim(1, 1 + own)
        columns.append(rows.reshape(samples, -1))
    return torch.cat(columns, 1).double()


def tensors(output):
    """The tensors of an output, in order."""
    if isinstance(output, dict):
        return [output["y"]]
    return list(output) if isinstance(output, tuple) else [output]


def flat(output):
    """All numbers of an output in a row."""
    return torch.cat([part.reshape(-1) for part in tensors(output)]).double()
