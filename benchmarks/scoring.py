"""100,000 rows through an MLP, T = 20 or 16 points: `python benchmarks/scoring.py`.

Each case runs in a process of its own, on one thread: its peak memory is what the system reports,
and its processor time is compared with plain inference on the same batches in the same process.
Writes benchmarks/results/scoring.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench import DOCS, RESULTS, into_page, markdown, record
from torch import nn

import howsure as hs
from howsure.data.scoring import predict_to_file
from howsure_lab.experiments.runs import write_json

ROWS, FEATURES = 100_000, 32
CASES = {
    "sampled_adf, batch 256": {"method": "sampled_adf", "batch": 256},
    "sampled_adf, batch 256, chunk 20": {"method": "sampled_adf", "batch": 256, "chunk": 20},
    "sampled_adf, batch 4096": {"method": "sampled_adf", "batch": 4096},
    "mc_dropout, batch 4096": {"method": "mc_dropout", "batch": 4096},
    "noise_sampling, batch 4096": {"method": "noise_sampling", "batch": 4096},
    "gradients, batch 256": {"method": "gradients", "batch": 256},
    "gradients, batch 4096": {"method": "gradients", "batch": 4096},
}


def network():
    torch.manual_seed(0)
    sizes = (FEATURES, 128), (128, 128), (128, 2)
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())][:-1]
    return nn.Sequential(*layers).eval()


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.inference_mode()
def plain_seconds(model, x, batch):
    def once():
        start = time.process_time()
        for part in x.split(batch):
            model(part)
        return time.process_time() - start

    once()
    return min(once() for _ in range(5))


def run_case(name, folder):
    """What one case took, measured in this process."""
    torch.set_num_threads(1)
    settings = dict(CASES[name])
    batch = settings.pop("batch")
    model = network()
    x = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(0))
    samples = {} if settings["method"] == "gradients" else {"samples": 20}
    sure = hs.Uncertain(model, noise=0.01, rate=0.1, **samples, **settings)
    before, plain = peak_mb(), plain_seconds(model, x, batch)
    start, clock = time.process_time(), time.perf_counter()
    predict_to_file(sure, x, folder / "scores.npz", batch=batch, show_progress=False)
    seconds, wall = time.process_time() - start, time.perf_counter() - clock
    with np.load(folder / "scores.npz") as found:
        assert all(len(found[key]) == ROWS and np.isfinite(found[key]).all() for key in found.files)
    return {
        "peak_memory_mb": round(peak_mb()),
        "of_which_before_scoring_mb": round(before),
        "processor_seconds": round(seconds, 1),
        "wall_seconds": round(wall, 1),
        "rows_per_processor_second": round(ROWS / seconds),
        "ratio_to_plain_inference": round(seconds / plain, 1),
        "plain_rows_per_processor_second": round(ROWS / plain),
    }


def table(result):
    """The result as Markdown, without cases that the benchmark no longer has."""
    rows = [
        (
            name,
            f"{case['peak_memory_mb']} MB",
            f"{case['of_which_before_scoring_mb']} MB",
            f"{case['rows_per_processor_second']:,}",
            f"{case['ratio_to_plain_inference']:.0f}",
        )
        for name, case in result["cases"].items()
        if name in CASES
    ]
    header = ("", "peak memory", "of it before scoring", "rows per second of processor time")
    return (
        f"{result['rows']:,} rows of {FEATURES} features through an {result['model']}\n"
        f"(`{result['command']}`). Peak memory is that of the whole process, torch included.\n\n"
        + markdown((*header, "times plain inference"), rows)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="run one case and print its numbers")
    case = parser.parse_args().case
    if case:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(run_case(case, Path(folder))))
        return
    found = {}
    for name in CASES:
        command = [sys.executable, __file__, "--case", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout)
        print(name, json.dumps(found[name]), flush=True)
    result = {
        **record(),
        "model": "MLP 32-128-128-2, ReLU, float32, one thread, eager; noise and dropout; T = 20, "
        "gradients at 16 points",
        "rows": ROWS,
        "cases": found,
    }
    write_json(RESULTS / "scoring.json", result)
    into_page(DOCS / "scoring.md", "scoring", table(result))


if __name__ == "__main__":
    main()
