"""howsure against peers: what a prediction costs, and how far its std is from Monte Carlo."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accuracy_measures import rank_correlation
from bench import cached, fastest
from models import trained
from models.resnet import ResNet18
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import howsure as hs
from howsure.posterior.weights import best_weights
from howsure_lab.experiments.runs import environment
from howsure_lab.experiments.steering.model import load_trained
from howsure_lab.experiments.steering.scenes import draw_scenes, render
from speed.networks import NETWORKS, PLAIN, RATE, SAMPLES, plain, with_statistics

Std = Callable[[Tensor], Tensor]
ADF = "torch-adf"


class CannotRun(Exception):
    """A peer has nothing for this network; the reason."""


def monte_carlo(model: nn.Module, noise_std: float, samples: int) -> Std:
    """Noisy inputs as one batch, as anyone would write it."""

    def call(x: Tensor) -> Tensor:
        with torch.inference_mode():
            rows = x.repeat_interleave(samples, 0)
            found = model(rows + noise_std * torch.randn_like(rows))
            return found.unflatten(0, (len(x), samples)).std(1)

    return call


def distprop(model: nn.Module, noise_std: float) -> Std:
    """Stable distribution propagation: the gradients at the input itself."""
    from distprop import SDP  # pyright: ignore[reportMissingImports]

    wrapped = SDP(model, noise_std, num_outputs=1, create_graph=False)

    def call(x: Tensor) -> Tensor:
        _, cov = wrapped(x.clone())  # it writes `requires_grad` into its input
        return cov.diagonal(dim1=1, dim2=2).sqrt()

    return call


def torch_adf(model: nn.Module, noise_std: float, *, full: bool) -> Std:
    """Assumed density filtering by a twin of the network, with variances or full covariances."""
    if not isinstance(model, nn.Sequential):
        raise CannotRun("it has sequences of its own layers only, no batch norm and no recurrence")
    twin = _adf_twin(model, "full" if full else "diag")

    def call(x: Tensor) -> Tensor:
        size = x[0].numel()
        var = torch.full_like(x, noise_std**2)
        if full:
            eye = noise_std**2 * torch.eye(size).reshape(*x.shape[1:], *x.shape[1:])
            var = eye.expand(len(x), *eye.shape)
        with torch.inference_mode():
            found = twin(x, var)[1]
        return (found.diagonal(dim1=1, dim2=2) if full else found).sqrt()

    return call


def _adf_twin(model: nn.Sequential, mode: str) -> Any:
    """The same layers with the same weights, of the peer's classes."""
    from torchadf import nn as peers  # pyright: ignore[reportMissingImports]

    layers = []
    for layer in model:
        kind = type(layer).__name__
        if not hasattr(peers, kind):
            raise CannotRun(f"it has no {kind}")
        layers.append(getattr(peers, kind)(*_arguments(layer), mode=mode))
        layers[-1].load_state_dict(layer.state_dict())
    return peers.Sequential(*layers).eval()


def _arguments(layer: nn.Module) -> tuple[Any, ...]:
    """What the peer's layer of the same name is made with."""
    match layer:
        case nn.Linear():
            return (layer.in_features, layer.out_features)
        case nn.Conv2d():
            sizes = (layer.kernel_size, layer.stride, layer.padding)
            return (layer.in_channels, layer.out_channels, *sizes)
        case nn.AvgPool2d():
            return (layer.kernel_size,)
        case _:
            return ()


