"""A transformer reads digits row by row: attention, layer norm and softmax with uncertainty.

Each of the 8 rows of a digit is a token. The picture has the digits that the network is least sure
of under the sensor's noise, and the std of every logit against that of many noisy samples.

Run from the repository: `python examples/gallery/transformer.py`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

import howsure as hs
from howsure import plots
from howsure.files import write_atomically
from howsure_lab.digits.data import load_digits, sense, split

NOISE_STD = 0.1


class RowReader(nn.Module):
    """Logits of ten digits from 8 rows, by torch's own transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(0.1 * torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(32, 10)

    def forward(self, rows: Tensor) -> Tensor:  # (batch, 8, 8) -> (batch, 10)
        return self.classify(self.encoder(self.embed(rows) + self.place).mean(1))


def trained(rows: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    model = RowReader()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(rows[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description="A transformer that says how sure it is.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_transformer.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training, fewer copies")
    options = parser.parse_args()

    digits, generator = load_digits(), torch.Generator().manual_seed(0)
    parts, images = split(len(digits.labels)), digits.images[:, 0]
    epochs, copies, count = (1, 50, 12) if options.quick else (12, 300, 60)
    model = trained(images[parts.train], digits.labels[parts.train], epochs)
    chosen = parts.held_out[:count]
    rows, labels = sense(images[chosen], NOISE_STD, generator), digits.labels[chosen]

    noise = hs.noise.std(NOISE_STD)
    p = hs.Uncertain(model, noise, "gradients", task="classification")(rows)
    diagonal = hs.Uncertain(model, noise, "adf")(rows)
    noisy = sense(rows.expand(copies, *rows.shape), NOISE_STD, generator)
    true = model(noisy.flatten(0, 1)).unflatten(0, (copies, -1)).std(0)
    right = p.mean.argmax(1) == labels
    print(f"{int(right.sum())} of {count} right")

    figure = Figure(figsize=(12, 4.4), dpi=100, layout="constrained")
    left, panel = figure.subfigures(1, 2, width_ratios=(1.6, 1), squeeze=False).flat
    captions = [f"says {int(k)}" for k in p.mean.argmax(1)]
    plots.gallery(
        rows, p.entropy, captions=captions, correct=right, label="entropy", axes=left.subplots(2, 6)
    )
    ax = panel.subplots()
    stds = {"gradients": p.logits.data_var.sqrt(), "adf": diagonal.std}
    for (name, std), marker, color in zip(stds.items(), "os", ("#0072B2", "#D55E00"), strict=True):
        ratio = float((std / true).log().mean().exp())
        ax.loglog(true.flatten(), std.flatten(), marker, color=color, markersize=3, alpha=0.5)
        ax.plot([], [], marker, color=color, label=f"{name}: {ratio:.2f} of the truth")
    ends = [float(true.min()), float(true.max())]
    ax.plot(ends, ends, color="black", linewidth=1)
    ax.set(xlabel=f"std of a logit over {copies} Monte Carlo samples", ylabel="predicted std")
    ax.legend(frameon=False)
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
