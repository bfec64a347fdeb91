"""Cost of compiled predictions in plain forwards: `python benchmarks/compiled.py`.

One thread, float32, batch 1. Every round times a plain eager forward and each case, one after the
other; the figure is the median over the rounds of their ratio. Processor time, which other work on
the machine changes less than the clock; it is still noisy on a shared machine, so the smallest
ratio is given as well. Writes benchmarks/results/compiled.json.
"""

import json
import platform
import statistics
import time
from pathlib import Path

import torch
from models.resnet import ResNet18

import howsure as hs
from howsure.compiling import Compiled
from howsure.experiments.steering.model import DroNet

RESULT = Path(__file__).parent / "results" / "compiled.json"
ROUNDS = 15
NOISE = (2 / 255) ** 2
METHODS = {"adf": {}, "adjoint": {"probes": 0, "rate": 0.05}}


def seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def cases(net, x):
    """For each method an eager and a compiled prediction, and how far the two differ."""
    found, differences, taken = {}, {}, {}
    for method, options in METHODS.items():
        sure, compiled = hs.Uncertain(net, NOISE, method, **options), Compiled()
        start = time.perf_counter()
        one, two = compiled(sure.setup, method, x), sure(x)
        taken[method] = round(time.perf_counter() - start)
        differences[method] = max(
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
            for a, b in ((one.mean, two.mean), (one.total_var, two.total_var))
        )
        found[f"{method}, eager"] = lambda sure=sure: sure(x)
        found[f"{method}, compiled"] = lambda s=sure, c=compiled, m=method: c(s.setup, m, x)
    return found, differences, taken


def measure(net, x):
    functions, differences, taken = cases(net, x)
    ratios = {name: [] for name in functions}

    def plain():
        with torch.inference_mode():
            net(x)

    for _ in range(ROUNDS):
        for name, function in functions.items():
            forward = statistics.median(seconds(plain) for _ in range(3))
            ratios[name].append(seconds(function) / forward)
    return {
        "ratio_to_one_plain_forward": {
            name: {"median": round(statistics.median(r), 2), "smallest": round(min(r), 2)}
            for name, r in ratios.items()
        },
        "largest_relative_difference": differences,
        "seconds_to_compile": taken,
    }


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result = {
        "command": "python benchmarks/compiled.py",
        "what": "batch 1, float32, one thread; adjoint: one output, data and model, no probes",
        "rounds": ROUNDS,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "DroNet, 200 x 200": measure(DroNet().eval(), torch.rand(1, 1, 200, 200)),
        "ResNet-18, 224 x 224": measure(ResNet18(1).eval(), torch.rand(1, 3, 224, 224)),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
