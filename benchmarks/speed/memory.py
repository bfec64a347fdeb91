"""The most memory that tensors take at one time during a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


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
