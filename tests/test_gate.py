"""The gate against numpy, in a loop, and the blend against the product of two Gaussians."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from howsure.deploy.gate import Gate, HysteresisGate, blend

HELD_OUT = torch.rand(200, 6, generator=torch.Generator().manual_seed(0)) + 0.1


@pytest.mark.parametrize("by", ["std", "variance"])
@pytest.mark.parametrize("joint", [True, False])
def test_trusts_up_to_k_times_the_held_out_mean(by, joint):
    """PAPER item 39: uncertainty <= k x held-out mean; joint means over the outputs."""
    gate = Gate.fit(HELD_OUT, k=1.1, by=by, joint=joint)
    value = HELD_OUT.double().numpy()
    value = np.sqrt(value) if by == "std" else value
    value, axis = (value.mean(1), None) if joint else (value, 0)
    expected = value <= 1.1 * value.mean(axis=axis)
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(gate(HELD_OUT).numpy(), expected)
    np.testing.assert_allclose(gate.threshold, 1.1 * value.mean(axis=axis), rtol=1e-6)


def test_the_default_is_that_of_the_paper():
    gate = Gate.fit(torch.full((10, 2), 4.0))
    assert float(gate.threshold) == 10.0  # 5 times a std of 2
    assert gate(torch.tensor([[100.0, 100.0], [101.0, 100.0]])).tolist() == [True, False]


def test_batches_give_the_same_gate_as_one_tensor():
    whole = Gate.fit(HELD_OUT, joint=False)
    batches = Gate.fit((batch for batch in HELD_OUT.split(33)), joint=False)
    torch.testing.assert_close(batches.threshold, whole.threshold)


def test_one_sample_needs_no_batch():
    gate = Gate.fit(HELD_OUT, k=1)
    for var in HELD_OUT[:20]:
        trusted = gate(var)
        assert trusted.shape == ()
        assert bool(trusted) == bool(gate(var[None])[0])
    scalar = Gate.fit(HELD_OUT[:, 0])
    assert scalar(torch.tensor(0.1)).shape == ()
    assert scalar(torch.tensor([0.1, 99.0])).tolist() == [True, False]


def test_dense_outputs():
    maps = torch.rand(5, 2, 4, 4)
    assert Gate.fit(maps)(maps).shape == (5,)
    assert Gate.fit(maps, joint=False)(maps).shape == maps.shape


def test_nonsense_is_not_trusted():
    for by in ("std", "variance"):
        gate = Gate.fit(HELD_OUT[:, 0], by=by)
        assert gate(torch.tensor([torch.nan, torch.inf, -1.0, 0.0])).tolist() == [0, 0, 0, 1]


def test_selects_the_fallback_where_not_trusted():
    gate, mean = Gate.fit(torch.ones(4, 2), k=2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    var = torch.tensor([[1.0, 1.0], [1.0, 100.0]])
    assert gate.select(mean, var).tolist() == [[1, 2], [0, 0]]
    assert gate.select(mean, var, torch.tensor([7.0, 8.0])).tolist() == [[1, 2], [7, 8]]
    each = Gate.fit(torch.ones(4, 2), k=2, joint=False)
    assert each.select(mean, var, 9).tolist() == [[1, 2], [3, 9]]
    assert gate.select(torch.full((2,), torch.nan), var[1]).tolist() == [0, 0]


def test_a_threshold_can_be_given():
    gate = Gate(0.3, by="variance")
    assert gate(torch.tensor([0.2, 0.3, 0.4])).tolist() == [True, True, False]


def test_hysteresis_follows_the_automaton():
    """Against a loop with one boolean: enter at 3, leave above 5."""
    gate = Gate(5.0).with_hysteresis(ratio=0.6)
    stds = np.random.default_rng(0).uniform(0, 8, 300)
    state, expected, on = None, [], False
    found = []
    for std in stds:
        on = std <= 5 if on else std <= 3
        expected.append(on)
        state, trusted = gate.update(state, torch.tensor(std**2))
        found.append(bool(trusted))
    assert found == expected
    changes = np.abs(np.diff(found)).sum()
    assert changes < np.abs(np.diff(stds <= 5)).sum()


def test_hysteresis_holds_back_for_some_steps():
    gate = Gate(5.0).with_hysteresis(ratio=0.6, hold=3)
    stds = [1, 1, 1, 4, 6, 1, 1, 4, 1, 1, 1]
    state, found = None, []
    for std in stds:
        state, trusted = gate.update(state, torch.tensor(float(std**2)))
        found.append(int(trusted))
    assert found == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1]


def test_hysteresis_is_pure_and_takes_batches():
    gate = Gate.fit(HELD_OUT).with_hysteresis(hold=2)
    first, _ = gate.update(None, HELD_OUT[:4])
    kept = first.calm.clone()
    second, trusted = gate.update(first, HELD_OUT[:4])
    again, _ = gate.update(first, HELD_OUT[:4])
    assert torch.equal(first.calm, kept)
    assert torch.equal(second.calm, again.calm)
    assert trusted.shape == (4,)


def test_blend_is_the_product_of_two_gaussians():
    """Against numerical integration of the product of the densities."""
    m1, v1, m2, v2 = 1.0, 0.5, 3.0, 2.0
    x = np.linspace(-10, 15, 20_001)
    density = stats.norm.pdf(x, m1, v1**0.5) * stats.norm.pdf(x, m2, v2**0.5)
    density /= density.sum()
    mean = (x * density).sum()
    found = blend(*(torch.tensor(v, dtype=torch.float64) for v in (m1, v1, m2, v2)))
    assert float(found.mean) == pytest.approx(mean, abs=1e-9)
    assert float(found.var) == pytest.approx(((x - mean) ** 2 * density).sum(), abs=1e-9)


def test_blend_is_better_than_either():
    """Errors of 100,000 blends have the variance that is stated; 5 standard errors, 6e-7."""
    rng = np.random.default_rng(1)
    first, second = (torch.tensor(s * rng.normal(size=100_000)) for s in (1.0, 2.0))
    found = blend(first, torch.ones_like(first), second, 4.0)
    assert float(found.var[0]) == pytest.approx(0.8)
    assert float(found.mean.square().mean()) == pytest.approx(0.8, rel=5 * (2 / 100_000) ** 0.5)


inf, nan = float("inf"), float("nan")
WRONG: Any = "sigma"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.1, 0.0), (0.7, 2.0), (0.1, 0.0)),
        ((0.1, 2.0), (0.7, 0.0), (0.7, 0.0)),
        ((0.1, 2.0), (0.7, inf), (0.1, 2.0)),
        ((0.1, inf), (0.7, 2.0), (0.7, 2.0)),
        ((1.0, 0.0), (3.0, 0.0), (2.0, 0.0)),
        ((1.0, inf), (3.0, inf), (2.0, inf)),
        ((0.1, 0.0), (0.7, inf), (0.1, 0.0)),
        ((nan, inf), (0.7, 2.0), (0.7, 2.0)),
        ((0.1, 1e-38), (0.7, 1e38), (0.1, 1e-38)),
        ((0.1, 2.0), (0.7, nan), (nan, nan)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blend_is_exact_at_0_and_infinity(first, second, expected, dtype):
    values = [torch.tensor(value, dtype=dtype) for value in (*first, *second)]
    found = blend(*values)
    assert found.mean.dtype == found.var.dtype == dtype
    expected = torch.tensor(expected, dtype=dtype)
    torch.testing.assert_close(
        torch.stack([found.mean, found.var]), expected, rtol=0, atol=0, equal_nan=True
    )


def test_blend_has_gradients():
    values = [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (1, 0.5, 3, 2)]
    assert torch.autograd.gradcheck(lambda *v: (blend(*v).mean, blend(*v).var), values)


REFUSED = [
    ("k 0", lambda: Gate.fit(HELD_OUT, k=0), "`k` is 0"),
    ("k NaN", lambda: Gate.fit(HELD_OUT, k=nan), "`k` is nan"),
    ("by", lambda: Gate.fit(HELD_OUT, by=WRONG), "it must be one of"),
    ("zeros", lambda: Gate.fit(torch.zeros(3, 2)), "noise and dropout on"),
    ("one zero output", lambda: Gate.fit(torch.eye(3)[:, :2] * 0, joint=False), "must be"),
    ("empty", lambda: Gate.fit(torch.zeros(0, 2)), "empty"),
    ("no batches", lambda: Gate.fit([]), "empty"),
    ("NaN", lambda: Gate.fit(torch.full((2, 2), nan)), "NaN"),
    ("negative", lambda: Gate.fit(-HELD_OUT), "negative"),
    ("no batch", lambda: Gate.fit(torch.tensor(1.0)), "batch dimension"),
    ("unlike batches", lambda: Gate.fit([HELD_OUT, HELD_OUT[:, :1]]), "same"),
    ("other outputs", lambda: Gate.fit(HELD_OUT)(torch.ones(3, 5)), "made for outputs"),
    ("too few dimensions", lambda: Gate.fit(HELD_OUT)(torch.tensor(1.0)), "made for outputs"),
    ("ratio", lambda: Gate(1.0).with_hysteresis(ratio=1.5), "`ratio` is 1.5"),
    ("hold", lambda: HysteresisGate(Gate(1.0), Gate(2.0), hold=0), "`hold` is 0"),
    ("negative blend", lambda: blend(HELD_OUT, -HELD_OUT, 0.0, 1.0), "is negative"),
]


@pytest.mark.parametrize(
    ("refused", "says"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED]
)
def test_is_refused_with_a_remedy(refused, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        refused()
