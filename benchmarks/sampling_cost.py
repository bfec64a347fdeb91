"""Cost of T = 20 samples in plain forwards: `python benchmarks/sampling_cost.py`.

One thread, float32, eager, ResNet-18 at 224 x 224, batch 1. Interleaved, median of the ratios;
processor time, which other work on the machine changes less than the clock. Writes
benchmarks/results/sampling_cost.json.
"""

import json
import platform
import statistics
import time
from pathlib import Path

import torch
from models.resnet import ResNet18

import howsure as hs

RESULT = Path(__file__).parent / "results" / "sampling_cost.json"
ROUNDS = 5


def seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def ratios(cases, plain):
    """Each case's time over a plain forward's, both taken in the same round."""
    for function in (*cases.values(), plain):
        function()
    found = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, function in cases.items():
            forward = min(seconds(plain) for _ in range(3))
            found[name].append(seconds(function) / forward)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    net = ResNet18().eval()
    x = torch.rand(1, 3, 224, 224, generator=generator)
    noise = (2 / 255) ** 2

    def uncertain(**options):
        return hs.Uncertain(net, noise, "sampled_adf", rate=0.05, samples=20, **options)

    everywhere, last = uncertain(), uncertain(placement=["layers.3.1.conv2"])
    cases = {
        "propagate": lambda: hs.propagate(net, x, noise),
        "T = 20, dropout after every layer": lambda: everywhere(x),
        "T = 20, dropout before the last layer": lambda: last(x),
    }
    with torch.inference_mode():
        found = ratios(cases, lambda: net(x))
    result = {
        "command": "python benchmarks/sampling_cost.py",
        "model": "ResNet-18, 224 x 224, batch 1, float32, one thread, eager",
        "ratio_to_one_plain_forward": found,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "seed": 0,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
