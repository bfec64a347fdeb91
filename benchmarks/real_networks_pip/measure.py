"""One network by default settings: every step that a user takes, and Monte Carlo as truth."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import howsure as hs
from howsure.auditing.measures import spearman
from howsure.trees import as_call, batch_size, floats_of, map_leaves, select_output


@dataclass(frozen=True)
class Case:
    """A network as its package ships it, its inputs, and the noise of their sensor.

    Attributes:
        name: How the table calls it.
        package: The distribution on PyPI that has the network and its weights.
        build: Makes the network.
        inputs: Makes a batch of inputs; a dict is the network's keyword arguments.
        noise_std: Standard deviation of the sensor's noise, in the units of the input.
        random: Whether the weights are random, because the package has none.
        samples: Samples of Monte Carlo; fewer for large networks.
        options: Further arguments of `Uncertain`, where the network's call asks for them.
        remark: What a reader should know.
    """

    name: str
    package: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor | tuple[Tensor, ...] | dict[str, Tensor]]
    noise_std: float
    random: bool = False
    samples: int = 1000
    options: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    def network(self) -> nn.Module:
        """In eval mode, always with the same weights."""
        torch.manual_seed(0)
        return self.build().eval()

    def output(self, found: Any) -> Any:
        """The part of the network's output that counts."""
        return select_output(found, self.options.get("output"))


# Pairs of input and output that are compared, at most: ranks of more say nothing new.
_PAIRS = 4000
_REPEATS = 2
# Outputs for which `fit` finds a posterior, and a budget is read; `fit` itself stops at 64.
_FEW = 64
# Inputs that `fit` is given; a posterior needs 50.
_HELD_OUT = 64


def measured(case: Case, chosen: Sequence[str]) -> Iterator[dict[str, Any]]:
    """After every step, what came out so far; of a step that failed the error's first line."""
    model, x = case.network(), case.inputs()

    @functools.cache
    def few() -> hs.Uncertain:
        return exportable(case, model, x)

    found: dict[str, Any] = {
        "package": case.package,
        "random_weights": case.random,
        "parameters": sum(p.numel() for p in model.parameters()),
        "inputs": [list(each.shape) for each in floats_of(x)],
        "noise_std": case.noise_std,
        "samples": case.samples,
        "remark": case.remark,
    }
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "predict": lambda: predicted(case, model, x),
        "check": lambda: checked(model, x),
        "budget": lambda: {"text": str(call(few(), x).budget())},
        "fit": lambda: fitted(case, few(), x),
        "export": lambda: exported(few(), x),
        "compile": lambda: compiled_prediction(few(), x),
    }
    for name in chosen:
        found[name] = attempt(steps[name])
        yield found


