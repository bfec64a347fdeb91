"""Predicts 20,000 rows on this machine or on a Ray cluster, and evaluates under `torchrun`.

Needs no data: a small network learns a function first. Interrupt it and run it again: it resumes.
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

ROWS = 20_000
METRICS = {
    "NLL": hs.metrics.nll,
    "RMSE": hs.metrics.rmse,
    "coverage of 95 %": hs.metrics.coverage,
    "AUSE": hs.metrics.ause,
}


def measured(rows, seed):
    """Noisy readings of six sensors, and the two quantities that the network estimates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator)
    y = torch.stack([torch.sin(x[:, 0] + x[:, 1]), x[:, 2] * x[:, 3]], 1)
    return x + 0.1 * torch.randn(x.shape, generator=generator), y


def trained():
    """A small network, the same in every process."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    x, y = measured(4000, 0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    return net.eval()


def predict(sure, out, engine, address):
    """A file with a prediction for every row; killed and run again, it resumes."""
    x, _ = measured(ROWS, 3)
    summary = hs.predict_to_file(
        sure, x, out, batch=500, shard_rows=1000, engine=engine, address=address
    )
    print(summary)


def evaluate(sure):
    """Every process predicts its share of the batches; all of them know the result."""
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    loader = DataLoader(TensorDataset(*measured(2000, 2)), batch_size=250)
    values = hs.distributed.evaluate(sure, loader, METRICS)
    if not distributed.is_initialized() or distributed.get_rank() == 0:
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
    parser.add_argument("--evaluate", action="store_true", help="metrics in place of a file")
    parser.add_argument("--out", type=Path, default=Path("out/scores.npz"))
    options = parser.parse_args()

    sure = hs.Uncertain(trained(), noise=hs.noise.std(0.1))
    sure.fit(*measured(500, 1))  # from a seed, so that every process finds the same
    if options.evaluate:
        evaluate(sure)
    else:
        predict(sure, options.out, options.engine, options.address)


if __name__ == "__main__":
    main()
