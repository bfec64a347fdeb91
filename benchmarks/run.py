"""Runs the speed benchmarks: `python benchmarks/run.py`, or `make bench`.

Every case has a process of its own with one thread; inside it, all passes take turns, and the
shortest time of each counts. Results go to benchmarks/results/*.json case by case: a run that was
stopped goes on where it was. At the end come must_hold.json and the page docs/benchmarks.md.

    python benchmarks/run.py --list
    python benchmarks/run.py --quick                      # a few cases, to out/bench
    python benchmarks/run.py --only "ResNet-18" growth    # cases whose name contains a word
    python benchmarks/run.py --only peers --again --peer-python PATH
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from bench import Results, folder_of  # noqa: E402
from speed import cases, must_hold, page  # noqa: E402

_LONGEST_CASE = 1800  # seconds


def main() -> int:
    """Runs what was asked for; the exit code."""
    asked = _parser().parse_args()
    if asked.child:
        return _child(asked)
    todo = cases.chosen(asked.only, quick=asked.quick)
    if asked.list or not todo:
        print("\n".join(map(str, todo)) or f"No case has {asked.only} in its name; see --list.")
        return 0 if todo else 2
    folder = folder_of(asked)
    done = [_done(each, folder, asked, f"{i}/{len(todo)}") for i, each in enumerate(todo, 1)]
    for row in must_hold.write(folder):
        figure = "not measured" if row["figure"] is None else f"{row['figure']:.3g}"
        mark = {True: "ok  ", False: "MISS", None: "    "}[row["reached"]]
        print(f"{mark} {row['row']}: {figure} ({row['target']})")
    page.publish(folder)
    return 0 if all(done) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="which cases")
    parser.add_argument("--quick", action="store_true", help="few cases, few rounds, no compiling")
    parser.add_argument("--compile-all", action="store_true", help="every pass compiled too; hours")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--peer-python", help="an interpreter that has the peers")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser


def _done(case: cases.Case, folder: Path, asked: argparse.Namespace, count: str) -> bool:
    """Whether a case is in its file, after it was run if need be."""
    results = Results(folder, case.kind, must_hold.COMMAND)
    if results.has(case.name, quick=asked.quick) and not asked.again:
        print(f"{count} {case}: there already", flush=True)
        return True
    print(f"{count} {case} ...", end=" ", flush=True)
    start, used = time.perf_counter(), _processor_seconds()
    result, trouble = _in_a_process(case, asked)
    taken = f"{time.perf_counter() - start:.0f} s, processor {_processor_seconds() - used:.0f} s"
    print(trouble or taken, flush=True)
    if result is not None:
        results.add(case.name, result, quick=asked.quick)
    return result is not None


def _processor_seconds() -> float:
    """What finished cases have used, with their compilers."""
    times = os.times()
    return times.children_user + times.children_system


def _in_a_process(case: cases.Case, asked: argparse.Namespace) -> tuple[dict[str, Any] | None, str]:
    """The result, or what went wrong."""
    python = asked.peer_python if case.kind == "peers" and asked.peer_python else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [python, "-W", "ignore", __file__, "--child", case.kind, case.name, str(file)]
        command += ["--quick"] * asked.quick + ["--compile-all"] * asked.compile_all
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LONGEST_CASE, env=settings
            )
        except subprocess.TimeoutExpired:
            return None, f"stopped after {_LONGEST_CASE} s"
        if done.returncode or not file.exists():
            return None, f"failed:\n{done.stderr[-2000:]}"
        return json.loads(file.read_text()), ""


def _child(asked: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    kind, name, file = asked.child
    result = cases.Case(kind, name).measure(quick=asked.quick, compile_all=asked.compile_all)
    Path(file).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
