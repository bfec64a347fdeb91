"""Scores 20,000 rows on this machine or on a Ray cluster, and evaluates under `torchrun`.

Needs no data: a small network learns a function first. Interrupt it and run it again: it continues.
Takes under a minute.

On this machine:   `.venv/bin/python examples/score_cluster.py`
With Ray:          `.venv/bin/python examples/score_cluster.py --engine ray [--address HOST:PORT]`
Two processes:     `.venv/bin/torchrun --nproc-per-node 2 examples/score_cluster.py --evaluate`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.data.distributed import evaluate, fit
from howsure.data.scoring import predict_to_file

ROWS = 20_000
METRICS = {
    "NLL": hs.metrics.nll,
    "RMSE": hs.metrics.rmse,
    "coverage of 95 %": hs.metrics.coverage,
    "AUSE": hs.metrics.ause,
}


def measured(rows, seed):
    """Noisy readings of six sensors, and what they say about two quantities."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator)
    y = torch.stack([torch.sin(x[:, 0] + x[:, 1]), x[:, 2] * x[:, 3]], 1)
    return x + 0.1 * torch.randn(x.shape, generator=generator), y


def trained():
    """A small network, the same in every process."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    x, y = measured(4000, 0)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        (net(x) - y).square().mean().backward()
        optimiser.step()
    return net.eval()


def loader(seed):
    return DataLoader(TensorDataset(*measured(2000, seed)), batch_size=250)


def evaluated(sure):
    """Every process works on its share of the batches; all know the result."""
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    found = fit(sure, loader(1), show_progress=False)
    values = evaluate(sure, loader(2), METRICS)
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        print(f"rate {found.rate:.3g}, residual variance {found.residual_var:.3g}")
        for name, value in values.items():
            print(f"{name}: {float(value):.4f}")
    if distributed.is_initialized():
        distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--address", help="of a running cluster; default: one on this machine")
    parser.add_argument(
        "--evaluate", action="store_true", help="fit and evaluate; do not predict to a file"
    )
    parser.add_argument("--out", type=Path, default=Path("out/scores.npz"))
    options = parser.parse_args()
    sure = hs.Uncertain(trained(), noise=hs.noise.std(0.1), method="gradients", rate=0.05)
    if options.evaluate:
        evaluated(sure)
        return
    x, _ = measured(ROWS, 3)
    engine = {"engine": options.engine, "address": options.address}
    print(predict_to_file(sure, x, options.out, batch=500, shard_rows=1000, **engine))


if __name__ == "__main__":
    main()
