"""One network with one batch size: all passes, in turns, in one process."""

from __future__ import annotations

from typing import Any

import torch

from speed.memory import peak_bytes
from speed.networks import BATCHES, NETWORKS
from speed.passes import COMPILED, FOLDED, KINDS, PLAIN, Made, folded, plain
from speed.timing import fastest, seconds

# Seconds that a single call may take, and where a figure must be measured.
_LONGEST = 6.0
_LONGEST_NEEDED = 40.0
_LONGEST_PLAIN = 1.5


def names() -> list[str]:
    """All cases."""
    return [f"{network}, batch {batch}" for network in NETWORKS for batch in BATCHES]


def measure(name: str, *, quick: bool, compile_all: bool) -> dict[str, Any]:
    """Seconds, ratios and memory of every pass of a case."""
    network, batch = name.split(", batch ")
    made = _made(network, int(batch), quick=quick, compile_all=compile_all)
    times = fastest(made.calls, budget=1 if quick else 15, rounds=2 if quick else 15)
    peaks = {each: peak_bytes(call) for each, call in made.calls.items()}
    return {
        "network": network,
        "batch": int(batch),
        "input": list(NETWORKS[network].shape),
        "seconds": times,
        "ratio_to_plain": _ratios(times, PLAIN),
        "ratio_to_folded": _ratios(times, FOLDED),
        "peak_bytes": peaks,
        "difference_of_compiled": made.difference,
        "seconds_to_compile": made.seconds_to_compile,
        "left_out": made.left_out,
    }


def _ratios(times: dict[str, float], to: str) -> dict[str, float]:
    return {name: own / times[to] for name, own in times.items()} if to in times else {}


def _made(network: str, batch: int, *, quick: bool, compile_all: bool) -> Made:
    """The calls that are short enough."""
    own, made = NETWORKS[network], Made()
    model, x = own.made(), own.input(batch)
    made.calls[PLAIN] = plain(model, x)
    forward = min(seconds(made.calls[PLAIN]) for _ in range(2))
    if forward > _LONGEST_PLAIN:
        made.left_out = dict.fromkeys(KINDS, f"a plain forward takes {forward:.0f} s")
        return made
    wanted = _compiled_kinds(network, batch, quick, compile_all)
    _add_folded(made, model, x, skip=quick or not (wanted or batch == 1))
    single = own.made(one_output=True) if own.single else model
    one_pass = 0.0
    for name, kind in KINDS.items():
        longest = _LONGEST_NEEDED if name in wanted else _LONGEST
        expected = max(kind.forwards * forward, kind.passes * one_pass)
        if expected > longest:
            made.left_out[name] = f"about {expected:.0f} s a call"
            continue
        sure = kind.uncertain(own, single if kind.method == "gradients" else model)
        took = _add(made, name, sure, x, longest)
        one_pass = one_pass or took
        if name in wanted:
            made.add_compiled(f"{name}, compiled", sure, x)
    return made


def _add(made: Made, name: str, sure: Any, x: torch.Tensor, longest: float) -> float:
    """Adds the eager call unless it is too long; what it took.

    The first run checks what the method takes for granted, and does not count.
    """
    took = min(seconds(lambda: sure(x)) for _ in range(2))
    if took > longest:
        made.left_out[name] = f"{took:.0f} s a call"
    else:
        made.calls[f"{name}, eager"] = lambda: sure(x)
    return took


def _compiled_kinds(network: str, batch: int, quick: bool, compile_all: bool) -> tuple[str, ...]:
    if quick:
        return ("ADF",) if network == "MLP" and batch == 1 else ()
    if compile_all:
        return tuple(name for name in KINDS if "samples" not in name)
    return COMPILED.get((network, batch), ())


def _add_folded(made: Made, model: torch.nn.Module, x: torch.Tensor, *, skip: bool) -> None:
    if skip:
        made.left_out[FOLDED] = "compiled for a few batch sizes only"
        return
    made.calls[FOLDED] = folded(model, x)
    made.calls[FOLDED]()
