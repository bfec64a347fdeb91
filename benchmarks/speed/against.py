"""howsure against an implementation as in a textbook: the same samples, another program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textbook import sampled, twin
from torch import Tensor, nn

import howsure as hs
from speed.networks import NETWORKS
from speed.passes import NOISE, PLAIN, RATE, SAMPLES, plain
from speed.timing import fastest

HOWSURE, COMPILED = "howsure", "howsure, compiled"
TEXTBOOK = "textbook"
CASES = ("DroNet, batch 1", "ResNet-18, batch 1")


def measure(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """T = 20 with dropout after every convolution, by both."""
    model, x = network_of(name)
    twins = twin(model, RATE)
    settings = {"rate": RATE, "samples": SAMPLES}
    sure, fast = (hs.Uncertain(model, NOISE, "sampled_adf", **settings) for _ in range(2))
    calls = {
        PLAIN: plain(model, x),
        TEXTBOOK: lambda: sampled(twins, x, NOISE, SAMPLES),
        HOWSURE: lambda: sure(x),
    }
    if not quick:
        fast.compile()
        calls[COMPILED] = lambda: fast(x)
    return compared(calls, quick=quick)


def network_of(name: str) -> tuple[nn.Module, Tensor]:
    network, batch = name.split(", batch ")
    return NETWORKS[network].made(), NETWORKS[network].input(int(batch))


def compared(calls: dict[str, Callable[[], Any]], *, quick: bool) -> dict[str, Any]:
    """Times of all calls, and how many times howsure is faster than each other one."""
    times = fastest(calls, budget=1 if quick else 20, rounds=2 if quick else 8)
    others = [name for name in calls if name not in (PLAIN, HOWSURE, COMPILED)]
    ours = {"times_faster": HOWSURE, "times_faster_compiled": COMPILED}
    return {
        "seconds": times,
        "ratio_to_plain": {name: own / times[PLAIN] for name, own in times.items()},
        **{
            field: {name: times[name] / times[own] for name in others}
            for field, own in ours.items()
            if own in times
        },
    }
