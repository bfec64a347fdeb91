"""What the benchmarks share: records of results, tables of pages, kept computations, times."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import howsure as hs
from howsure_lab.experiments.runs import environment, write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
# Options with a place on one machine, and the word that stands for it.
_PLACES = {
    "--data": "PATH",
    "--peer-python": "PYTHON",
    "--out": "FOLDER",
    "--truth": "FILE",
    "--before": "FILE",
    "--rows": "FILE",
}


def folder_of(asked: argparse.Namespace) -> Path:
    """Where `--out` and `--quick` let the results go."""
    return asked.out or (ROOT / "out" / "bench" if asked.quick else RESULTS)


def record(
    seed: int | Sequence[int] = 0, *, asked: str | None = None, packages: Sequence[str] = ()
) -> dict[str, Any]:
    """What it takes to make a result again: command, seed, commit, date, versions, hardware.

    Args:
        seed: Of everything random.
        asked: The command; that of this process if not given.
        packages: Whose versions matter besides the usual ones.
    """
    made = {"command": asked or command(sys.argv), "seed": seed, "commit": commit()}
    return {**made, "environment": environment(packages)}


@functools.cache
def commit() -> str:
    """The last one of `src`, with a plus sign where files differ from it; "" outside of git."""
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True)
    short = git(["git", "log", "-1", "--format=%h", "--", "src"]).stdout.strip()
    changed = git(["git", "status", "--porcelain", "src"]).stdout.strip()
    return f"{short}+" if changed else short


def command(given: Sequence[str]) -> str:
    """The command line of a benchmark, without the places of one machine."""
    script = Path(given[0]).resolve()
    names = [script.name] if script.parent.name == "benchmarks" else script.parts[-2:]
    words = ["python", "/".join(["benchmarks", *names])]
    words += [_PLACES.get(before, word) for before, word in pairwise(given)]
    return shlex.join(words)


def write(path: Path, content: Mapping[str, Any], seed: int | Sequence[int] = 0) -> None:
    """Writes a result with its record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**record(seed), **content})


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]], *, wide: bool = False) -> str:
    """A table; `wide` has spaces around the dashes, and around nothing in the first cell."""
    names, dashes = " | ".join(header), ["---"] * len(header)
    first = [f"| {names} |", f"| {' | '.join(dashes)} |"]
    if not wide:
        first = [f"| {names.lstrip()} |", f"|{'|'.join(dashes)}|"]
    return "\n".join([*first, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def into_page(page: Path, name: str, content: str) -> None:
    """Replaces what stands between `<!-- name:begin -->` and `<!-- name:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = page.read_text()
    head, tail = text.split(begin)[0], text.split(end)[1]
    page.write_text(f"{head}{begin}\n{content}\n{end}{tail}")


def in_page(page: Path, name: str) -> str:
    """What stands between `<!-- name:begin -->` and `<!-- name:end -->`."""
    _, begun = page.read_text().split(f"<!-- {name}:begin -->\n")
    return begun.split(f"\n<!-- {name}:end -->")[0]


Kept = TypeVar("Kept")  # a tensor, or a dict of them


def cached(name: str, compute: Callable[[], Kept]) -> Kept:
    """What has this name in the temporary folder, computed once."""
    key = hashlib.sha256(name.encode()).hexdigest()[:16]
    file = Path(tempfile.gettempdir()) / "howsure_accuracy" / f"{key}.pt"
    if file.exists():
        return torch.load(file, weights_only=True)
    file.parent.mkdir(exist_ok=True)
    result = compute()
    torch.save(result, file)
    return result


def draws(
    model: nn.Module,
    x: Tensor,
    std: float | Tensor,
    samples: int,
    generator: torch.Generator | None = None,
) -> Tensor:  # (samples, inputs, outputs)
    """Outputs of the plain network for noisy inputs: one input after the other, in large batches.

    Without a generator the random numbers are the same ones in every call.
    """
    generator = generator or torch.Generator().manual_seed(0)
    parts = torch.arange(samples).split(max(1, 2**20 // x[0].numel()))

    def noisy(row: Tensor, count: int) -> Tensor:
        return model(row + std * torch.randn(count, *row.shape, generator=generator))

    with torch.inference_mode():
        return torch.stack([torch.cat([noisy(row, len(p)) for p in parts]) for row in x], 1)


def fit_each(
    make: Callable[[], hs.Uncertain], ways: Mapping[str, Mapping[str, Any]], held_out: Any
) -> dict[str, hs.Uncertain]:
    """A wrapper for each way of fitting, that is, for each set of options of `fit`."""
    sures = {}
    for name, options in ways.items():
        sures[name] = make()
        start = time.process_time()
        fit = sures[name].fit(held_out, show_progress=False, **options)
        print(f"{name}: {time.process_time() - start:.0f} s\n{fit}\n", flush=True)
    return sures


class Results:
    """The results of one kind of case in one JSON file.

    Cases that were measured with other versions or on another machine are dropped: the figures of
    a file can be compared.
    """

    def __init__(self, folder: Path, kind: str, asked: str) -> None:
        self.path = folder / f"{kind}.json"
        # The seed is that of the weights; those of inputs and points are fixed, too.
        self.record = record(0, asked=asked)
        self.record["environment"]["hardware"]["threads"] = 1  # what the cases run with
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        here, there = ({**made.get("environment", {}), "date": ""} for made in (self.record, known))
        self.cases: dict[str, Any] = known["cases"] if here == there else {}

    def has(self, name: str, *, quick: bool) -> bool:
        """Whether a case is there.

        A quick one does not stand for a full one, nor does one that could not be measured.
        """
        found = self.cases.get(name)
        if found is None or isinstance(found["result"].get("left_out"), str):
            return False
        return quick or not found["quick"]

    def add(self, name: str, result: dict[str, Any], *, quick: bool) -> None:
        """Writes the file with a case more."""
        made = {"date": self.record["environment"]["date"], "commit": self.record["commit"]}
        self.cases[name] = {**made, "quick": quick, "result": _rounded(result)}
        write_json(self.path, {**self.record, "cases": self.cases})


def load_cases(folder: Path, kind: str) -> dict[str, Any]:
    """The results of a kind's cases by name; none if there is no file."""
    path = folder / f"{kind}.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    return {name: case["result"] for name, case in cases.items()}


def number(value: float | None) -> str:
    """Three digits; a dash for nothing."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _rounded(tree: Any) -> Any:
    """Floats with four digits: more would be noise."""
    if isinstance(tree, dict):
        return {key: _rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return float(f"{tree:.4g}") if isinstance(tree, float) else tree


Call = Callable[[], Any]
# A single measurement is at least this long; short calls are repeated within it.
_LEAST_SECONDS = 0.004


def seconds(call: Call, repeats: int = 1) -> float:
    """Processor time of one call: other processes that run in between do not count."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def fastest(calls: Mapping[str, Call], *, budget: float, rounds: int = 15) -> dict[str, float]:
    """The shortest time of every call, which other work on the machine changes least."""
    return {name: min(times) for name, times in in_turns(calls, budget, rounds).items()}


def in_turns(calls: Mapping[str, Call], budget: float, rounds: int) -> dict[str, list[float]]:
    """The times of every call.

    Each round runs every call once, in the same order. The first round warms up and does not count;
    then there are at least 2 and at most `rounds` of them, as many as `budget` seconds allow.
    """
    # The first call is slow, so that these repeats are too few rather than too many.
    repeats = {
        name: max(1, math.ceil(_LEAST_SECONDS / max(seconds(call), 1e-7)))
        for name, call in calls.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= 2 and time.perf_counter() - start > budget:
            break
        for name, call in calls.items():
            times[name].append(seconds(call, repeats[name]))
    return times


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size by least squares: 1 is linear."""
    return linear_regression([math.log(s) for s in sizes], [math.log(t) for t in times]).slope


def peak_bytes(call: Callable[[], Any]) -> int:
    """The largest sum of what torch's allocator gave out during the call and had not got back.

    It counts compiled code and temporaries too, not what libraries allocate for themselves. What
    existed before the call, weights and input, is not in it.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    kineto = watched.profiler
    assert kineto is not None and kineto.kineto_results is not None
    events: list[Any] = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
