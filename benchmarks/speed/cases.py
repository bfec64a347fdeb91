"""All cases of the suite, and how each is measured."""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench import exponent, fastest, peak_bytes, seconds
from models.resnet import ResNet18
from textbook import sampled, twin
from torch import nn

import howsure as hs
from howsure_lab.experiments.steering.model import DroNet
from speed.networks import (
    BATCHES,
    COMPILED,
    FOLDED,
    KINDS,
    NETWORKS,
    NOISE,
    PLAIN,
    RATE,
    SAMPLES,
    Made,
    folded,
    plain,
    relative,
)
from speed.peers import PEER_CASES, measure_peers

# Names of `KINDS`, exported as a `.pt2` file; ONNX is checked by the tests.
_EXPORTED = ("ADF", "T = 20, dropout everywhere")
EXACTNESS_CASES = ("exported", "bfloat16 variance")


def measure_exactness(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """The largest relative differences to eager in float32, DroNet, batch 2."""
    network = NETWORKS["DroNet"]
    model, x = network.made(), network.input(2)
    differences = {}
    for kind in _EXPORTED[: 1 if quick and name == "exported" else 2]:
        sure = KINDS[kind].uncertain(network, model)
        if name == "exported":
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                differences[kind] = hs.export(sure, x, Path(folder) / "net.pt2").difference
        else:
            full = sure(x)
            sure.setup = sure.setup.replace(variance_dtype=torch.bfloat16)
            differences[kind] = relative(sure(x), full)
    return {"difference": differences}


HOWSURE, HOWSURE_COMPILED = "howsure", "howsure, compiled"
TEXTBOOK = "textbook"
TEXTBOOK_CASES = ("DroNet, batch 1", "ResNet-18, batch 1")


def measure_textbook(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """T = 20 with dropout after every convolution, by both."""
    network, batch = name.split(", batch ")
    model, x = NETWORKS[network].made(), NETWORKS[network].input(int(batch))
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
        calls[HOWSURE_COMPILED] = lambda: fast(x)
    times = fastest(calls, budget=1 if quick else 20, rounds=2 if quick else 8)
    ours = {"times_faster": HOWSURE, "times_faster_compiled": HOWSURE_COMPILED}
    return {
        "seconds": times,
        "ratio_to_plain": _ratios(times, PLAIN),
        **{
            field: {TEXTBOOK: times[TEXTBOOK] / times[own]}
            for field, own in ours.items()
            if own in times
        },
    }


CHUNK = 4
CHUNKED = f"sampled ADF, chunk = {CHUNK}"
Ways = dict[str, tuple[str, dict[str, Any]]]  # by name: a method and its options
_TWO: Ways = {"ADF": ("adf", {}), "gradients": ("gradients", {})}
_DROPOUT = {"samples": SAMPLES, "rate": RATE}
_THREE: Ways = {"ADF": _TWO["ADF"], "T = 20": ("sampled_adf", _DROPOUT), **_TWO}


@dataclass(frozen=True)
class Growth:
    """Predictions of growing size by several methods.

    Attributes:
        what: What grows.
        sizes: How far; the exponent is with respect to these.
        made: From a size to a network with random weights, the shape of its inputs, and the ways.
        unit: What a size is.
    """

    what: str
    sizes: Sequence[int]
    made: Callable[[int], tuple[nn.Module, tuple[int, ...], Ways]]
    unit: str

    def calls(self, size: int) -> dict[str, Callable[[], Any]]:
        """A prediction by each way."""
        torch.manual_seed(0)
        model, shape, ways = self.made(size)
        model.eval().requires_grad_(False)
        x = torch.rand(shape)
        sures = {
            name: hs.Uncertain(model, NOISE, method, **options)
            for name, (method, options) in ways.items()
        }
        return {name: lambda sure=sure: sure(x) for name, sure in sures.items()}


def _dronet(outputs: int = 1) -> nn.Module:
    net = DroNet()
    net.steer = nn.Linear(net.steer.in_features, outputs)
    return net


def _chain(layers: int) -> nn.Module:
    """Convolutions whose activations keep their size, as in trained networks."""
    convolutions = [nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1) for i in range(layers)]
    for each in convolutions:
        nn.init.kaiming_normal_(each.weight)
    pairs = [part for each in convolutions for part in (nn.ReLU(), each)][1:]
    return nn.Sequential(*pairs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1))


def _by_samples(count: int) -> Ways:
    many, dropout = {"samples": count}, {"samples": count, "rate": RATE}
    return {
        "gradients": ("gradients", many),
        "Monte Carlo": ("noise_sampling", many),
        "sampled ADF": ("sampled_adf", dropout),
        CHUNKED: ("sampled_adf", {**dropout, "chunk": CHUNK}),
    }


