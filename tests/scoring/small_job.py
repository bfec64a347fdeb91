"""A small scoring job, and how to run it in a process that may be killed."""

import multiprocessing
import os
import signal
import sys

import torch

import howsure as hs
from howsure.data.scoring import predict_to_file
from nets import perceptron

ROWS, BATCH, SHARD = 75, 4, 8
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "fcntl.flock")

# Children start from a process that has torch loaded already.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["howsure.data.scoring", "howsure.data.distributed", "torch.distributed"]
)


def data(rows=ROWS):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(3))


def sure(**options):
    settings = {"noise": 0.01, "method": "mc_dropout", "rate": 0.2, "samples": 3, **options}
    return hs.Uncertain(perceptron(), **settings)


def scored(out, *, rows=ROWS, **options):
    settings = {"batch": BATCH, "shard_rows": SHARD, "show_progress": False, **options}
    return predict_to_file(sure(), data(rows), out, **settings)


def run_until(out, rows, event):
    """Scores, and dies by SIGKILL just before the `event`-th change of or look at a file."""
    torch.set_num_threads(1)
    folder, flush, seen = str(out.parent), os.fsync, 0

    def count():
        nonlocal seen
        seen += 1
        if seen == event:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(name, arguments):
        if name == "fcntl.flock" or any(folder in str(each) for each in arguments):
            count()

    if event is not None:
        sys.addaudithook(lambda name, args: watch(name, args) if name in FILE_EVENTS else None)
        # A file is there and written, and has not yet its name.
        os.fsync = lambda handle: (count(), flush(handle))
    scored(out, rows=rows)


def attempt(out, *, rows=ROWS, event=None, seconds=None):
    """Whether a child finished its run: it dies at an event, or after some seconds."""
    child = PROCESSES.Process(target=run_until, args=(out, rows, event))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode == 0
