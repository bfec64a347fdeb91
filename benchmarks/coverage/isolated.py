"""Runs one measurement in a child process with limits on time and memory."""

from __future__ import annotations

import math
import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from measure import Result

_fork = multiprocessing.get_context("fork")
# The limit on time is one of the processor, so that a busy machine fails no model; one that waits
# for ever is stopped after so many times that.
_PATIENCE = 20


def run_isolated(
    work: Callable[[Result], Result], blank: Result, *, timeout: float, memory_gb: float
) -> Result:
    """The result of `work(blank)`; a model that hangs or eats all memory spoils nothing else."""
    receiver, sender = _fork.Pipe(duplex=False)
    limits = (timeout, memory_gb)
    child = _fork.Process(target=_child, args=(work, blank, limits, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if receiver.poll(_PATIENCE * timeout):
            return receiver.recv()
        blank.status, blank.reason = "timeout", f"not done after {_PATIENCE * timeout:.0f} s"
    except EOFError:
        child.join()
        blank.status, blank.reason = "memory", "the process died, probably out of memory"
        if child.exitcode == -signal.SIGXCPU:
            reason = f"not done after {timeout:.0f} s of the processor"
            blank.status, blank.reason = "timeout", reason
    finally:
        child.terminate()
        child.join()
    return blank


def _child(
    work: Callable[[Result], Result],
    blank: Result,
    limits: tuple[float, float],
    sender: Connection,
) -> None:
    seconds, bytes_ = math.ceil(limits[0]), int(limits[1] * 2**30)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))
    try:
        sender.send(work(blank))
    except Exception as error:
        blank.status = "memory" if _is_allocation(error) else "failed"
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{'/'.join(last.filename.split('/')[-2:])}:{last.lineno}"
        blank.reason = f"{type(error).__name__}: {error} ({place})"[:600]
        sender.send(blank)


def _is_allocation(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
