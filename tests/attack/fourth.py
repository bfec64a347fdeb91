"""The oracle of the fourth attack: plain passes in train mode, with noise that is added by hand."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass

import pytest
import torch
from second import is_ours
from third import leaves, numbers
from torch import nn
from torch.nn import functional as F

import howsure as hs

# Words of notes that explain why a std is off.
EXPLAINED = (
    "None of",
    "NaN or infinite",
    "smaller than",
    "rounding",
    "Few of the samples",
    "several times off",
    "too few for",
    "did not reach the tolerance",
)
# Stds whose Monte Carlo has a larger relative standard error are not known.
KNOWN = 0.03
WIDTH, UNITS = 40, 48


@dataclass(frozen=True)
class Truth:
    """Total and data variance and mean of every number, each with its standard error."""

    total: torch.Tensor
    total_error: torch.Tensor
    data: torch.Tensor
    data_error: torch.Tensor
    mean: torch.Tensor

    @property
    def std(self):
        return self.total.sqrt()

    @property
    def std_error(self):
        return self.total_error / (2 * self.std.clamp(min=1e-300))


def _truth(a, b):
    """From two sets of draws, (draws, numbers), which share masks and not noise."""
    both = torch.cat([a, b])
    deviations, within = (both - both.mean(0)).square(), (a - b).square() / 2
    averaged = (deviations[: len(a)] + deviations[len(a) :]) / 2
    root = math.sqrt(len(a))
    total, data = deviations.mean(0), within.mean(0)
    return Truth(total, averaged.std(0) / root, data, within.std(0) / root, both.mean(0))


@torch.no_grad()
def truth_of_rows(model, x, noisy, draws=6000, task="regression", at_once=2000):
    """All draws as rows of one batch; `noisy` makes noisy inputs from repeated ones.

    Both passes over a batch start from the same seed, so that they have the same masks.
    """
    model = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(5)
    first, second = [], []
    for part in range(draws // at_once):
        many = _repeated(x, at_once)
        for values in (first, second):
            noisy_input = noisy(many, generator)
            with torch.random.fork_rng():
                torch.manual_seed(100 + part)
                out = called(model, noisy_input)
            out = [of_task(t, task).reshape(at_once, -1) for t in leaves(out)]
            values.append(torch.cat(out, 1))
    return _truth(torch.cat(first), torch.cat(second))


@torch.no_grad()
def truth_of_calls(model, x, noisy, draws=2000, task="regression"):
    """A call for each draw, for models whose rows influence each other."""
    model = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(5)
    first, second = [], []
    for draw in range(draws):
        for values in (first, second):
            noisy_input = noisy(x, generator)
            with torch.random.fork_rng():
                torch.manual_seed(draw)
                out = called(model, noisy_input)
            values.append(torch.cat([of_task(t, task).reshape(-1) for t in leaves(out)]))
    return _truth(torch.stack(first), torch.stack(second))


def called(model, x):
    return model(*x) if isinstance(x, tuple) else model(x)


def of_task(logits, task):
    """What a prediction is about."""
    if task == "classification":
        return logits.softmax(-1)
    return logits if task == "regression" else logits.sigmoid()


def _repeated(x, count):
    if isinstance(x, tuple):
        return tuple(_repeated(part, count) for part in x)
    return x.repeat(count, *(1,) * (x.dim() - 1))


def white(var):
    """Adds independent noise to every tensor of floats; one variance for each input, or for all."""

    def noisy(x, generator):
        if isinstance(x, tuple):
            each = var if isinstance(var, tuple) else (var,) * len(x)
            return tuple(white(v)(part, generator) for part, v in zip(x, each, strict=True))
        if var is None or not x.is_floating_point():
            return x
        return x + math.sqrt(var) * torch.randn(x.shape, generator=generator)

    return noisy


def judged(predict, truth, room=0.1):
    """ "right", "noted", "refused", "unknown", or "WRONG" and what, in words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p = predict()
    except Exception as raised:
        if is_ours(raised) and len(str(raised)) > 20:
            return f"refused: {raised}"
        return f"WRONG: raw {type(raised).__name__}: {str(raised)[:200]}"
    return compared(p, truth, room)


