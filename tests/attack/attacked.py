"""Gives hostile `.pt2` files to the command line; prints what became of each, as JSON lines.

A process of its own, since a file might end it: `python attacked.py FIRST LAST HONEST...`.
"""

import contextlib
import io
import json
import os
import sys
import warnings
from pathlib import Path

from hostile_texts import CANARY
from mutants import mutant, read

from howsure.cli import main

COMMAND = ["predict", "mutant.pt2", "x.npy", "--method", "noise_sampling", "--samples", "2"]
OPTIONS = ["--noise-std", "0.1", "--quiet", "--fresh", "--out", "out.npz"]
# What a network never does when it is loaded and run.
EVENTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
EVENTS += ("pickle.find_class", "ctypes.dlopen")
seen = []


def watch(event, arguments):
    if event in EVENTS and watching:
        seen.append(event)


def attacked(content):
    """Exit code, lines on stderr, and the canary, after one file."""
    Path("mutant.pt2").write_bytes(content)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main([*COMMAND, *OPTIONS])
    sprung = Path(CANARY).exists()
    return {"code": code, "error": errors.getvalue().strip().splitlines(), "sprung": sprung}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    first, last, *honest = sys.argv[1:]
    programs = [read(path) for path in honest]
    watching = False
    sys.addaudithook(watch)
    for path in honest:  # imports everything that is loaded late
        assert attacked(Path(path).read_bytes())["code"] == 0, path
    for seed in range(int(first), int(last)):
        content = mutant(programs[seed % len(programs)], seed)
        seen.clear()
        watching = True
        found = attacked(content)
        watching = False
        print(json.dumps({"seed": seed, **found, "events": sorted(set(seen))}), flush=True)
    os._exit(0)
