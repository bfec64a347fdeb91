"""Random programs from a seed: small modules made of everything that can mislead a method.

Each knows how its plain passes can be sampled, which is the truth that methods are held against.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from program_leaks import ALL
from program_steps import STEPS, WIDTHS, Weights
from torch import nn


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
        self.register_buffer("center", torch.randn(width))

    def forward(self, x, other=None):
        axis, form = self.form.batch_dim, self.form
        h = x.movedim(axis, 0)
        if form.inputs in ("two", "aside", "same twice"):
            h = h + torch.tanh(other.movedim(axis, 0))
        if form.inputs == "stationary":
            h = (h - self.center).square()
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
        x = program.center.expand(rows, width)
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