def compared(p, truth, room=0.1):
    """The outcome for a prediction: total std, its split, and the mean, where it is asked for."""
    std, stated = numbers(p.std), torch.zeros_like(truth.std)
    if std.shape != truth.std.shape:
        return f"WRONG: {tuple(std.shape)} stds, {tuple(truth.std.shape)} expected"
    if p.std_error is not None:
        stated = numbers(p.std_error).nan_to_num(0.0)
    rounding = 2e-7 * (truth.std.max() + numbers(p.mean).abs().max())
    known = (truth.std_error <= KNOWN * truth.std) | (truth.std <= rounding)
    if not known.any():
        return "unknown"
    errors = (stated.square() + truth.std_error.square()).sqrt()
    allowed = room * truth.std + 4 * errors + rounding
    off = known & ~((std - truth.std).abs() <= allowed)
    words, found = "std", (std / truth.std)[off]
    if not off.any():
        # The parts, as variances: an error counts by what it does to the total.
        data = numbers(p.data_var)
        room_of_data = 2 * truth.std * allowed + 4 * truth.data_error + rounding**2
        off = known & ~((data - truth.data).abs() <= room_of_data)
        words, found = "split", ((data - truth.data) / truth.total)[off]
    if not off.any():
        return "right"
    is_explained = any(word in note for word in EXPLAINED for note in p.notes)
    return (
        f"{'noted' if is_explained else 'WRONG'}: {words}: {int(off.sum())} of {len(off)}, "
        f"{float(found.min()):.3f} to {float(found.max()):.3f} of the truth, stated error "
        f"{float((stated / std)[off].max()):.3f}; {p.method}; {p.notes}"
    )


def is_fine(result):
    return not result.startswith("WRONG")


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, z):
        return z.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _no_grad(z):
    with torch.no_grad():
        return (2 * z).tanh()


def _loop(z):
    """A branch of Python for every row."""
    return torch.stack([2 * r if float(r[0]) > 0 else r.flip(0) - 1 for r in z])


def _items(z):
    return torch.tensor([[math.floor(v) for v in r] for r in z.tolist()]).to(z)


def _expert(z):
    is_first = z.mean(1, keepdim=True) > 0
    return torch.where(is_first, z.tanh() + 1, 0.3 * z.roll(1, 1) - 1)


def _bucket(z):
    table = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    return table[torch.bucketize(z, torch.tensor([-1.0, -0.2, 0.3, 1.0]))]


def _top_mask(z):
    return z * (z >= z.topk(2, 1).values[:, 1:])


def _first_above(z):
    return torch.arange(z.shape[1]).to(z)[(z > 0).int().argmax(1)][:, None]


def _choice(z):
    return F.one_hot(z.argmax(1), z.shape[1]).to(z)


HEADS = {
    "step": lambda z: (z > 0.2).to(z),
    "step of the sum": lambda z: z + 3 * (z.sum(1, keepdim=True) > 0),
    "argmax": _choice,
    "looked up": lambda z: torch.linspace(-1, 2, z.shape[1])[z.argmax(1)][:, None],
    "argsort": lambda z: z.argsort(1).to(z),
    "top mask": _top_mask,
    "top values": lambda z: z.topk(2, 1).values,
    "sorted": lambda z: z.sort(1).values[:, -2:] ** 2,
    "median": lambda z: z.median(1, keepdim=True).values,
    "rounded": lambda z: (2 * z).round() / 2,
    "floor": torch.floor,
    "sign": torch.sign,
    "detached part": lambda z: 0.7 * z.detach() + 0.3 * z,
    "detached factor": lambda z: z * z.detach(),
    "no_grad": lambda z: z + _no_grad(z),
    "all no_grad": _no_grad,
    "mirrored": lambda z: torch.where(z[:, :1] > 0, z, -2 * z),
    "expert": _expert,
    "bucket": _bucket,
    "loop": _loop,
    "clamped": lambda z: z.clamp(-0.2, 0.2),
    "count": lambda z: (z > 0).sum(1, keepdim=True).to(z),
    "straight through": lambda z: z + (z.round() - z).detach(),
    "own backward": lambda z: Rounded.apply(z),
    "remainder": lambda z: z % 1,
    "numpy": lambda z: torch.from_numpy(z.detach().numpy().round(1)).to(z),
    "integers": lambda z: z.int().to(z),
    "running maximum": lambda z: z.cummax(1).values,
    "first above": _first_above,
    "items": _items,
    "threshold": lambda z: F.threshold(z, 0.1, -1.0),
    "hard shrink": lambda z: F.hardshrink(z, 0.5),
}
PLACES = ("beside", "beside, wide", "gate", "dropped", "after")


