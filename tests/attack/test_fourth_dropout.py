"""Fourth attack: choices, steps and hidden gradients beside dropout of the model's own."""

import copy
import functools
import itertools

import pytest
import torch
from fourth import (
    CORRELATED,
    FEATURES,
    FOUR,
    HEADS,
    METHODS,
    PLACES,
    STEPS,
    WAYS,
    Beside,
    Sequence,
    TwoInputs,
    is_fine,
    judged,
    numbers,
    rows,
    setting,
    some_fast,
    truth_of_rows,
    uncertain,
    white,
)

import howsure as hs


def product(*tables):
    return list(itertools.product(*tables))


@functools.lru_cache(maxsize=4)
def beside(place, name, setting):
    """A network and its truth, which several methods have in common."""
    var, rate = setting
    model = Beside(HEADS[name], place, rate).eval()
    return model, truth_of_rows(model, rows(), white(var))


@functools.lru_cache(maxsize=4)
def in_time(name, var):
    model = Sequence(name).eval()
    return model, truth_of_rows(model, rows(4, STEPS, FEATURES), white(var))


# Steps that few or none of the points cross, by up to 0.45 of the std (docs/attack.md).
LIMITS = {
    *product(["beside, wide"], ["top mask"], ["8 points", "auto"]),
    *product(["beside, wide"], ["threshold"], ["8 points", "auto"]),
    ("gate", "numpy", "256 points"),
    ("dropped", "step", "samples"),
}
LIMITS_IN_TIME = set(
    product(
        ["attention above average", "experts", "experts of dropped tokens"],
        [0.3],
        ["8 points", "auto"],
    )
)


@pytest.mark.parametrize(
    ("number", "place", "name", "method"), some_fast(product(PLACES, HEADS, METHODS), 47, LIMITS)
)
def test_functions_beside_dropout(number, place, name, method):
    var, rate = setting(number // len(METHODS))
    model, truth = beside(place, name, (var, rate))
    result = judged(lambda: uncertain(model, var, method)(rows()), truth)
    assert is_fine(result), result


@pytest.mark.parametrize(
    ("number", "name", "var", "method"),
    some_fast(product(WAYS, (0.01, 0.3), FOUR), 23, LIMITS_IN_TIME),
)
def test_sequences_graphs_and_attention(number, name, var, method):
    model, truth = in_time(name, var)
    x = rows(4, STEPS, FEATURES)
    result = judged(lambda: uncertain(model, var, method)(x), truth)
    assert is_fine(result), result


NOISES_OF_TWO = (0.05, None), (None, 0.05), (0.02, 0.3)


@pytest.mark.parametrize(
    ("number", "name", "chooser", "noise"),
    some_fast(product(HEADS, ("a", "b", "both"), NOISES_OF_TWO), 47),
)
def test_two_inputs(number, name, chooser, noise):
    model, x = TwoInputs(HEADS[name], chooser).eval(), (rows(), rows(4, 6, seed=2))
    truth = truth_of_rows(model, x, white(noise))
    method = FOUR[(number + number // 9) % 4]
    result = judged(lambda: uncertain(model, noise, method)(*x), truth)
    assert is_fine(result), result


@pytest.mark.parametrize(("number", "kind", "name"), some_fast(product(CORRELATED, HEADS), 23))
def test_correlated_noise(number, kind, name):
    noise, noisy = CORRELATED[kind]
    model, x = Beside(HEADS[name], PLACES[number % 5], 0.2).eval(), rows()
    truth = truth_of_rows(model, x, noisy)
    method = FOUR[(number + number // 4) % 4]
    result = judged(lambda: uncertain(model, noise, method)(x), truth)
    assert is_fine(result), result


POINTS = {"8 points": 12, "64 points": 90, "samples": 200}


@pytest.mark.parametrize(
    ("number", "place", "name", "method"),
    some_fast(product(("beside", "gate", "dropped"), HEADS, POINTS), 47),
)
def test_mean_prediction(number, place, name, method):
    var, rate = setting(number // len(POINTS))
    model, truth = beside(place, name, (var, rate))
    p = uncertain(model, var, method, prediction="mean")(rows())
    result = judged(lambda: p, truth)
    assert is_fine(result), result
    # So many points as there are values in the average, and the draws of the truth.
    gap = (numbers(p.mean) - truth.mean).abs()
    assert (gap <= 5 * truth.std * (POINTS[method] ** -0.5 + 0.01)).all(), gap / truth.std


@pytest.mark.parametrize(
    ("number", "place", "name"), some_fast(product(("beside", "gate", "dropped"), HEADS), 23)
)
def test_loaded_settings_and_rows_by_themselves(number, place, name, tmp_path):
    var, rate = setting(number)
    method = FOUR[number % 4]
    model, x = Beside(HEADS[name], place, rate).eval(), rows()
    sure = uncertain(model, var, method)
    p = sure(x)
    sure.save(tmp_path / "settings.pt")
    loaded = hs.Uncertain.load(tmp_path / "settings.pt", copy.deepcopy(model))(x)
    assert torch.equal(p.std, loaded.std) and p.notes == loaded.notes
    truth = truth_of_rows(model, x, white(var))
    for fresh in (False, True):  # A row alone is judged by itself, and right as well.
        each = [(uncertain(model, var, method) if fresh else sure)(row[None]) for row in x]
        together = Together(each)
        result = judged(lambda p=together: p, truth)
        assert is_fine(result), (fresh, result)


class Together:
    """Predictions for single rows as one."""

    def __init__(self, each):
        self.notes = [note for p in each for note in p.notes]
        self.method = each[0].method
        for name in ("mean", "std", "data_var", "std_error"):
            setattr(self, name, torch.cat([getattr(p, name) for p in each]))
