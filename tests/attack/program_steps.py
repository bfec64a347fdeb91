"""Steps of random programs: everything that can mislead a method, each with what it is."""

from __future__ import annotations

from dataclasses import dataclass

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


def under(context):
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
    "no_grad": Step(under(torch.no_grad)),
    "inference_mode": Step(under(torch.inference_mode)),
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
