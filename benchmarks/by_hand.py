"""What a warm call costs beside the same mathematics by hand: `python benchmarks/by_hand.py`.

By hand, the plain row and 8 noisy points are one batch of 9 rows: one forward pass, one backward
pass per output, the Gram matrix of the gradients and one quadratic form. The points, the form and
the noise of the samples are made beforehand. `linear` is compared with one forward and one backward
pass, `noise_sampling` with 20 noisy rows as one batch. All calls of a network take turns on one
thread, for one input, and the shortest time of each counts. A first call is that of a new wrapper
around a new copy of the network, in a process that has made other calls.

Beside the costs are the standard deviations: those of the library, those by hand, and a reference
by hand with 128 points. Networks have random weights. Writes by_hand.json to `--out`; `--quick`
takes a fraction of the rounds.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench import fastest, folder_of, markdown, write
from models.resnet import ResNet18
from models.small_kinds import mlp
from speed.networks import NETWORKS, Network, plain
from torch import Tensor, nn

import howsure as hs

GRAY = 2 / 255
SAMPLES = 20
BLOCK, POINTS, REFERENCE_POINTS = 4, 8, 128
# The correlation of the two pairs of a block, and the weights of the odd and the even part.
RHO, ODD, EVEN = 0.55, 0.05, 0.1

PLAIN = "plain forward"
HAND_8, HAND_4 = "by hand, 8 points", "by hand, 4 points"
HAND_LINEAR, HAND_SAMPLES = "by hand, one gradient", f"by hand, {SAMPLES} samples"
GRADIENTS, AUTO, LINEAR, SAMPLING = "gradients", "auto", "linear", "noise_sampling"
# What each call of the library is compared with.
COMPARED = {GRADIENTS: HAND_8, AUTO: HAND_8, LINEAR: HAND_LINEAR, SAMPLING: HAND_SAMPLES}
OPTIONS: dict[str, dict[str, Any]] = {SAMPLING: {"samples": SAMPLES}}
FIRST = (GRADIENTS, AUTO)
# First calls are repeated while one takes less than this, in seconds.
SHORT = 3.0


@dataclass(frozen=True)
class Subject:
    """A network, the std of its noise, and the largest costs that are wanted.

    Attributes:
        network: How it is made, and the shape of an input.
        std: Of the noise on every number of an input.
        ratio: The most that "gradients" may cost, in calls by hand.
        forwards: The most that the default may cost, in plain forwards.
    """

    network: Network
    std: float
    ratio: float | None = None
    forwards: float | None = None


def plain_cnn() -> nn.Module:
    """Two convolutions and two linear layers for 28 x 28 pixels, without norms."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 1)),
    )


SUBJECTS = {
    "MLP 24-64-64-1": Subject(Network(lambda: mlp(nn.ReLU, 24, 1), (24,)), 0.05, 1.5, 9),
    "LSTM": Subject(NETWORKS["LSTM"], 0.05, 1.3, 6),
    "plain CNN, 28 x 28": Subject(Network(plain_cnn, (1, 28, 28)), GRAY, 1.2),
    "small ViT, 64 x 64": Subject(NETWORKS["small ViT, 64 x 64"], GRAY, None, 5),
    "DroNet": Subject(NETWORKS["DroNet"], GRAY, 0.8),
    "ResNet-18, 112 x 112": Subject(Network(lambda: ResNet18(1), (3, 112, 112)), GRAY, 1.0),
    "ResNet-20, ten outputs": Subject(NETWORKS["ResNet-20, ten outputs"], GRAY, None, 40),
}
MOST_LINEAR, MOST_SAMPLING, MOST_FIRST = 1.5, 1.6, 40


def variance_form(points: int) -> Tensor:  # (points, points)
    """Q such that sum_pq Q_pq <g_p, g_q> estimates the variance, over blocks a, -a, b, -b."""
    at_rho = (1 - 2 * EVEN) / (2 * RHO)
    odd = torch.tensor([[ODD, 1 - ODD], [1 - ODD, ODD]]) / 2
    even = torch.tensor([[EVEN, at_rho], [at_rho, EVEN]]) / 2
    parts = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0.5, -0.5, 0, 0], [0, 0, 0.5, -0.5]])
    block = parts.T @ torch.block_diag(odd, even) @ parts
    blocks = points // BLOCK
    return torch.block_diag(*[block] * blocks) / blocks