GROWTH = {
    "samples": Growth(
        "samples or points (DroNet)",
        (8, 16, 32, 64),
        lambda count: (_dronet(), (1, 1, 200, 200), _by_samples(count)),
        "samples",
    ),
    "batch": Growth(
        "batch (DroNet)",
        (1, 2, 4, 8, 16),
        lambda count: (_dronet(), (count, 1, 200, 200), _THREE),
        "inputs",
    ),
    "resolution": Growth(
        "resolution (ResNet-18)",
        (64, 96, 128, 192, 256),
        lambda side: (ResNet18(1), (1, 3, side, side), _TWO),
        "pixels",
    ),
    "depth": Growth(
        "depth (32 channels, 48 x 48)",
        (4, 8, 16, 32),
        lambda layers: (_chain(layers), (1, 3, 48, 48), _THREE),
        "convolutions",
    ),
    "outputs": Growth(
        "outputs (DroNet)",
        (1, 2, 4, 8, 16, 32),
        lambda count: (_dronet(count), (1, 1, 200, 200), _TWO),
        "outputs",
    ),
}


def measure_growth(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """Seconds and memory at every size, and their exponents for each method."""
    growth = GROWTH[name]
    sizes = list(growth.sizes)[:3] if quick else list(growth.sizes)
    calls = {(size, method): c for size in sizes for method, c in growth.calls(size).items()}
    # The sizes take turns, as the methods do.
    labels = {f"{size} {method}": call for (size, method), call in calls.items()}
    times = fastest(labels, budget=1 if quick else 12, rounds=2 if quick else 12)
    peaks = {label: peak_bytes(call) for label, call in labels.items()}
    steps = [size**2 for size in sizes] if growth.unit == "pixels" else sizes
    methods = {}
    for method in dict.fromkeys(method for _, method in calls):
        own = [f"{size} {method}" for size in sizes]
        seconds, held = [times[label] for label in own], [peaks[label] for label in own]
        methods[method] = {
            "seconds": seconds,
            "peak_bytes": held,
            "exponent": exponent(steps, seconds),
            "memory_exponent": exponent(steps, held),
        }
    return {"what": growth.what, "unit": growth.unit, "sizes": steps, "methods": methods}


# Seconds that a single call may take, and where a figure must be measured.
_LONGEST = 6.0
_LONGEST_NEEDED = 40.0
_LONGEST_PLAIN = 1.5
SPEED_CASES = tuple(f"{network}, batch {batch}" for network in NETWORKS for batch in BATCHES)


def measure_speed(name: str, *, quick: bool, compile_all: bool) -> dict[str, Any]:
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
    wanted = COMPILED.get((network, batch), ())
    if quick:
        wanted = ("ADF",) if (network, batch) == ("MLP", 1) else ()
    elif compile_all:
        wanted = tuple(name for name in KINDS if "samples" not in name)
    if quick or not (wanted or batch == 1):
        made.left_out[FOLDED] = "compiled for a few batch sizes only"
    else:
        made.calls[FOLDED] = folded(model, x)
        made.calls[FOLDED]()
    single = own.made(one_output=True) if own.single else model
    one_pass = 0.0
    for name, kind in KINDS.items():
        longest = _LONGEST_NEEDED if name in wanted else _LONGEST
        expected = max(kind.forwards * forward, kind.passes * one_pass)
        if expected > longest:
            made.left_out[name] = f"about {expected:.0f} s a call"
            continue
        sure = kind.uncertain(own, single if kind.method == "gradients" else model)
        call = functools.partial(sure, x)
        # The first run checks what the method takes for granted, and does not count.
        took = min(seconds(call) for _ in range(2))
        if took > longest:
            made.left_out[name] = f"{took:.0f} s a call"
        else:
            made.calls[f"{name}, eager"] = call
        one_pass = one_pass or took
        if name in wanted:
            made.add_compiled(f"{name}, compiled", sure, x)
    return made


Measure = Callable[..., dict[str, Any]]
_MEASURES: dict[str, tuple[tuple[str, ...], Measure]] = {
    "speed": (SPEED_CASES, measure_speed),
    "textbook": (TEXTBOOK_CASES, measure_textbook),
    "growth": (tuple(GROWTH), measure_growth),
    "exactness": (EXACTNESS_CASES, measure_exactness),
    "peers": (PEER_CASES, measure_peers),
}
_QUICK = (
    "speed: DroNet, batch 1",
    "speed: MLP, batch 1",
    "speed: MLP, batch 8",
    "speed: LSTM, batch 1",
    "textbook: DroNet",
    "growth: samples",
    "growth: outputs",
    "exactness",
)


@dataclass(frozen=True)
class Case:
    """One case: a kind, which is a result file, and a name in it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"

    def measure(self, *, quick: bool, compile_all: bool) -> dict[str, Any]:
        """Its result; takes seconds to minutes."""
        return _MEASURES[self.kind][1](self.name, quick=quick, compile_all=compile_all)


def chosen(only: list[str], *, quick: bool) -> list[Case]:
    """The cases whose text contains one of `only`; all of them, or the quick ones, for none."""
    every = [Case(kind, name) for kind, (names, _) in _MEASURES.items() for name in names]
    wanted = only or (list(_QUICK) if quick else [""])
    return [each for each in every if any(word in str(each) for word in wanted)]
