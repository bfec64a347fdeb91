"""Runs real architectures on Gaussians; writes results/coverage.json and results/coverage.md.

    python benchmarks/coverage/run.py                       every model
    python benchmarks/coverage/run.py --only missing        those not yet ok
    python benchmarks/coverage/run.py --library timm --match swin

Results are kept per model, so that a run can be stopped and continued. README.md tells how to make
the environment.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torchvision_shim
from isolated import run_isolated
from measure import Case, Result, measure

import howsure

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent / "lab/src")]

import table  # noqa: E402
from bench import RESULTS, record  # noqa: E402

from howsure_lab.experiments.runs import write_json  # noqa: E402

COMMAND = "python benchmarks/coverage/run.py"
PACKAGES = ("timm", "torchvision", "transformers")


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    cases = all_cases(options.library)
    file = options.out / "coverage.json"
    # `made`, the record of each library, and `models`, the rows.
    earlier = json.loads(file.read_text()) if file.exists() else {"made": {}, "models": []}
    made = earlier["made"]
    known = {f"{row['library']}/{row['family']}/{row['name']}": row for row in earlier["models"]}
    source = source_fingerprint()
    todo = chosen(cases, known, options)
    # The quick ones first, so that a run that is stopped has most of them.
    todo.sort(key=lambda case: known.get(case.key, {}).get("plain_seconds") or math.inf)
    for case in todo:
        blank = Result(case.library, case.family, case.name, case.further)
        work = functools.partial(
            measure, case, repeats=options.repeats, only_defaults=options.defaults
        )
        result = run_isolated(work, blank, timeout=options.timeout, memory_gb=options.memory_gb)
        known[case.key] = row_of(known.get(case.key), result, source, options)
        made[case.library] = record(0, asked=COMMAND, packages=PACKAGES)
        save(options.out, cases, known, made)
        report(case, result)


def row_of(
    earlier: dict[str, Any] | None, result: Result, source: str, options: argparse.Namespace
) -> dict[str, Any]:
    """The row of a model; of a run for the defaults alone what was measured besides stays.

    A model that only took too long was not tried: it does not count as failed.
    """
    if not options.defaults or earlier is None:
        return {**vars(result), "source": source}
    if result.status == "timeout":
        return earlier
    if result.status != "ok":
        result.default = result.few = "failed"
        result.default_notes = [f"{result.status}: {result.reason}"]
    return {**earlier, **result.defaults()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=("all", "missing", "new"), default="all")
    parser.add_argument("--library", choices=table.LIBRARIES)
    parser.add_argument("--match", default="", help="part of the family or model name")
    parser.add_argument("--timeout", type=float, default=300, help="processor seconds per model")
    parser.add_argument("--repeats", type=int, default=3, help="for the timing; 0 leaves it out")
    parser.add_argument(
        "--defaults", action="store_true", help="only what `hs.Uncertain` does by itself"
    )
    parser.add_argument("--memory-gb", type=float, default=14)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def all_cases(library: str | None) -> list[Case]:
    """Every model of every library, or of one, in the order of the table."""
    if library != "handwritten":
        torchvision_shim.declare_missing_operators()
    names = table.LIBRARIES if library is None else (library,)
    zoos = (importlib.import_module(f"zoo_{name}") for name in names)
    return [case for zoo in zoos for case in zoo.cases()]


def chosen(
    cases: list[Case], known: dict[str, dict[str, Any]], options: argparse.Namespace
) -> list[Case]:
    """What the command line asks for."""
    done = {
        "all": set(),
        "new": {key for key, row in known.items() if row.get("few") or not options.defaults},
        "missing": {key for key, row in known.items() if row["status"] == "ok"},
    }[options.only]
    return [
        case
        for case in cases
        if case.key not in done
        and options.library in (None, case.library)
        and options.match in case.key
    ]


def save(
    out: Path, cases: list[Case], known: dict[str, dict[str, Any]], made: dict[str, Any]
) -> None:
    """Both files, after every model; the page also counts the models that were not run."""
    out.mkdir(parents=True, exist_ok=True)
    libraries = {case.library for case in cases}
    keys = {case.key for case in cases}
    # Models of libraries that this run did not load stay; those that a zoo no longer has go.
    tried = [row for key, row in known.items() if key in keys or row["library"] not in libraries]
    write_json(out / "coverage.json", {"made": made, "models": tried})
    waiting = [case for case in cases if case.key not in known]
    rows = tried + [
        vars(Result(case.library, case.family, case.name, case.further, status="not run"))
        for case in waiting
    ]
    (out / "coverage.md").write_text(table.page(rows, made))


def source_fingerprint() -> str:
    """Tells apart results that were measured with different states of the library."""
    package = Path(howsure.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def report(case: Case, result: Result) -> None:
    cost = "" if result.cost_ratio is None else f"cost {result.cost_ratio:.1f}"
    error = "" if result.zero_noise_error is None else f"error {result.zero_noise_error:.1e}"
    named = " ".join(entry["operation"] for entry in result.missing)
    ratio = "" if result.few_ratio is None else f"{result.few_ratio:.2f}"
    how = f"by default {result.default}, of four outputs {result.few} {ratio}"
    print(case.key, result.status, error, cost, how, named or result.reason, flush=True)


if __name__ == "__main__":
    main()
