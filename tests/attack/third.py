"""The oracle of the third attack: Monte Carlo by hand, and one of four outcomes of a call."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import pytest
import torch
from second import is_ours
from torch import nn

import howsure as hs

WIDTH = 40
# Words of notes that explain why a std is 0, NaN or rough.
EXPLAINED = ("None of", "NaN or infinite", "smaller than", "rounding", "Few of the samples")


def some_fast(names, every):
    """Names as parameters, of which all but a few are run with the slow tests."""
    return [
        pytest.param(name, marks=() if number % every == 0 else pytest.mark.slow)
        for number, name in enumerate(names)
    ]


class Net(nn.Module):
    """A module with a forward pass given as a function of itself and the input."""

    def __init__(self, forward, seed=0, **parts):
        super().__init__()
        torch.manual_seed(seed)
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else part())

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


def linear(*sizes, act=nn.Tanh):
    """What makes a multilayer perceptron; random weights are drawn when it is called."""

    def make():
        layers = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), act()]
        return nn.Sequential(*layers[:-1])

    return make


def rows(count=4, *shape, seed=1):
    """Standard normal rows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *(shape or (WIDTH,)), generator=generator)


def leaves(output):
    """All floating-point tensors of an output in double precision, in order."""
    if isinstance(output, torch.Tensor):
        return [output.detach().double()] if output.is_floating_point() else []
    if isinstance(output, dict):
        return [t for value in output.values() for t in leaves(value)]
    if isinstance(output, (list, tuple)):
        return [t for value in output for t in leaves(value)]
    if hasattr(output, "__dict__"):
        return [t for value in vars(output).values() for t in leaves(value)]
    return []


def numbers(output):
    """All floating-point numbers of an output."""
    return torch.cat([t.reshape(-1) for t in leaves(output)])


def spread(values):  # (draws, numbers)
    """Std of every number, with its standard error."""
    deviations = (values - values.mean(0)).square()
    std = deviations.mean(0).sqrt()
    error = deviations.std(0) / math.sqrt(len(values)) / (2 * std.clamp(min=1e-300))
    return std, error


@torch.no_grad()
def truth_of_rows(function, x, var, draws=3000, seed=11):
    """All draws as rows of one batch; outputs of any structure have their rows in front."""
    generator = torch.Generator().manual_seed(seed)
    noise = math.sqrt(var) * torch.randn(draws, *x.shape, generator=generator).double()
    out = function((x.double() + noise).flatten(0, 1).to(x.dtype))
    return spread(torch.cat([t.reshape(draws, -1) for t in leaves(out)], 1))


def truth_of_calls(model, x, noisy, draws=1200, seed=11):
    """A call of a fresh copy for each draw; `noisy` makes noisy inputs from a generator."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(draws):
        values.append(numbers(copy.deepcopy(model)(noisy(x, generator))))
    return spread(torch.stack(values))


def add_noise(var):
    """Independent noise on every floating-point tensor of a structure."""

    def noisy(x, generator):
        if isinstance(x, torch.Tensor):
            if not x.is_floating_point():
                return x.clone()
            return x + math.sqrt(var) * torch.randn(x.shape, generator=generator).to(x.dtype)
        if isinstance(x, dict):
            return {key: noisy(value, generator) for key, value in x.items()}
        return type(x)(noisy(value, generator) for value in x)

    return noisy


def outcome(predict, truth, error, room=0.1):
    """ "right", "noted", "refused", or "WRONG" and what, in words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p = predict()
    except Exception as raised:
        if is_ours(raised) and len(str(raised)) > 20:
            return "refused"
        return f"WRONG: raw {type(raised).__name__}: {str(raised)[:200]}"
    std, stated = numbers(p.std), torch.zeros_like(truth)
    if std.shape != truth.shape:
        return f"WRONG: {tuple(std.shape)} stds, {tuple(truth.shape)} expected"
    if p.std_error is not None:
        stated = numbers(p.std_error).nan_to_num(0.0)
    rounding = 2e-7 * (truth.max() + numbers(p.mean).abs().max())
    allowed = room * truth + 4 * (stated.square() + error.square()).sqrt() + rounding
    off = ~((std - truth).abs() <= allowed)
    if not off.any():
        return "right"
    ratio = (std / truth)[off]
    is_explained = any(word in note for word in EXPLAINED for note in p.notes)
    return (
        f"{'noted' if is_explained else 'WRONG'}: {int(off.sum())} of {len(off)} stds, "
        f"{float(ratio.min()):.3f} to {float(ratio.max()):.3f} of the truth, stated error "
        f"{float((stated / std)[off].max()):.3f}; {p.method}; {p.notes}"
    )


def check(model, x, noise, truth, **options):
    """The outcome of a call; the model and the input must be as before."""
    before, state = copy.deepcopy(x), _state(model)
    result = outcome(lambda: hs.Uncertain(model, noise, **options)(x), *truth)
    if not torch.equal(numbers([before]).nan_to_num(7), numbers([x]).nan_to_num(7)):
        return "WRONG: the input was changed"
    if state is not None and _state(model) != state:
        return "WRONG: the model was changed"
    return result


def _state(model):
    """All tensors and plain values of a model, as one comparable value."""
    if not isinstance(model, nn.Module):
        return None

    def value(item, depth=0):
        if isinstance(item, torch.Tensor):
            item = item.to_dense() if item.layout is not torch.strided else item
            return item.dtype, tuple(item.shape), item.detach().double().sum().item()
        if isinstance(item, nn.Module) or depth > 4:
            return type(item).__name__
        if isinstance(item, dict):
            # A scripted module keeps its methods once they were asked for.
            items = [(str(key), entry) for key, entry in item.items() if key != "forward"]
            return tuple((key, value(entry, depth + 1)) for key, entry in items)
        if isinstance(item, (list, tuple, set)) or type(item).__name__ == "deque":
            return tuple(value(v, depth + 1) for v in item)
        return item if isinstance(item, (int, float, str, bool, type(None))) else None

    return [(name, value(vars(module))) for name, module in model.named_modules()]