def attempt(step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a step returns, or its error."""
    start = time.perf_counter()
    try:
        found = {"ok": True, **step()}
    except Exception as error:
        message = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:400]
        found = {"ok": False, "error": message}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def wrapped(case: Case, model: nn.Module, x: Any, *method: str, **options: Any) -> hs.Uncertain:
    """The network with the sensor's noise on all of its inputs."""
    noise = hs.noise.std(case.noise_std)
    everywhere = noise if isinstance(x, Tensor) else map_leaves(lambda _: noise, x)
    return hs.Uncertain(model, everywhere, *method, **{**case.options, **options})


def exportable(case: Case, model: nn.Module, x: Any) -> hs.Uncertain:
    """The network with `gradients`, for all outputs or one number of them.

    Other methods tell no budget and cannot be exported. Where the outputs are too many for a
    backward pass each, it is for one number of them: that in the middle of the first output, for
    each input, since the edge may be constant.
    """
    with torch.no_grad():
        output = case.output(call(model, x))
    rows = batch_size(x)
    if isinstance(output, Tensor) and output.numel() <= _FEW * rows:
        return wrapped(case, model, x, "gradients")

    def one_number(found: Any) -> Tensor:
        first = floats_of(case.output(found))[0].reshape(rows, -1)
        middle = first.shape[1] // 2
        return first[:, middle : middle + 1]

    return wrapped(case, model, x, "gradients", output=one_number)


def call(function: Callable[..., Any], x: Any) -> Any:
    """The function of the inputs, given as the network takes them."""
    args, named = as_call(x)
    return function(*args, **named)


def checked(model: nn.Module, x: Any) -> dict[str, Any]:
    """How many operations there are, and which have no rule (the paper's methods need them)."""
    check = call(functools.partial(hs.check, model), x)
    return {"operations": len(check.rows), "missing": [row.operation for row in check.missing]}


def predicted(case: Case, model: nn.Module, x: Any) -> dict[str, Any]:
    """The default prediction, its cost in plain forwards, and how far its std is from the truth."""
    sure = wrapped(case, model, x)
    start = time.perf_counter()
    p = call(sure, x)
    first = time.perf_counter() - start
    plain = seconds(lambda: call(torch.no_grad()(model), x))
    again = seconds(lambda: call(sure, x))
    std = flat(p.std, rows_of(case, x))
    return {
        "method": p.method,
        "notes": list(p.notes),
        "outputs": std.shape[1],
        "cost": again / plain,
        "first_seconds": first,
        "first_cost": first / plain,
        **against_truth(std, truth(case, model, x), p),
    }


def rows_of(case: Case, x: Any) -> int:
    """How many inputs a call has; one where the call is a single input."""
    return 1 if "batch_dim" in case.options else batch_size(x)


def seconds(work: Callable[[], Any]) -> float:
    """The shortest of a few times."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def flat(output: Any, rows: int) -> Tensor:
    """All outputs of an input in a row, (inputs, outputs)."""
    return torch.cat([t.detach().reshape(rows, -1) for t in floats_of(output)], 1).double()


def truth(case: Case, model: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
    """Stds of two independent halves of Monte Carlo: the plain network with sampled noise."""
    generator = torch.Generator().manual_seed(1)
    rows, count = rows_of(case, x), case.samples // 2
    halves = []
    for _ in range(2):
        total = square = torch.zeros(())
        with torch.no_grad():
            center = flat(case.output(call(model, x)), rows)
            for _ in range(count):
                noisy = with_noise(x, case.noise_std, generator)
                moved = flat(case.output(call(model, noisy)), rows) - center
                total, square = total + moved, square + moved.square()
        var = (square - total.square() / count) / (count - 1)
        halves.append(var.clamp(min=0).sqrt())
    return halves[0], halves[1]


def with_noise(x: Any, std: float, generator: torch.Generator) -> Any:
    """The inputs with Gaussian noise added."""
    return map_leaves(lambda t: t + std * torch.randn(t.shape, generator=generator), x)


def against_truth(std: Tensor, halves: tuple[Tensor, Tensor], p: Any) -> dict[str, Any]:
    """Median ratio of the std to the true one, both ways to compare them, and the truth's limit.

    `limit` is the rank correlation that a perfect method would reach: the root of what the halves'
    own correlation becomes when they are joined (Spearman and Brown).
    """
    joined = ((halves[0].square() + halves[1].square()) / 2).sqrt()
    # Outputs that do not move, beyond rounding, have no std to be compared.
    size = flat(p.mean, len(joined)).abs() + joined
    moves = joined > 1e-6 * size
    pairs = moves.flatten().nonzero().flatten()
    pairs = pairs[:: max(1, len(pairs) // _PAIRS)]
    own, true, one, two = (each.flatten()[pairs] for each in (std, joined, *halves))
    between = float(spearman(one[None], two[None]))
    ratio = own / true
    return {
        "moving": float(moves.double().mean()),
        "ratio": float(ratio.median()),
        "log_error": float(ratio.clamp(min=1e-6).log().abs().mean()),
        "rank": float(spearman(own[None], true[None])),
        "limit": (max(0.0, 2 * between / (1 + between))) ** 0.5,
    }


def exported(sure: hs.Uncertain, x: Any) -> dict[str, Any]:
    """The `.pt2` file's largest difference from eager."""
    with tempfile.TemporaryDirectory() as folder:
        found = hs.export(sure, x, Path(folder) / "network.pt2")
    return {"difference": found.difference, "batch": found.batch}


def fitted(case: Case, sure: hs.Uncertain, x: Any) -> dict[str, Any]:
    """`fit` on the network's own outputs for noisy inputs, with errors added to them."""
    generator = torch.Generator().manual_seed(2)
    target = call(sure, x).mean
    batches = []
    for _ in range(-(-_HELD_OUT // batch_size(x))):
        noisy = with_noise(x, case.noise_std, generator)
        batches.append((noisy, with_noise(target, 0.1 * float(target.std()), generator)))
    before = sure.setup
    found = sure.fit(batches)
    p = call(sure, x)
    sure.setup = before
    if not bool(p.std.isfinite().all()) or not bool((p.model_var > 0).any()):
        raise ValueError("no model variance, or stds that are not finite")
    return {"found": type(found).__name__, "notes": [str(n) for n in getattr(found, "notes", ())]}


def compiled_prediction(sure: hs.Uncertain, x: Any) -> dict[str, Any]:
    """The compiled prediction's difference from eager, relative, and its cost in plain forwards."""
    eager = call(sure, x).std
    plain = seconds(lambda: call(torch.no_grad()(sure.model), x))
    sure.compile()
    found = call(sure, x).std
    cost = seconds(lambda: call(sure, x)) / plain
    return {"difference": float((found - eager).abs().max() / eager.max()), "cost": cost}
