"""The seed alone decides: not the batch, the chunk, the threads, nor the caller's own draws."""

from __future__ import annotations

import pytest
import torch
from table import NAMES, TABLE, WIDTH, missing, model_for, uncertain

FIELDS = ("mean", "data_var", "model_var", "std_error")
ROWS = 8


def inputs():
    return torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))


def assert_same(one, two, rows=slice(None), **tolerance):
    for name in FIELDS:
        left, right = getattr(one, name), getattr(two, name)
        assert (left is None) == (right is None)
        if left is not None:
            # A variance is a difference of large sums; float32 leaves it four digits.
            close = {"rtol": 1e-4, "atol": 1e-6, **tolerance}
            torch.testing.assert_close(left[rows], right, **close)


def test_the_table_has_every_public_method():
    assert missing() == set()


@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
def test_twice_the_same_whatever_the_caller_has_drawn(method, options):
    x, model = inputs(), model_for(method)
    torch.manual_seed(1)
    one = uncertain(method, options, model)(x)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    sure = uncertain(method, options, model)
    two, three = sure(x), sure(x)
    assert torch.equal(state, torch.get_rng_state())
    assert_same(one, two, rtol=0, atol=0)
    assert_same(two, three, rtol=0, atol=0)


@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
def test_a_row_does_not_depend_on_its_batch(method, options):
    x, model = inputs(), model_for(method)
    sure = uncertain(method, options, model)
    whole = sure(x)
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4])
    assert_same(whole, sure(x[order]), order)
    for size in (1, 3, 6):
        assert_same(whole, sure(x[:size]), slice(0, size))
        assert_same(whole, uncertain(method, options, model)(x[-size:]), slice(-size, None))


@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
@pytest.mark.parametrize(
    "chunk", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))]
)
def test_a_chunk_bounds_memory_and_nothing_else(method, options, chunk):
    x, model = inputs(), model_for(method)
    one = uncertain(method, options, model)(x)
    assert_same(one, uncertain(method, options, model, chunk=chunk)(x))


@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
def test_two_threads_compute_what_one_does(method, options):
    x, model = inputs(), model_for(method)
    one = uncertain(method, options, model)(x)
    torch.set_num_threads(2)
    try:
        assert_same(one, uncertain(method, options, model)(x))
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
def test_another_seed_is_another_draw_of_the_same(method, options):
    x, model = inputs(), model_for(method)
    one, two = (uncertain(method, options, model, seed=seed)(x) for seed in (0, 1))
    assert bool((one.std > 0).all()) and bool((two.std > 0).all())
    ratio = (one.std / two.std).log().abs()
    assert float(ratio.mean()) < 0.35, ratio
