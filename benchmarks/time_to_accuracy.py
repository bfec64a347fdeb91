"""How accurate the standard deviation is after how much time: gradients against Monte Carlo.

    python benchmarks/time_to_accuracy.py --data PATH

PATH is that of `accuracy.py`: DroNet has its authors' weights, the recurrent network and the
perceptron are trained, the others have random weights. Times are medians of calls that take turns,
for one input on one thread; errors are those of many inputs. Writes
`benchmarks/results/time_to_accuracy.json`, `docs/img/time_to_accuracy.png` and the page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench import Results, cached, draws, folder_of, in_turns
from real_networks import CASES, GRAY, images_of, model_of, truth
from speed import page
from speed.networks import NETWORKS, plain
from torch import Tensor, nn

import howsure as hs

GRADIENTS, MONTE_CARLO = "gradients", "Monte Carlo"
POINTS = (4, 8, 16, 32, 64)
SAMPLES = (20, 50, 100, 200, 400, 1000, 2000)
PRECISE = 0.05
SEEDS = 2
# Every second one of 50 inputs.
COUNT, STEP, DRAWS = 50, 2, 2000
_PIXELS = {"2 gray levels": 2 * GRAY, "8 gray levels": 8 * GRAY}
_NUMBERS = {"noise 0.05": 0.05, "noise 0.2": 0.2}
SUBJECTS = {
    "DroNet": _PIXELS,
    "ResNet-18, 32 x 32": _PIXELS,
    "small ViT, 64 x 64": _PIXELS,
    "LSTM": _NUMBERS,
    "MLP": _NUMBERS,
}


def subject(data: Path, name: str) -> tuple[nn.Module, Tensor]:
    """The network and its inputs."""
    trained = next((case for case in CASES if case.network == name), None)
    if trained is not None:
        return model_of(data, trained), images_of(data, name, COUNT)[::STEP]
    return NETWORKS[name].made(), NETWORKS[name].input(COUNT)[::STEP]


def truth_of(data: Path, name: str, label: str) -> Tensor:
    """Monte Carlo, (samples, inputs, outputs): that of `accuracy.py` where there is one."""
    wanted = f"{name}, {label.removeprefix('noise ')}"
    case = next((case for case in CASES if case.name == wanted), None)
    if case is not None:
        return truth(data, case, COUNT, DRAWS)[:, ::STEP]
    model, x = subject(data, name)
    std = SUBJECTS[name][label]
    key = f"time to accuracy: {name} {std} {len(x)} {DRAWS}"
    return cached(key, lambda: draws(model, x, std, DRAWS))


def calls_of(model: nn.Module, std: float) -> dict[str, dict[int, hs.Uncertain]]:
    """Every method with its settings: how many points or samples; 0 where there is nothing."""

    def made(method: str, **options: Any) -> hs.Uncertain:
        return hs.Uncertain(model, std**2, method, **options)

    return {
        GRADIENTS: {points: made("gradients", samples=points) for points in POINTS},
        MONTE_CARLO: {samples: made("noise_sampling", samples=samples) for samples in SAMPLES},
        "linear": {0: made("linear")},
        "ADF": {0: made("adf")},
    }


def measure(data: Path, name: str, *, quick: bool) -> dict[str, Any]:
    """Times of every method and setting, and for each noise their errors."""
    model, x = subject(data, name)
    noises = SUBJECTS[name]
    made = calls_of(model, next(iter(noises.values())))
    one = x[:1]
    flat: dict[str, Callable[[], Any]] = {"plain": plain(model, one)}
    for method, settings in made.items():
        for count, sure in settings.items():
            sure(one)  # the checks of the first call are not timed
            flat[f"{method} {count}"] = lambda s=sure: s(one)
    times = in_turns(flat, budget=2 if quick else 60, rounds=2 if quick else 15)
    seconds = {
        method: [median(times[f"{method} {count}"]) for count in settings]
        for method, settings in made.items()
    }
    noise = {}
    for label, std in noises.items():
        found = errors_of(model, x, std, truth_of(data, name, label))
        reached = {
            method: time_to(PRECISE, seconds[method], found["errors"][method])
            for method in (GRADIENTS, MONTE_CARLO)
        }
        # Whether the default is first to have the std within 5 %.
        after = {method: time or math.inf for method, time in reached.items()}
        holds = after[found["auto"]] == min(after.values())
        noise[label] = {**found, "seconds_to_precise": reached, "holds": holds}
    return {
        "plain_seconds": median(times["plain"]),
        "settings": {method: list(settings) for method, settings in made.items()},
        "seconds": seconds,
        "noise": noise,
    }


def errors_of(model: nn.Module, x: Tensor, std: float, drawn: Tensor) -> dict[str, Any]:
    """Root mean square errors of the log std by method and setting, and what `auto` picks."""
    own = 1 / (2 * (len(drawn) - 1))  # the square of that of Monte Carlo
    errors: dict[str, list[float]] = {MONTE_CARLO: [sampling_error(drawn, n) for n in SAMPLES]}
    for method, settings in calls_of(model, std).items():
        if method == MONTE_CARLO:
            continue
        errors[method] = []
        for sure in settings.values():
            squares = []
            for seed in range(SEEDS):
                sure.setup = sure.setup.replace(seed=seed)
                stds = torch.cat([sure(part).std for part in x.split(5)])
                squares.append((stds / drawn.std(0)).log().square().mean())
            errors[method].append(math.sqrt(max(0.0, float(torch.stack(squares).mean()) - own)))
    picked, setup, _ = hs.methods.choose(hs.Uncertain(model, std**2).setup, x[:1])
    samples = picked.name in ("noise_sampling", "mc_dropout")
    chosen = MONTE_CARLO if samples else picked.name
    count = setup.samples or (200 if samples else 8)
    return {"errors": errors, "auto": chosen, "auto_setting": count}


def sampling_error(drawn: Tensor, count: int) -> float:
    """Of the std of `count` samples, from parts of Monte Carlo itself.

    A part is in the whole, so that its difference to it is too small by 1 - count / samples. More
    than half of Monte Carlo has no two parts: then the error falls as the root of the number.
    """
    samples = len(drawn)
    if count > samples // 2:
        return sampling_error(drawn, samples // 2) * math.sqrt(samples // 2 / count)
    parts = drawn[: samples // count * count].unflatten(0, (-1, count))
    gap = (parts.std(1) / drawn.std(0)).log().square().mean()
    return math.sqrt(float(gap) / (1 - count / samples))


def time_to(error: float, seconds: list[float], errors: list[float]) -> float | None:
    """When an error is reached, on straight lines between the logarithms; `None` if never."""
    for index, (time, found) in enumerate(zip(seconds, errors, strict=True)):
        if found > error:
            continue
        if index == 0:
            return time
        share = math.log(errors[index - 1] / error) / math.log(errors[index - 1] / max(found, 1e-9))
        return seconds[index - 1] * (time / seconds[index - 1]) ** share
    return None


def main() -> None:
    """Parses the arguments, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with data and weights")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--quick", action="store_true", help="two rounds; to out/bench")
    parser.add_argument("--out", type=Path, help="folder of the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = folder_of(given)
    for name in (each for each in SUBJECTS if given.only in each):
        results = Results(folder, "time_to_accuracy", "python benchmarks/time_to_accuracy.py")
        results.add(name, measure(given.data, name, quick=given.quick), quick=given.quick)
        print(page.time_to_accuracy({name: results.cases[name]["result"]}), flush=True)
    page.publish(folder)


if __name__ == "__main__":
    main()
