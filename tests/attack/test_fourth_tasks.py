"""Fourth attack: classes, and fits, of networks that choose beside dropout of their own."""

import copy
import itertools
import warnings

import pytest
import torch
from fourth import (
    FOUR,
    HEADS,
    Beside,
    compared,
    is_fine,
    judged,
    rows,
    setting,
    some_fast,
    truth_of_rows,
    uncertain,
    white,
)
from second import is_ours

import howsure as hs

OUTPUTS = {"classification": 3, "multilabel": 3, "binary": 1}
CLASSES = [
    (task, place, name)
    for task, place, name in itertools.product(
        OUTPUTS, ("beside", "gate", "dropped", "after"), HEADS
    )
    if (task, place) != ("binary", "after")  # A choice among one number.
]


# Gradients of one probability in 12 are hidden in part (docs/attack.md).
LIMITS = [("multilabel", "gate", "detached part")]


@pytest.mark.parametrize(("number", "task", "place", "name"), some_fast(CLASSES, 29, LIMITS))
def test_classes(number, task, place, name):
    var, rate = setting(number)
    model, x = Beside(HEADS[name], place, rate, outputs=OUTPUTS[task]).eval(), rows()
    truth = truth_of_rows(model, x, white(var), task=task)
    method = FOUR[(number + number // 4 + number // 32) % 4]
    result = judged(lambda: uncertain(model, var, method, task=task)(x), truth)
    assert is_fine(result), result


class Data:
    """A prediction whose std is that of the sensor alone."""

    def __init__(self, p):
        is_noise = [kind == "input" for kind in p.budget().kinds]
        self.mean, self.data_var = p.mean, p.budget().variances[is_noise].sum(0)
        self.std = self.data_var.sqrt()
        self.std_error, self.notes, self.method = p.std_error, p.notes, p.method


FITS = list(itertools.product(("posterior", "dropout"), ("beside", "gate"), HEADS))


@pytest.mark.parametrize(("number", "kind", "place", "name"), some_fast(FITS, 23))
def test_fits(number, kind, place, name):
    var, rate = setting(number)
    model, x, held_out = Beside(HEADS[name], place, rate).eval(), rows(), rows(150, seed=7)
    with torch.no_grad():
        targets = model(held_out) + 0.3 * rows(150, 2, seed=8)
    # A fitted rate takes the place of the model's own; a posterior is about no dropout at all.
    sure = uncertain(model, var, "auto") if kind == "dropout" else hs.Uncertain(model, var)
    part = {"model": "dropout"} if kind == "dropout" else {}
    options = {"residual_var": 0.0, "inputs": "clean", "show_progress": False, **part}
    twin = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sure.fit(held_out, targets, **options)
        except ValueError as refused:
            assert is_ours(refused), refused
            return
        p = sure(x)
    if kind == "dropout":
        (twin.drop.p,) = sure.setup.rates(sure.setup.sites(x))
        result = compared(p, truth_of_rows(twin, x, white(var)))
    else:
        twin.drop.p = 0.0
        result = compared(Data(p), truth_of_rows(twin, x, white(var)))
    assert is_fine(result), result
