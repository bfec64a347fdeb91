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

HOWSURE = "howsure"
TEXTBOOK = "textbook"
CASES = ("DroNet, batch 1", "ResNet-18, batch 1")


def measure(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """T = 20 with dropout after every convolution, by both."""
    model, x = network_of(name)
    twins = twin(model, RATE)
    sure = hs.Uncertain(model, NOISE, "sampled_adf", rate=RATE, samples=SAMPLES)
    calls = {
        PLAIN: plain(model, x),
        TEXTBOOK: lambda: sampled(twins, x, NOISE, SAMPLES),
        HOWSURE: lambda: sure(x),
    }
    return compared(calls, quick=quick)


def network_of(name: str) -> tuple[nn.Module, Tensor]:
    network, batch = name.split(", batch ")
    return NETWORKS[network].made(), NETWORKS[network].input(int(batch))


def compared(calls: dict[str, Callable[[], Any]], *, quick: bool) -> dict[str, Any]:
    """Times of all calls, and how many times howsure is faster than each other one."""
    times = fastest(calls, budget=1 if quick else 20, rounds=2 if quick else 8)
    others = [name for name in calls if name not in (PLAIN, HOWSURE)]
    return {
        "seconds": times,
        "ratio_to_plain": {name: own / times[PLAIN] for name, own in times.items()},
        "times_faster": {name: times[name] / times[HOWSURE] for name in others},
    }