def points_of(shape: tuple[int, ...], points: int, first_block: int = 0) -> Tensor:
    """Standard normal points in blocks of two antithetic pairs, (points, *shape)."""
    blocks = []
    for number in range(first_block, first_block + points // BLOCK):
        key = f"howsure 0 0 {number}".encode()
        generator = torch.Generator().manual_seed(zlib.crc32(key))
        shared, a, b = torch.randn(3, 1, *shape, generator=generator)
        p, q = (math.sqrt(RHO) * shared + math.sqrt(1 - RHO) * own for own in (a, b))
        blocks += [p, -p, q, -q]
    return torch.cat(blocks)


Call = Callable[[], tuple[Tensor, Tensor]]


def each_gradient(outputs: Tensor, x: Tensor) -> Iterator[Tensor]:  # (points, elements)
    """The gradients of one output after the other."""
    count = outputs.shape[1]
    for k in range(count):
        yield torch.autograd.grad(outputs[:, k].sum(), x, retain_graph=k < count - 1)[0].flatten(1)


def gradients_by_hand(
    model: nn.Module, x: Tensor, std: float, points: int, first_block: int = 0
) -> Call:
    """The prediction and its variance from the gradients at noisy points, as a call."""
    z = points_of(tuple(x.shape[1:]), points, first_block)
    form = variance_form(points)

    def call() -> tuple[Tensor, Tensor]:
        leaf = z.detach().requires_grad_()
        outputs = model(torch.cat([x, x + std * leaf]))
        variances = [(form * (g @ g.T)).sum() for g in each_gradient(outputs, leaf)]
        return outputs[0].detach(), torch.stack(variances)

    return call


def linear_by_hand(model: nn.Module, x: Tensor, std: float) -> Call:
    """The prediction and its variance from the gradient at the input itself, as a call."""

    def call() -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        outputs = model(leaf)
        variances = [std**2 * g.square().sum() for g in each_gradient(outputs, leaf)]
        return outputs[0].detach(), torch.stack(variances)

    return call


def sampling_by_hand(model: nn.Module, x: Tensor, std: float) -> Call:
    """The mean and variance of noisy rows that run as one batch, as a call."""
    z = torch.randn(SAMPLES, *x.shape[1:], generator=torch.Generator().manual_seed(0))

    def call() -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            outputs = model(x + std * z)
            return outputs.mean(0), outputs.var(0)

    return call


def first_call(model: nn.Module, x: Tensor, std: float, method: str) -> tuple[hs.Uncertain, float]:
    """A new wrapper after its first call, and the processor time that this took."""
    sure = hs.Uncertain(copy.deepcopy(model), std**2, method, **OPTIONS.get(method, {}))
    start = time.process_time()
    sure(x)
    return sure, time.process_time() - start


def measure(subject: Subject, *, quick: bool) -> dict[str, Any]:
    """Seconds, ratios and standard deviations of every call."""
    model, x = subject.network.made(), subject.network.input(1)
    std = subject.std
    hand: dict[str, Call] = {
        HAND_8: gradients_by_hand(model, x, std, POINTS),
        HAND_4: gradients_by_hand(model, x, std, BLOCK),
        HAND_LINEAR: linear_by_hand(model, x, std),
        HAND_SAMPLES: sampling_by_hand(model, x, std),
    }
    plain_call = plain(model, x)
    for call in (plain_call, *hand.values()):
        call()
    wrappers: dict[str, hs.Uncertain] = {}
    firsts: dict[str, float] = {}
    for method in COMPARED:
        wrappers[method], seconds = first_call(model, x, std, method)
        if method in FIRST:
            again = 0 if quick or seconds > SHORT else 2
            others = [first_call(model, x, std, method)[1] for _ in range(again)]
            firsts[method] = min([seconds, *others])
    warm = {name: (lambda sure=sure: sure(x)) for name, sure in wrappers.items()}
    budget, rounds = (4, 20) if quick else (20, 100)
    times = fastest({PLAIN: plain_call, **hand, **warm}, budget=budget, rounds=rounds)
    forward = times[PLAIN]
    predictions = {name: sure(x) for name, sure in wrappers.items()}
    targets = {
        "gradients / by hand": subject.ratio,
        "auto, plain forwards": subject.forwards,
        "linear / by hand": MOST_LINEAR,
        "noise_sampling / by hand": MOST_SAMPLING,
        "first call, plain forwards": MOST_FIRST,
    }
    return {
        "input": list(subject.network.shape),
        "noise_std": std,
        "seconds": times,
        "in_plain_forwards": {name: own / forward for name, own in times.items()},
        "ratio_to_by_hand": {name: times[name] / times[of] for name, of in COMPARED.items()},
        "first_minus_warm_in_plain_forwards": {
            name: (own - times[name]) / forward for name, own in firsts.items()
        },
        "method": {name: p.method for name, p in predictions.items()},
        "std": {
            "by hand, 128 points": reference(model, x, std),
            **{name: call()[1].sqrt().tolist() for name, call in hand.items()},
            **{name: p.std[0].tolist() for name, p in predictions.items()},
        },
        "std_error": {
            name: p.std_error[0].tolist()
            for name, p in predictions.items()
            if p.std_error is not None
        },
        # The largest figures that are wanted.
        "targets": {name: most for name, most in targets.items() if most is not None},
    }


def reference(model: nn.Module, x: Tensor, std: float) -> list[float]:
    """The std from many points, 8 at a time, none of which the other calls have."""
    starts = range(POINTS // BLOCK, (POINTS + REFERENCE_POINTS) // BLOCK, POINTS // BLOCK)
    parts = [gradients_by_hand(model, x, std, POINTS, start)()[1] for start in starts]
    return torch.stack(parts).mean(0).sqrt().tolist()


def cost_table(results: dict[str, Any]) -> str:
    """Costs as a Markdown table; the largest that is wanted is in brackets."""
    header = ("network", "forward, ms", "by hand 8, 4 points (forwards)", "gradients (forwards)")
    header += ("gradients / by hand", "auto (forwards)", "auto / by hand", "linear / by hand")
    header += ("20 samples / by hand", "first call: gradients, auto (forwards more than warm)")
    rows = []
    for name, result in results.items():
        forwards, ratios = result["in_plain_forwards"], result["ratio_to_by_hand"]
        first = result["first_minus_warm_in_plain_forwards"]
        most = {target: f" ({value:g})" for target, value in result["targets"].items()}
        cells = [
            f"{1000 * result['seconds'][PLAIN]:.3f}",
            f"{forwards[HAND_8]:.1f}, {forwards[HAND_4]:.1f}",
            f"{forwards[GRADIENTS]:.1f}",
            f"{ratios[GRADIENTS]:.2f}{most.get('gradients / by hand', '')}",
            f"{forwards[AUTO]:.2f}{most.get('auto, plain forwards', '')} {result['method'][AUTO]}",
            f"{ratios[AUTO]:.2f}",
            f"{ratios[LINEAR]:.2f}{most['linear / by hand']}",
            f"{ratios[SAMPLING]:.2f}{most['noise_sampling / by hand']}",
            f"{first[GRADIENTS]:.0f}, {first[AUTO]:.0f} ({MOST_FIRST})",
        ]
        rows.append([name, *cells])
    return markdown(header, rows)


def std_table(results: dict[str, Any]) -> str:
    """Standard deviations of the first output as a Markdown table, with stated errors."""
    columns = ["by hand, 128 points", HAND_8, GRADIENTS, AUTO, HAND_4]
    columns += [HAND_LINEAR, LINEAR, HAND_SAMPLES, SAMPLING]
    rows = []
    for name, result in results.items():
        errors = {way: f" ± {error[0]:.2g}" for way, error in result["std_error"].items()}
        stds = (f"{result['std'][way][0]:.4g}{errors.get(way, '')}" for way in columns)
        rows.append([name, *stds])
    return markdown(["network", *columns], rows)


def main() -> None:
    """Parses the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--quick", action="store_true", help="few rounds; to out/bench")
    parser.add_argument("--out", type=Path, help="folder of the results")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # What the first call of a process loads is not that of a network.
    warmed = SUBJECTS["MLP 24-64-64-1"]
    first_call(warmed.network.made(), warmed.network.input(1), warmed.std, GRADIENTS)
    results: dict[str, Any] = {}
    for name in (each for each in SUBJECTS if asked.only in each):
        results[name] = measure(SUBJECTS[name], quick=asked.quick)
        print(cost_table({name: results[name]}).splitlines()[-1], flush=True)
        content = {"howsure": hs.__version__, "quick": asked.quick, "cases": results}
        write(folder_of(asked) / "by_hand.json", content)
    print(f"\n{cost_table(results)}\n\n{std_table(results)}")


if __name__ == "__main__":
    main()
