"""howsure against peers: what a prediction costs, and how far its std is from Monte Carlo.

Three kinds of cases: sensor noise, dropout, and what the weights leave open. In each of them all
calls take turns on one input; the errors are those of many inputs. Monte Carlo is drawn from what
a method claims to predict: from the noise, from the masks, from the posterior over weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from cache import cached
from torch import Tensor, nn

import howsure as hs
from speed import peer_calls, peer_weights
from speed.passes import PLAIN, RATE, SAMPLES, plain
from speed.peer_calls import CannotRun, Std
from speed.peer_scores import DRAWS, Compared, Ours, compared, row_by_row
from speed.peer_subjects import DROPOUT, NOISE, subject, with_dropout
from speed.timing import fastest

PEERS = ("torch-uncertainty", "laplace-torch", "distprop", "torch-adf")
CASES = (
    *(f"sensor noise: {name}" for name in NOISE),
    *(f"dropout: {name}" for name in DROPOUT),
    "weights: MLP",
)
GRADIENTS = "howsure, gradients"
INPUTS = 20
_MONTE_CARLO = (20, 200, 1000)


def measure(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """Cost, error and rank of every way; `left_out` says why a peer has none."""
    kind, network = name.split(": ")
    made = {"sensor noise": _noise, "dropout": _dropout, "weights": peer_weights.made}[kind]
    inputs = 4 if quick else INPUTS
    case = made(network, inputs)
    stds, missing = _that_run(case)
    one = case.x[:1]
    calls = {way: lambda std=std: std(one) for way, std in stds.items()}
    times = fastest(
        {PLAIN: plain(case.model, one), **calls},
        budget=1 if quick else 30,
        rounds=2 if quick else 10,
    )
    return {
        "inputs": inputs,
        "noise_std": NOISE.get(network) if kind == "sensor noise" else None,
        "plain_seconds": times[PLAIN],
        "ways": {
            way: {"cost": times[way] / times[PLAIN], **case.scores(way, std)}
            for way, std in stds.items()
        },
        "left_out": missing,
        "versions": {peer: found for peer in PEERS if (found := _version(peer))},
    }


def _that_run(case: Compared) -> tuple[dict[str, Std], dict[str, str]]:
    """The ways that run, and why the others do not."""
    found, missing = {}, {}
    for way, make in case.ways.items():
        try:
            std = make()
            std(case.x[:1])  # the checks of the first call are not timed
        except (ImportError, CannotRun) as reason:
            missing[way] = str(reason)
        else:
            found[way] = std
    return found, missing


def _version(peer: str) -> str | None:
    try:
        return version(peer)
    except PackageNotFoundError:
        return None


def _noise(network: str, count: int) -> Compared:
    """Sensor noise: everyone says how far the prediction moves with it."""
    model, x = subject(network, count)
    std = NOISE[network]
    key = f"peers: {network} {std} {count} {DRAWS}"
    truth = cached(key, lambda: row_by_row(peer_calls.monte_carlo(model, std, DRAWS), x))

    def ours(method: str, **options: Any) -> Callable[[], Std]:
        return lambda: Ours(hs.Uncertain(model, std**2, method, **options))

    ways = {
        f"{GRADIENTS}, 8 points": ours("gradients", samples=8),
        f"{GRADIENTS}, 4 points": ours("gradients", samples=4),
        **_by_default(model, std, x[:1]),
        "howsure, ADF": ours("adf"),
        **{
            f"Monte Carlo, {n} as one batch": lambda n=n: peer_calls.monte_carlo(model, std, n)
            for n in _MONTE_CARLO
        },
        "distprop": lambda: peer_calls.distprop(model, std),
        "torch-adf, variances": lambda: peer_calls.torch_adf(model, std, full=False),
        "torch-adf, covariances": lambda: peer_calls.torch_adf(model, std, full=True),
    }
    return compared(model, x, ways, truth)


def _by_default(model: nn.Module, std: float, one: Tensor) -> dict[str, Callable[[], Std]]:
    """What `auto` picks, where it picks something else than the gradients."""
    sure = hs.Uncertain(model, std**2)
    picked, setup, _ = hs.methods.choose(sure.setup, one)
    if not picked.is_sampling:
        return {}
    return {f"howsure, by default: {setup.samples} samples": lambda: Ours(sure)}


def _dropout(network: str, count: int) -> Compared:
    """Dropout: everyone says how far the prediction moves with the network's own masks."""
    model, x = with_dropout(network, count)
    truth = cached(f"peers: dropout {network} {RATE} {count}", lambda: _masked(model, x).std(0))

    def ours(method: str, **options: Any) -> Callable[[], Std]:
        return lambda: Ours(hs.Uncertain(model, None, method, **options))

    ways: dict[str, Callable[[], Std]] = {
        f"{GRADIENTS}, 8 points": ours("gradients", rate=RATE, samples=8),
        f"howsure, {SAMPLES} masks": ours("mc_dropout", samples=SAMPLES),
    }
    for label, at_once in (("in a loop", False), ("at once", True)):
        ways[f"torch-uncertainty, {SAMPLES} masks {label}"] = lambda at_once=at_once: (
            peer_calls.torch_uncertainty(model, SAMPLES, at_once=at_once)
        )
    return compared(model, x, ways, truth)


def _masked(model: nn.Module, x: Tensor) -> Tensor:
    """The network's outputs in so many plain passes with dropout on."""
    torch.manual_seed(0)
    noisy = copy.deepcopy(model)
    for module in noisy.modules():
        module.train(isinstance(module, (nn.Dropout, nn.Dropout2d)))
    with torch.inference_mode():
        return torch.stack([noisy(x) for _ in range(DRAWS)])
