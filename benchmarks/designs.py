"""What other weights would make of the same 8 points: is the default's rank their limit?

    python benchmarks/designs.py --data PATH [--case "DroNet, 0.1"] [--seeds 32]

For each seed the gradients and outputs at two blocks of points, a, -a, b, -b, are reduced to what
any quadrature sees: h at correlations 0 (across the blocks), RHO and 1 of the odd and the even
part, and the variances of the outputs themselves. Weights are compared with the average over all
seeds; the last row has the best weights in hindsight, fitted to this network, noise and inputs.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from accuracy_measures import rank_correlation
from real_networks import CASES, Case, images_of, model_of, noise_var
from torch import Tensor, nn

from howsure.estimators.designs import EVEN, ODD, RHO

# Of h at 0, RHO and 1 of the odd part, at RHO and 1 of the even one, and of the outputs' own
# variances of both parts: all rows are exact for linear and quadratic functions.
_EVEN = ((1 - 2 * EVEN) / (2 * RHO), EVEN)
DESIGNS = {
    "default": (0.0, 1 - ODD, ODD, *_EVEN, 0.0, 0.0),
    "h(0) across blocks, 0.2": (0.2, 0.7, 0.1, *_EVEN, 0.0, 0.0),
    "h(0) across blocks, 0.4": (0.4, 0.45, 0.15, *_EVEN, 0.0, 0.0),
    "outputs, 0.05": (0.0, 0.95 * (1 - ODD), 0.95 * ODD, *(0.95 * w for w in _EVEN), 0.05, 0.05),
    "outputs, 0.1": (0.0, 0.9 * (1 - ODD), 0.9 * ODD, *(0.9 * w for w in _EVEN), 0.1, 0.1),
}


def points(shape: torch.Size, seed: int) -> Tensor:  # (8, *shape)
    """Two blocks of the default's points."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        shared, *own = torch.randn(3, *shape, generator=generator)
        for each in own:
            z = math.sqrt(RHO) * shared + math.sqrt(1 - RHO) * each
            found += [z, -z]
    return torch.stack(found)


def nodes(model: nn.Module, x: Tensor, std: Tensor, z: Tensor) -> Tensor:  # (7,)
    """What the points say about the first output of one input."""
    leaf = z.clone().requires_grad_()
    values = model(x + std * leaf).flatten(1)[:, 0]
    gradients = torch.autograd.grad(values.sum(), leaf)[0].flatten(1).double()
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    pairs, outputs = gradients.unflatten(0, (4, 2)), values.detach().double().unflatten(0, (4, 2))
    odd, even = (pairs.mean(1), torch.einsum("ps...,s->p...", pairs, sign / 2))
    o, e = odd @ odd.T, even @ even.T
    within = [(g[0, 1] + g[2, 3]) / 2 for g in (o, e)]
    along = [g.diagonal().mean() for g in (o, e)]
    own = ((outputs @ (sign / 2)).square().mean(), outputs.mean(1).var())
    return torch.stack([o[:2, 2:].mean(), within[0], along[0], within[1], along[1], *own])


def table(found: Tensor) -> str:  # (seeds, inputs, 7)
    """Rank, log error and bias of every choice of weights."""
    exact = found.mean(0) @ torch.tensor(DESIGNS["default"], dtype=torch.float64)
    scaled = (found / exact[:, None]).flatten(0, 1)
    best = torch.linalg.lstsq(scaled, torch.ones(len(scaled), 1, dtype=torch.float64)).solution
    named = {**DESIGNS, "best in hindsight": tuple(best[:, 0].tolist())}
    lines = ["| weights | rank | log error | bias |", "|---|---|---|---|"]
    lines += [_row(name, found, weights, exact) for name, weights in named.items()]
    doubled = found.unflatten(0, (-1, 2)).mean(1)
    lines.append(_row("default, 16 points", doubled, DESIGNS["default"], exact))
    return "\n".join(lines)


def _row(name: str, found: Tensor, weights: tuple[float, ...], exact: Tensor) -> str:
    var = (found @ torch.tensor(weights, dtype=torch.float64)).clamp(min=1e-12 * exact)
    logs = (var / exact).log() / 2
    ranks = [rank_correlation(each, exact) for each in var]
    rank, error = sum(ranks) / len(ranks), float(logs.abs().mean())
    return f"| {name} | {rank:.3f} | {error:.3f} | {math.expm1(logs.median()):+.1%} |"


def measured(data: Path, case: Case, seeds: int, count: int) -> Tensor:  # (seeds, inputs, 7)
    """The nodes of all seeds and inputs."""
    model, x = model_of(data, case), images_of(data, case.network, count)
    std = noise_var(case).sqrt()
    rows = []
    for seed in range(seeds):
        z = points(x.shape[1:], seed)
        rows.append(torch.stack([nodes(model, each, std, z) for each in x]))
    return torch.stack(rows)


def main() -> None:
    """Parses the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with data and weights")
    parser.add_argument("--case", default="DroNet, 0.1", choices=[case.name for case in CASES])
    parser.add_argument("--seeds", type=int, default=32, help="an even number")
    parser.add_argument("--images", type=int, default=50)
    asked = parser.parse_args()
    case = next(case for case in CASES if case.name == asked.case)
    print(table(measured(asked.data, case, asked.seeds, asked.images)))


if __name__ == "__main__":
    main()
