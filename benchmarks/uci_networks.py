"""Small networks for tables, trained many at once: the same layer of all of them is one product."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from bench import cached
from torch import Tensor, nn
from torch.nn import functional as F

# The standard networks for these sets have 50 units; two layers, as `howsure reproduce uci` has.
HIDDEN = 50
# The steps and the decay with the smallest held-out error on splits of their own.
STEPS = 600
RATE, DECAY = 1e-2, 1.0
Loss = Literal["squares", "likelihood"]


@dataclass(frozen=True)
class Recipe:
    """How networks are trained: full batches, AdamW, a learning rate that falls to 0.

    Attributes:
        dropout: Rate of dropout before every layer but the first.
        loss: "squares", or "likelihood" with a second output for the log variance.
        steps: Steps of the optimizer.
        decay: Weight decay.
    """

    dropout: float = 0.0
    loss: Loss = "squares"
    steps: int = STEPS
    decay: float = DECAY


def networks(x: Tensor, y: Tensor, recipe: Recipe, seed: int) -> list[nn.Sequential]:
    """One trained network for each table: (tables, rows, features) and (tables, rows, 1).

    They are trained once and kept in the temporary folder, under a name that says on what.
    """
    content = hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()
    found = cached(
        f"uci {recipe} {seed} {content}", lambda: dict(enumerate(trained(x, y, recipe, seed)))
    )
    return [_network([each[k] for each in found.values()]) for k in range(len(x))]


def trained(x: Tensor, y: Tensor, recipe: Recipe, seed: int) -> list[Tensor]:
    """The weights of all networks."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 if recipe.loss == "likelihood" else 1
    weights = _started(x.shape, outputs, generator)
    search = torch.optim.AdamW(weights, RATE, weight_decay=recipe.decay)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(search, recipe.steps)
    for _ in range(recipe.steps):
        search.zero_grad(set_to_none=True)
        _loss(_outputs(x, weights, recipe.dropout, generator), y).backward()
        search.step()
        falling.step()
    return [each.detach() for each in weights]


def _started(shape: torch.Size, outputs: int, generator: torch.Generator) -> list[Tensor]:
    """Weights (tables, inputs, outputs) and biases (tables, 1, outputs), uniform as in PyTorch."""
    tables, _, features = shape
    sizes = (features, HIDDEN, HIDDEN, outputs)
    found = []
    for inputs, units in pairwise(sizes):
        for rows in (inputs, 1):
            uniform = torch.rand(tables, rows, units, generator=generator)
            found.append(((2 * uniform - 1) / inputs**0.5).requires_grad_())
    return found


def _outputs(
    x: Tensor, weights: list[Tensor], dropout: float, generator: torch.Generator
) -> Tensor:
    for k in range(0, len(weights), 2):
        if k:
            x = x.relu()
            if dropout:
                kept = torch.rand(x.shape, generator=generator) >= dropout
                x = x * kept / (1 - dropout)
        x = torch.baddbmm(weights[k + 1], x, weights[k])
    return x


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    """The sum over the tables, so that each has its own gradients."""
    if outputs.shape[2] == 1:
        return (outputs - y).square().mean((1, 2)).sum()
    mean, log_var = outputs.split(1, 2)
    return (log_var + (y - mean).square() * (-log_var).exp()).mean((1, 2)).sum() / 2


def _network(weights: list[Tensor]) -> nn.Sequential:
    """The same as modules, in eval mode."""
    layers: list[nn.Module] = []
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        layer = nn.Linear(weight.shape[0], weight.shape[1])
        layer.weight.data, layer.bias.data = weight.detach().T.contiguous(), bias.detach()[0]
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval().requires_grad_(False)


@torch.no_grad()
def dropout_samples(net: nn.Sequential, x: Tensor, rate: float, count: int, seed: int) -> Tensor:
    """Outputs with dropout before every layer but the first, (count, rows, outputs)."""
    generator = torch.Generator().manual_seed(seed)
    h = x.expand(count, *x.shape)
    for number, layer in enumerate(net):
        if isinstance(layer, nn.Linear) and number:
            kept = torch.rand(h.shape, generator=generator) >= rate
            h = h * kept / (1 - rate)
        h = F.relu(h) if isinstance(layer, nn.ReLU) else layer(h)
    return h