class Beside(nn.Module):
    """A network with dropout of its own, and a function at one of five places."""

    def __init__(self, head, place, rate=0.2, outputs=2, seed=0, width=WIDTH):
        super().__init__()
        torch.manual_seed(seed)
        self.head, self.place = head, place
        self.first, self.drop = nn.Linear(width, UNITS), nn.Dropout(rate)
        self.last, self.few = nn.Linear(UNITS, outputs), nn.Linear(width, 8)
        self.squeeze = nn.Linear(UNITS, 8)
        self.register_buffer("mix", torch.randn(64, outputs))

    def mixed(self, z):
        return z @ self.mix[: z.shape[1]] / math.sqrt(z.shape[1])

    def forward(self, x):
        units = self.drop(torch.tanh(self.first(x)))
        out = self.last(units)
        if self.place == "beside":
            return out + self.mixed(self.head(self.few(x)))
        if self.place == "beside, wide":
            return out + self.mixed(self.head(x))
        if self.place == "gate":
            return out * (1 + self.mixed(self.head(self.few(x))))
        if self.place == "dropped":
            return self.mixed(self.head(self.squeeze(units)))
        return self.head(out)


def rows(count=4, *shape, seed=1, scale=1.0):
    """Normal rows."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, *(shape or (WIDTH,)), generator=generator)


OWN = {"placement": "existing"}
METHODS = {
    "8 points": {"method": "gradients"},
    "64 points": {"method": "gradients", "samples": 64},
    "256 points": {"method": "gradients", "samples": 256},
    "tolerance": {"method": "gradients", "tolerance": 0.05},
    "auto": {"method": "auto"},
    "samples": {"method": "noise_sampling"},
}


def uncertain(model, noise, method="8 points", **options):
    return hs.Uncertain(model, noise, **{**OWN, **METHODS[method], **options})


class TwoInputs(nn.Module):
    """Two inputs, of which one, the other, or both choose, beside dropout of its own."""

    def __init__(self, head, chooser, rate=0.2):
        super().__init__()
        torch.manual_seed(3)
        self.head, self.chooser = head, chooser
        self.a, self.b, self.drop = nn.Linear(WIDTH, UNITS), nn.Linear(6, UNITS), nn.Dropout(rate)
        self.last, self.few_a, self.few_b = (
            nn.Linear(UNITS, 2),
            nn.Linear(WIDTH, 6),
            nn.Linear(6, 6),
        )
        self.register_buffer("mix", torch.randn(64, 2))

    def forward(self, a, b):
        out = self.last(self.drop(torch.tanh(self.a(a) + self.b(b))))
        few = {"a": self.few_a(a), "b": self.few_b(b), "both": self.few_a(a) + self.few_b(b)}
        made = self.head(few[self.chooser])
        return out + made @ self.mix[: made.shape[1]] / math.sqrt(made.shape[1])


STEPS, FEATURES = 8, 6


class Sequence(nn.Module):
    """A sequence, (batch, 8, 6), through one of many ways that depend on values."""

    def __init__(self, way, rate=0.2):
        super().__init__()
        torch.manual_seed(4)
        self.way, self.drop, self.rate = way, nn.Dropout(rate), rate
        self.embed = nn.Linear(FEATURES, 24)
        self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.attention = nn.MultiheadAttention(24, 2, dropout=rate, batch_first=True)
        self.experts = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.gate, self.score = nn.Linear(24, 3), nn.Linear(24, 1)
        self.last = nn.Linear(24, 2)
        self.register_buffer("codes", torch.randn(12, 24) * 0.5)

    def forward(self, x):
        tokens = self.drop(torch.tanh(self.embed(x)))
        return self.last(WAYS[self.way](self, x, tokens))

    def attend(self, tokens, allowed):
        scores = self.q(tokens) @ self.k(tokens).mT
        weights = scores.masked_fill(~allowed, -1e4).softmax(-1)
        return (weights @ self.v(tokens)).mean(1)


def _valid(x):
    """Which steps count, by their values; the first always does."""
    valid = x.mean(2) > -0.2
    return valid | (torch.arange(x.shape[1]) == 0)


def _last_valid(m, x, tokens):
    last = (_valid(x) * torch.arange(x.shape[1])).argmax(1)
    return m.gru(tokens)[0][torch.arange(len(x)), last]


def _averaged(m, x, tokens):
    valid = _valid(x)[..., None].to(x)
    return (tokens * valid).sum(1) / valid.sum(1)


def _top_keys(m, x, tokens):
    scores = m.q(tokens) @ m.k(tokens).mT
    return m.attend(tokens, scores >= scores.topk(3, -1).values[..., -1:])


def _padded(m, x, tokens):
    return m.attention(tokens, tokens, tokens, key_padding_mask=~_valid(x))[0].mean(1)


def _scaled(m, x, tokens):
    heads = [layer(tokens)[:, None] for layer in (m.q, m.k, m.v)]
    rate = m.rate if m.training else 0.0
    allowed = _valid(x)[:, None, None]
    return F.scaled_dot_product_attention(*heads, attn_mask=allowed, dropout_p=rate)[:, 0].mean(1)


def _routed(m, x, tokens):
    chosen = F.one_hot(m.gate(torch.tanh(m.embed(x))).argmax(-1), 3).to(x)
    each = torch.stack([expert(tokens) for expert in m.experts], -1)
    return (each * chosen[..., None, :]).sum(-1).mean(1)


def _routed_dropped(m, x, tokens):
    chosen = F.one_hot(m.gate(tokens).argmax(-1), 3).to(x)
    each = torch.stack([expert(tokens) for expert in m.experts], -1)
    return (each * chosen[..., None, :]).sum(-1).mean(1)


def _quantized(m, x, tokens):
    plain = torch.tanh(m.embed(x))
    nearest = m.codes[torch.cdist(plain, m.codes).argmin(-1)]
    return (tokens + nearest + (plain - plain.detach())).mean(1)


def _halting(m, x, tokens):
    total = torch.sigmoid(m.score(torch.tanh(m.embed(x)))).cumsum(1)
    goes_on = (total - torch.sigmoid(m.score(torch.tanh(m.embed(x)))) < 1.5).to(x)
    return (tokens * goes_on).sum(1)


def _greedy(m, x, tokens):
    state = tokens.mean(1)
    for step in range(3):
        choice = (torch.tanh(m.embed(x[:, step])) @ m.codes.T).argmax(1)
        state = torch.tanh(m.q(state)) + m.codes[choice]
    return state


def _nearest(m, x, tokens):
    """A graph of the nearest two neighbors by the noisy values."""
    distance = torch.cdist(x, x) + 1e3 * torch.eye(x.shape[1])
    near = distance.topk(2, -1, largest=False).indices
    messages = torch.stack([t[i] for t, i in zip(tokens, near, strict=True)])
    return torch.tanh(m.q(tokens) + m.k(messages.mean(2))).mean(1)


def _within(m, x, tokens):
    adjacency = (torch.cdist(x, x) < 3.0).to(x)
    return torch.tanh(m.q(adjacency @ tokens / adjacency.sum(2, keepdim=True))).mean(1)


def _merged(m, x, tokens):
    """Steps in groups by the sign of their sum; the largest of each group."""
    groups = (x.sum(2) > 0).long()[..., None].expand_as(tokens)
    out = tokens.new_zeros(len(x), 2, tokens.shape[2])
    return out.scatter_reduce(1, groups, tokens, "amax", include_self=False).sum(1)


def _ordered(m, x, tokens):
    order = x.sum(2).argsort(1)[..., None].expand_as(tokens)
    return m.gru(tokens.gather(1, order))[0][:, -1]


def _turned(m, x, tokens):
    is_turned = (x.sum((1, 2)) > 0)[:, None, None]
    return m.gru(torch.where(is_turned, tokens.flip(1), tokens))[0][:, -1]


def _cut(m, x, tokens):
    """A branch of Python for every row: the sequence ends at its largest step."""
    ends = x.detach().norm(dim=2).argmax(1).tolist()
    return torch.stack([t[: end + 1].mean(0) for t, end in zip(tokens, ends, strict=True)])


WAYS = {
    "last valid step": _last_valid,
    "average of valid steps": _averaged,
    "largest over time": lambda m, x, t: t.max(1).values,
    "attention to valid steps": lambda m, x, t: m.attend(t, _valid(x)[:, None]),
    "attention to the top keys": _top_keys,
    "attention above average": lambda m, x, t: m.attend(t, (s := t @ t.mT) > s.mean(-1, True)),
    "padding by values": _padded,
    "mask of attention by values": _scaled,
    "experts": _routed,
    "experts of dropped tokens": _routed_dropped,
    "code book": _quantized,
    "halting": _halting,
    "greedy decoding": _greedy,
    "nearest neighbors": _nearest,
    "neighbors within": _within,
    "merged groups": _merged,
    "ordered": _ordered,
    "turned around": _turned,
    "cut": _cut,
    "detached attention": lambda m, x, t: (
        m.attend(t, (x.norm(dim=2) > 2.2)[:, None]) + t.detach()[:, 0]
    ),
}


def common(std):
    return lambda x, g: x + std * torch.randn(len(x), 1, generator=g)


def walking(std):
    return lambda x, g: x + std * torch.randn(x.shape, generator=g).cumsum(1)


def remembering(std, correlation):
    def noisy(x, g):
        drawn = torch.randn(x.shape, generator=g)
        noise = [drawn[:, 0]]
        for t in range(1, x.shape[1]):
            noise.append(correlation * noise[-1] + math.sqrt(1 - correlation**2) * drawn[:, t])
        return x + std * torch.stack(noise, 1)

    return noisy


def blurring(std, kernel):
    def noisy(x, g):
        wide = torch.randn(len(x), 1, x.shape[1] + len(kernel) - 1, generator=g)
        return x + std * F.conv1d(wide, torch.tensor(kernel)[None, None])[:, 0]

    return noisy


FACTOR = torch.randn(WIDTH, 12, generator=torch.Generator().manual_seed(9)) * 0.08


def by_factor(x, g):
    return x + torch.randn(len(x), 12, generator=g) @ FACTOR.T


KERNEL = [0.25, 0.5, 1.0, 0.5, 0.25]
CORRELATED = {
    "common": (hs.noise.common_mode(0.2), common(0.2)),
    "walk": (hs.noise.random_walk(0.05), walking(0.05)),
    "memory": (hs.noise.ar1(std=0.3, correlation=0.8), remembering(0.3, 0.8)),
    "blurred": (hs.noise.blurred(0.15, KERNEL), blurring(0.15, KERNEL)),
    "matrix": (hs.noise.correlated(factor=FACTOR), by_factor),
}


FOUR = ("8 points", "64 points", "tolerance", "auto")
# Variance of the noise, and rate of the dropout.
SETTINGS = [(0.01, 0.1), (0.3, 0.1), (0.01, 0.4), (0.1, 0.25)]


def setting(number):
    """Settings take turns, in another order for every place of a function."""
    return SETTINGS[(number * 7 + number // len(HEADS)) % len(SETTINGS)]


def some_fast(cases, every, limits=()):
    """Numbered cases as parameters, of which all but a few are run with the slow tests.

    Of the cases that are known limits the numbers are expected to be wrong.
    """
    parameters = []
    for number, case in enumerate(cases):
        marks = [] if number % every == 0 else [pytest.mark.slow]
        if case in limits:
            marks.append(pytest.mark.xfail(reason="a limit in docs/attack.md", strict=True))
        parameters.append(pytest.param(number, *case, marks=marks, id="-".join(map(str, case))))
    return parameters
