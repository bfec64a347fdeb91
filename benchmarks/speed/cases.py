"""All cases of the suite, and how each is measured."""

from __future__ import annotations

import dataclasses
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
from torch import Tensor, nn

import howsure as hs
from howsure.setup import Setup
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

# A name of `KINDS`, exported as a `.pt2` file; ONNX is checked by the tests.
_EXPORTED = ("ADF", "T = 20, dropout everywhere")
EXACTNESS_CASES = ("exported", "bfloat16 variance")


def measure_exactness(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """The largest relative differences to eager in float32, DroNet, batch 2."""
    if name == "exported":
        return {"difference": {kind: _exported(kind) for kind in _EXPORTED[: 1 if quick else 2]}}
    if "variance_dtype" not in {each.name for each in dataclasses.fields(Setup)}:
        return {"left_out": "there is no `variance_dtype`"}
    return {"difference": {kind: _in_half(kind) for kind in _EXPORTED}}


def _exported(kind: str) -> float:
    network = NETWORKS["DroNet"]
    sure = KINDS[kind].uncertain(network, network.made())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hs.export(sure, network.input(2), Path(folder) / "net.pt2").difference


def _in_half(kind: str) -> float:
    network = NETWORKS["DroNet"]
    model, x = network.made(), network.input(2)
    full = KINDS[kind].uncertain(network, model)
    half = KINDS[kind].uncertain(network, model)
    half.setup = half.setup.replace(variance_dtype=torch.bfloat16)
    return relative(half(x), full(x))


HOWSURE, HOWSURE_COMPILED = "howsure", "howsure, compiled"
TEXTBOOK = "textbook"
TEXTBOOK_CASES = ("DroNet, batch 1", "ResNet-18, batch 1")


def measure_textbook(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
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
        calls[HOWSURE_COMPILED] = lambda: fast(x)
    return compared(calls, quick=quick)


def network_of(name: str) -> tuple[nn.Module, Tensor]:
    network, batch = name.split(", batch ")
    return NETWORKS[network].made(), NETWORKS[network].input(int(batch))


def compared(calls: dict[str, Callable[[], Any]], *, quick: bool) -> dict[str, Any]:
    """Times of all calls, and how many times howsure is faster than each other one."""
    times = fastest(calls, budget=1 if quick else 20, rounds=2 if quick else 8)
    others = [name for name in calls if name not in (PLAIN, HOWSURE, HOWSURE_COMPILED)]
    ours = {"times_faster": HOWSURE, "times_faster_compiled": HOWSURE_COMPILED}
    return {
        "seconds": times,
        "ratio_to_plain": {name: own / times[PLAIN] for name, own in times.items()},
        **{
            field: {name: times[name] / times[own] for name in others}
            for field, own in ours.items()
            if own in times
        },
    }


CHUNK = 4
Call = Callable[[], Any]


@dataclass(frozen=True)
class Growth:
    """Calls of growing size, one for each of several methods.

    Attributes:
        what: What grows.
        sizes: How far; the exponent is with respect to these.
        calls: From a size to calls by method.
        unit: What a size is.
    """

    what: str
    sizes: Sequence[int]
    calls: Callable[[int], dict[str, Call]]
    unit: str


def _predict(model: nn.Module, x: Tensor, method: str, **options: Any) -> Call:
    sure = hs.Uncertain(model, NOISE, method, **options)
    return lambda: sure(x)


def _dronet(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    net = DroNet()
    net.steer = nn.Linear(net.steer.in_features, outputs)
    return net.eval().requires_grad_(False)


def _samples(count: int) -> dict[str, Call]:
    x, net, dropout = torch.rand(1, 1, 200, 200), _dronet(), {"rate": RATE}
    return {
        "gradients": _predict(net, x, "gradients", samples=count),
        "Monte Carlo": _predict(net, x, "noise_sampling", samples=count),
        "sampled ADF": _predict(net, x, "sampled_adf", samples=count, **dropout),
        f"sampled ADF, chunk = {CHUNK}": _predict(
            net, x, "sampled_adf", samples=count, chunk=CHUNK, **dropout
        ),
    }


def _batch(count: int) -> dict[str, Call]:
    x, dropout = torch.rand(count, 1, 200, 200), {"rate": RATE}
    return {
        "ADF": _predict(_dronet(), x, "adf"),
        "T = 20": _predict(_dronet(), x, "sampled_adf", samples=SAMPLES, **dropout),
        "gradients": _predict(_dronet(), x, "gradients"),
    }


def _resolution(side: int) -> dict[str, Call]:
    torch.manual_seed(0)
    net, x = ResNet18(1).eval().requires_grad_(False), torch.rand(1, 3, side, side)
    return {
        "ADF": _predict(net, x, "adf"),
        "gradients": _predict(net, x, "gradients"),
    }


def _depth(layers: int) -> dict[str, Call]:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(layers - 1):
        parts += [nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    for part in parts:
        if isinstance(part, nn.Conv2d):  # as in trained networks, activations keep their size
            nn.init.kaiming_normal_(part.weight)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1)]
    net = nn.Sequential(*parts, *head).eval().requires_grad_(False)
    x, dropout = torch.rand(1, 3, 48, 48), {"rate": RATE}
    return {
        "ADF": _predict(net, x, "adf"),
        "T = 20": _predict(net, x, "sampled_adf", samples=SAMPLES, **dropout),
        "gradients": _predict(net, x, "gradients"),
    }


def _outputs(count: int) -> dict[str, Call]:
    x, net = torch.rand(1, 1, 200, 200), _dronet(count)
    return {
        "ADF": _predict(net, x, "adf"),
        "gradients": _predict(net, x, "gradients"),
    }


GROWTH = {
    "samples": Growth("samples or points (DroNet)", (8, 16, 32, 64), _samples, "samples"),
    "batch": Growth("batch (DroNet)", (1, 2, 4, 8, 16), _batch, "inputs"),
    "resolution": Growth("resolution (ResNet-18)", (64, 96, 128, 192, 256), _resolution, "pixels"),
    "depth": Growth("depth (32 channels, 48 x 48)", (4, 8, 16, 32), _depth, "convolutions"),
    "outputs": Growth("outputs (DroNet)", (1, 2, 4, 8, 16, 32), _outputs, "outputs"),
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


def speed_cases() -> list[str]:
    """All cases."""
    return [f"{network}, batch {batch}" for network in NETWORKS for batch in BATCHES]


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


Measure = Callable[..., dict[str, Any]]
_MEASURES: dict[str, tuple[tuple[str, ...], Measure]] = {
    "speed": (tuple(speed_cases()), measure_speed),
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