def torch_uncertainty(model: nn.Module, samples: int, *, at_once: bool) -> Std:
    """MC dropout by the peer's wrapper around a copy: it puts dropout into train mode."""
    declare_operators()
    from torch_uncertainty.methods import mc_dropout  # pyright: ignore[reportMissingImports]

    wrapped = mc_dropout(copy.deepcopy(model), num_estimators=samples, on_batch=at_once).eval()

    def call(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return wrapped(x).unflatten(0, (samples, len(x))).std(0)

    return call


def declare_operators() -> None:
    """Lets torchvision be imported, which peers import."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "coverage"))
    from torchvision_shim import declare_missing_operators

    declare_missing_operators()


GRAY = 1 / 255
# Standard deviations of the sensor noise.
NOISE = {
    "MLP": 0.2,
    "plain CNN": 8 * GRAY,
    "LSTM": 0.2,
    "DroNet, 64 x 64": 8 * GRAY,
    "ResNet-18, 32 x 32": 8 * GRAY,
}
DROPOUT = ("MLP", "ResNet-18, 32 x 32")


def subject(name: str, count: int) -> tuple[nn.Module, Tensor]:
    """The network and its inputs: all are trained but ResNet-18."""
    match name:
        case "MLP":
            return trained.mlp(), trained.vectors(count)
        case "plain CNN":
            return trained.cnn(), trained.spots(count)[0]
        case "LSTM":
            return trained.lstm(), trained.sequences(count)
        case "DroNet, 64 x 64":  # that of the laboratory, and roads that it has not seen
            return load_trained(), render(draw_scenes(count, seed=12345))
        case _:
            return NETWORKS[name].made(), NETWORKS[name].input(count)


def with_dropout(name: str, count: int) -> tuple[nn.Module, Tensor]:
    """A network that has dropout modules of its own, as the peer needs them, and its inputs."""
    model, x = subject(name, count)
    if isinstance(model, nn.Sequential):
        layers: list[nn.Module] = []
        for layer in model:
            layers += [layer, nn.Dropout(RATE)] if isinstance(layer, nn.ReLU) else [layer]
        return nn.Sequential(*layers).eval(), x
    torch.manual_seed(0)
    net = with_statistics(ResNet18(1))
    for number, stage in enumerate(net.layers):
        parts = (part for block in stage for part in (block, nn.Dropout2d(RATE)))
        net.layers[number] = nn.Sequential(*parts)
    return net.eval().requires_grad_(False), x


DRAWS, SEEDS = 2000, 4
Scores = dict[str, float]


@dataclass(frozen=True)
class Compared:
    """A network with inputs, ways to predict a std of it, and what a way is worth.

    Attributes:
        ways: Makes each; raises `CannotRun` or `ImportError` with the reason.
        scores: Of a way and of what it made.
    """

    model: nn.Module
    x: Tensor
    ways: dict[str, Callable[[], Std]]
    scores: Callable[[str, Std], Scores]


class Ours:
    """The std that howsure predicts."""

    def __init__(self, sure: hs.Uncertain) -> None:
        self.sure = sure

    def __call__(self, x: Tensor) -> Tensor:
        return self.sure(x).std

    def seed(self, seed: int) -> None:
        """Draws other points or samples from now on."""
        self.sure.setup = self.sure.setup.replace(seed=seed)


def compared(
    model: nn.Module, x: Tensor, ways: dict[str, Callable[[], Std]], truth: Tensor
) -> Compared:
    """All ways against one truth, each with some seeds."""

    def scores(_: str, std: Std) -> Scores:
        return average([against(row_by_row(std, x, seed), truth) for seed in range(SEEDS)])

    return Compared(model, x, ways, scores)


def row_by_row(std: Std, x: Tensor, seed: int = 0) -> Tensor:
    """What is said of the inputs one at a time, as it is timed."""
    torch.manual_seed(seed)
    if isinstance(std, Ours):
        std.seed(seed)
    return torch.cat([std(row[None]) for row in x])


def against(std: Tensor, truth: Tensor) -> Scores:
    """Root mean square error of the log std, less that of Monte Carlo itself, and the rank.

    `factor` is the geometric mean of the std over the true one.
    """
    gap = (std / truth).log()
    own = 1 / (2 * (DRAWS - 1))
    return {
        "error": math.sqrt(max(0.0, float(gap.square().mean()) - own)),
        "factor": float(gap.mean().exp()),
        "rank": rank_correlation(std.flatten(), truth.flatten()),
    }


def average(runs: list[Scores]) -> Scores:
    """Root mean square errors, and means of the rest."""
    found = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
    found["error"] = math.sqrt(sum(run["error"] ** 2 for run in runs) / len(runs))
    return found


_TRAIN, _HELD_OUT, _TEST = (4000, 1), (500, 2), (1000, 3)  # how many rows, and their seed
LAPLACE = ("laplace-torch, KFAC", "laplace-torch, last layer")


def _weights(_: str, count: int) -> Compared:
    """The ways; fitting them is not timed."""
    model = trained.mlp()
    ways: dict[str, Callable[[], Std]] = {"howsure, posterior": lambda: _posterior(model)}
    for way in LAPLACE:
        ways[way] = lambda way=way: Theirs(model, way)
    x = trained.vectors(count)

    def scores(_: str, std: Std) -> Scores:
        if not isinstance(std, Theirs):
            return on_unseen(model, lambda x: std(x).square())
        return {**on_unseen(model, std.total_var), **against(row_by_row(std, x), std.sampled(x))}

    return Compared(model, x, ways, scores)


def _posterior(model: nn.Module) -> Std:
    """howsure's posterior by `fit`, with the training inputs."""
    sure = hs.Uncertain(model)
    inputs = trained.vectors(*_TRAIN)
    sure.fit([trained.regression(*_HELD_OUT)], train_inputs=inputs, show_progress=False)
    return Ours(sure)


class Theirs:
    """The peer's linearized predictive."""

    def __init__(self, model: nn.Module, way: str) -> None:
        declare_operators()
        try:
            from uci_laplace import WAYS, fitted
        except ImportError as missing:
            raise CannotRun(str(missing)) from None
        own = copy.deepcopy(model).requires_grad_(True)
        self.found: Any = fitted(own, TensorDataset(*trained.regression(*_TRAIN)), WAYS[way])
        self.weights = self._tuned(model)

    def _tuned(self, model: nn.Module) -> Tensor:
        """The best residual variance and factor for the held-out rows."""
        x, y = trained.regression(*_HELD_OUT)
        with torch.inference_mode():
            error = (model(x) - y).double().square()[:, 0]
        return best_weights(error, self._terms(x), torch.full((2,), math.nan).double())

    def _terms(self, x: Tensor) -> Tensor:
        var = self(x).square()
        return torch.cat([torch.ones_like(var), var], 1).double()

    def __call__(self, x: Tensor) -> Tensor:
        """The std of the network itself, as the peer gives it."""
        return self.found(x)[1].flatten(1).sqrt().detach()

    def total_var(self, x: Tensor) -> Tensor:
        """What it leaves open, tuned."""
        return (self._terms(x) @ self.weights)[:, None]

    def sampled(self, x: Tensor) -> Tensor:
        """The std by Monte Carlo: networks with weights drawn from the peer's posterior."""
        torch.manual_seed(0)
        return self.found.predictive_samples(x, pred_type="nn", n_samples=DRAWS).std(0).detach()


def on_unseen(model: nn.Module, var: Callable[[Tensor], Tensor]) -> Scores:
    """Negative log-likelihood, and how often the 95 % interval holds the truth."""
    x, y = trained.regression(*_TEST)
    with torch.inference_mode():
        mean = model(x)
    found = torch.cat([var(rows) for rows in x.split(100)]).to(mean)
    inside = (y - mean).square() <= 1.959964**2 * found
    return {
        "nll": float(hs.metrics.nll(mean, found, y)),
        "coverage": float(inside.float().mean()),
    }


PEERS = ("torch-uncertainty", "laplace-torch", "distprop", "torch-adf")
PEER_CASES = (
    *(f"sensor noise: {name}" for name in NOISE),
    *(f"dropout: {name}" for name in DROPOUT),
    "weights: MLP",
)
GRADIENTS = "howsure, gradients"
INPUTS = 20
_MONTE_CARLO = (20, 200, 1000)
_POINTS = (8, 4, 32)


def measure_peers(name: str, *, quick: bool, **_: Any) -> dict[str, Any]:
    """Cost, error and rank of every way; `left_out` says why a peer has none."""
    kind, network = name.split(": ")
    made = {"sensor noise": _noise, "dropout": _dropout, "weights": _weights}[kind]
    inputs = 4 if quick else INPUTS
    case = made(network, inputs)
    one = case.x[:1]
    stds: dict[str, Std] = {}
    missing: dict[str, str] = {}
    for way, make in case.ways.items():
        try:
            std = make()
            std(one)  # the checks of the first call are not timed
        except (ImportError, CannotRun) as reason:
            missing[way] = str(reason)
        else:
            stds[way] = std
    calls = {way: lambda std=std: std(one) for way, std in stds.items()}
    times = fastest(
        {PLAIN: plain(case.model, one), **calls},
        budget=1 if quick else 30,
        rounds=2 if quick else 10,
    )
    packages = environment(PEERS)["packages"]
    return {
        "inputs": inputs,
        "noise_std": NOISE.get(network) if kind == "sensor noise" else None,
        "plain_seconds": times[PLAIN],
        "ways": {
            way: {"cost": times[way] / times[PLAIN], **case.scores(way, std)}
            for way, std in stds.items()
        },
        "left_out": missing,
        "versions": {peer: packages[peer] for peer in PEERS if peer in packages},
    }


def _noise(network: str, count: int) -> Compared:
    """Sensor noise: everyone says how far the prediction moves with it."""
    model, x = subject(network, count)
    std = NOISE[network]
    key = f"peers: {network} {std} {count} {DRAWS}"
    truth = cached(key, lambda: row_by_row(monte_carlo(model, std, DRAWS), x))

    def ours(method: str, **options: Any) -> Callable[[], Std]:
        return lambda: Ours(hs.Uncertain(model, std**2, method, **options))

    # What `auto` picks, where it picks something else than the gradients.
    picked, setup, _ = hs.methods.choose(hs.Uncertain(model, std**2).setup, x[:1])
    by_default = {}
    if picked.name in ("noise_sampling", "mc_dropout"):
        by_default[f"howsure, by default: {setup.samples} samples"] = ours("auto")
    ways = {
        **{f"{GRADIENTS}, {n} points": ours("gradients", samples=n) for n in _POINTS},
        "howsure, linear": ours("linear"),
        "howsure, 200 samples": ours("noise_sampling", samples=200),
        **by_default,
        "howsure, ADF": ours("adf"),
        **{
            f"Monte Carlo, {n} as one batch": lambda n=n: monte_carlo(model, std, n)
            for n in _MONTE_CARLO
        },
        "distprop": lambda: distprop(model, std),
        "torch-adf, variances": lambda: torch_adf(model, std, full=False),
        "torch-adf, covariances": lambda: torch_adf(model, std, full=True),
    }
    return compared(model, x, ways, truth)


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
            torch_uncertainty(model, SAMPLES, at_once=at_once)
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
