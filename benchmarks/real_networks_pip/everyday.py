"""More networks from PyPI by default settings; writes results/everyday_networks.json and a table.

    python benchmarks/real_networks_pip/everyday.py                 every network
    python benchmarks/real_networks_pip/everyday.py --match Mamba   some of them
    python benchmarks/real_networks_pip/everyday.py --table         the table from kept results

Networks whose package is not installed are skipped; the results of others are kept. README.md says
how to make the environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import warnings
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import torch
from everyday_networks import EVERYDAY
from everyday_table import table
from measure import attempt, predicted
from shipped import Case

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/everyday_networks.json"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "lab/src")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--match", default="", help="regular expression for names")
    parser.add_argument("--table", action="store_true", help="write the table, run nothing")
    parser.add_argument("--missing", action="store_true", help="only those without a result")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(next(case for case in EVERYDAY if case.name == options.one))))
        return
    rows = json.loads(RESULTS.read_text())["networks"] if RESULTS.exists() else {}
    names = [
        case.name
        for case in EVERYDAY
        if re.search(options.match, case.name, re.IGNORECASE) and version(case.package)
        if not (options.table or (options.missing and rows.get(case.name, {}).get("ok")))
    ]
    with ThreadPool(options.jobs) as pool:
        work = [(name, options.timeout) for name in names]
        for name, row in pool.imap_unordered(lambda given: isolated(*given), work):
            rows[name] = row
            print(name, row, flush=True)
            save(rows)
    write_table()


def isolated(name: str, timeout: float) -> tuple[str, dict[str, Any]]:
    """The name, and its result from a process of its own, or the error."""
    command = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return name, {"ok": False, "error": f"not done after {timeout:.0f} s"}
    if done.returncode:
        return name, {"ok": False, "error": done.stderr.strip().splitlines()[-1]}
    return name, json.loads(done.stdout.splitlines()[-1])


def one(case: Case) -> dict[str, Any]:
    """The default prediction of one network against Monte Carlo."""
    import howsure as hs

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    model, x = case.build(), case.inputs()
    noise: Any = hs.noise.std(case.noise_std)
    noise = {case.keyword: noise} if case.keyword else noise
    sure = hs.Uncertain(model, noise, **case.options)
    made = {
        "package": case.package,
        "version": version(case.package),
        "parameters": sum(p.numel() for p in model.parameters()),
        "inputs": list(x.shape),
        "noise_std": case.noise_std,
        "samples": case.samples,
    }
    return {**made, **attempt(lambda: predicted(case, sure, model, x))}


def version(package: str) -> str:
    """The installed version, "" where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def save(rows: dict[str, Any]) -> None:
    """Writes the results with their record, in the order of the networks."""
    from record import record

    kept = {case.name: rows[case.name] for case in EVERYDAY if case.name in rows}
    made = {**record(0), "command": "python benchmarks/real_networks_pip/everyday.py"}
    RESULTS.write_text(json.dumps({**made, "networks": kept}, indent=1) + "\n")


def write_table() -> None:
    from page import into_page  # Of `benchmarks`, not the page of `run.py`.

    page = ROOT / "docs/right_for_my_model.md"
    into_page(page, "everyday-networks", table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
