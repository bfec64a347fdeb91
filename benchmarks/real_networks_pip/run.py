"""Runs networks from PyPI by default settings; writes results/real_networks_pip.json and a page.

    python benchmarks/real_networks_pip/run.py                    every network
    python benchmarks/real_networks_pip/run.py --match MTCNN      some of them
    python benchmarks/real_networks_pip/run.py --missing          those without a prediction yet
    python benchmarks/real_networks_pip/run.py --steps compile    that step; the others are kept
    python benchmarks/real_networks_pip/run.py --page             the page from the kept results

Each network runs in a process of its own; results are kept per network. README.md tells how to make
the environment.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import torch
from measure import measured
from networks import CASES
from page import written

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/real_networks_pip.json"
COMMAND = "python benchmarks/real_networks_pip/run.py"
STEPS = ["predict", "check", "budget", "fit", "export"]
PAGE = ROOT / "docs/real_networks.md"
sys.path.append(str(ROOT / "benchmarks/coverage"))


def main() -> None:
    options = parse()
    if options.one:
        for found in one(options.one, options.steps):
            print(json.dumps(found), flush=True)
        return
    known = json.loads(RESULTS.read_text())["networks"] if RESULTS.exists() else {}
    wanted = re.compile(options.match, re.IGNORECASE)
    chosen = [case for case in CASES if wanted.search(case.name) and not options.page]
    if options.missing:
        chosen = [case for case in chosen if "predict" not in known.get(case.name, {})]
    with ThreadPool(options.jobs) as pool:
        work = functools.partial(isolated, options=options)
        for name, found in pool.imap_unordered(work, [case.name for case in chosen]):
            known[name] = {**known.get(name, {}), "failed": "", **found}
            print(name, found.get("failed", ""), found.get("predict", {}), flush=True)
            save(known)
    PAGE.write_text(written(json.loads(RESULTS.read_text())))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--match", default="", help="regular expression for names")
    parser.add_argument("--missing", action="store_true", help="those without a prediction")
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=(*STEPS, "compile"))
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    parser.add_argument("--timeout", type=float, default=240, help="seconds per network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def isolated(name: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The name, and the result from a process of its own, or why there is none."""
    command = [sys.executable, __file__, "--one", name, "--steps", *options.steps]
    try:
        done = subprocess.run(command, capture_output=True, timeout=options.timeout)
        output, reason = done.stdout, done.stderr.decode().strip().splitlines()[-1:]
        failed = reason[0] if done.returncode and reason else ""
    except subprocess.TimeoutExpired as error:
        output, failed = error.stdout or b"", f"not done after {options.timeout:.0f} s"
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    found = stamped(json.loads(lines[-1]), commit()) if lines else {}
    return name, {**found, "failed": failed} if failed else found


def stamped(found: dict[str, Any], by: str) -> dict[str, Any]:
    """The result with the library's commit in each step: steps may be run one at a time."""
    return {
        key: {**value, "commit": by} if key in (*STEPS, "compile") else value
        for key, value in found.items()
    }


@functools.cache
def commit() -> str:
    """The library's commit, with a plus sign where `src` differs from it."""
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    changed = git(["git", "status", "--porcelain", "src"]).stdout.strip()
    short = git(["git", "rev-parse", "--short=7", "HEAD"]).stdout.strip()
    return f"{short}+" if changed else short


def one(name: str, steps: list[str]) -> Iterator[dict[str, Any]]:
    """Everything about one network, in this process, after every step."""
    import torchvision_shim

    torchvision_shim.declare_missing_operators()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    return measured(next(case for case in CASES if case.name == name), steps)


def save(known: dict[str, Any]) -> None:
    """Writes the results with their environment."""
    packages = ("torch", "numpy", *dict.fromkeys(case.package for case in CASES))
    environment = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "threads": 1,
        "packages": {name: version(name) for name in packages},
    }
    rows = {case.name: known[case.name] for case in CASES if case.name in known}
    skipped = [case.name for case in CASES if case.name not in known]
    made = {"command": COMMAND, "seed": 0, "environment": environment}
    results = {**made, "networks": rows, "not_run": skipped}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
