"""Runs one measurement in a child process with limits on time and memory."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from measure import Result

_fork = multiprocessing.get_context("fork")


def run_isolated(
    work: Callable[[Result], Result], blank: Result, *, timeout: float, memory_gb: float
) -> Result:
    """The result of `work(blank)`; a model that hangs or eats all memory spoils nothing else."""
    receiver, sender = _fork.Pipe(duplex=False)
    child = _fork.Process(target=_child, args=(work, blank, memory_gb, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if receiver.poll(timeout):
            return receiver.recv()
        blank.status, blank.reason = "timeout", f"not done after {timeout:.0f} s"
    except EOFError:
        blank.status, blank.reason = "memory", "the process died, probably out of memory"
    finally:
        child.terminate()
        child.join()
    return blank


def _child(
    work: Callable[[Result], Result], blank: Result, memory_gb: float, sender: Connection
) -> None:
    limit = int(memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
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
