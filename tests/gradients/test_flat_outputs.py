"""Outputs that are flat at all points and not beyond: never a std of 0 that claims to be sure."""

import math
import warnings

import pytest
import torch
from torch import nn

import howsure as hs
from compilers import needs_compiler
from howsure.methods import sampling

WIDTH = 80


class Rectified(nn.Module):
    """max(x w, 0) with a unit vector w: the noise that reaches it has the sensor's own std.

    The second output is always flat, the third never. The rectifier acts on many equal numbers:
    one of few is looked at for its kink.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.ones(WIDTH) / math.sqrt(WIDTH))

    def forward(self, x):
        h = x @ self.w
        rectified = torch.relu(h[:, None].expand(-1, 16)).mean(1)
        return torch.stack(
            [rectified, torch.relu((0 * h - 1)[:, None].expand(-1, 16)).mean(1), h], 1
        )


def below(deviations, rows=4):
    """Inputs so many standard deviations below the kink."""
    return torch.full((rows, WIDTH), -deviations / math.sqrt(WIDTH))


def true_std(deviations):
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    weight = torch.exp(-z * z / 2)
    value = (z - deviations).clamp(min=0)
    mean = (weight * value).sum() / weight.sum()
    return float(((weight * (value - mean).square()).sum() / weight.sum()).sqrt())


def checked(method="gradients", **options):
    """A wrapper that knows the network from inputs where all is well."""
    sure = hs.Uncertain(Rectified().eval(), 1.0, method, **options)
    found = sure(below(-3.0))
    assert found.method == method and float(found.std[0, 0]) > 0.5
    return sure


@pytest.mark.parametrize("deviations", [0.5, 1.0, 1.3])
def test_a_std_of_0_is_not_believed(deviations):
    """Of 8 points none passes the kink in 1 to 14 of 30 cases."""
    truth = true_std(deviations)
    for seed in range(30):
        found = checked(seed=seed)(below(deviations))
        assert truth / 5 < float(found.std[:, 0].min()) <= float(found.std[:, 0].max()) < 5 * truth
        assert bool((found.std[:, 1] == 0).all() and (found.std_error[:, 1] == 0).all())


@pytest.fixture
def looked(monkeypatch):
    """The numbers of rows that further passes looked at."""
    counts, own = [], sampling.sampled_variance_of_rows

    def spread(problem, rows):
        counts.append(len(rows))
        return own(problem, rows)

    monkeypatch.setattr(sampling, "sampled_variance_of_rows", spread)
    return counts


def flat_seed(looked, x):
    """A seed of which all points are on the flat side at `x`, a single row, and not its samples."""
    for seed in range(100):
        sure = checked(seed=seed)
        looked.clear()
        # The second output is always flat.
        if sure(x).notes and looked:
            return seed
    raise AssertionError("no such seed")


def test_only_flat_rows_are_looked_at_and_only_those_that_move_are_sampled(looked):
    far, near = below(40.0, 2), below(-3.0, 2)
    sure = checked(seed=flat_seed(looked, below(1.0, 1)))
    found = sure(torch.cat([far, below(1.0, 3), near]))
    assert "3 of 7 inputs were sampled" in found.notes[0]
    assert bool((found.std[:2, 0] == 0).all() and (found.std[2:, 0] > 0).all())
    (note,) = sure(torch.cat([far, near])).notes
    assert "None of 56 noisy samples" in note and "2 of 4 inputs" in note


def test_outputs_that_move_are_not_looked_at(looked):
    sure = hs.Uncertain(nn.Linear(WIDTH, 3).eval(), 1.0, "gradients")
    assert sure(below(1.0)).notes == () and not looked


def test_a_prediction_does_not_depend_on_the_rows_beside_it(looked):
    sure = checked(seed=flat_seed(looked, below(1.0, 1)))
    x = torch.cat([below(1.0, 1), below(40.0, 1), below(-3.0, 1), below(1.2, 1)])
    whole = sure(x)
    for i in range(4):
        torch.testing.assert_close(sure(x[i : i + 1]).std, whole.std[i : i + 1])


def test_without_noise_everything_is_flat():
    sure = hs.Uncertain(Rectified().eval(), torch.zeros(WIDTH), "gradients")
    assert not sure(below(1.0)).std.any()


class Logits(Rectified):
    def forward(self, x):
        return 4 * super().forward(x)[:, [0, 2]]


def test_flat_logits_are_looked_at():
    for seed in range(10):
        sure = hs.Uncertain(Logits().eval(), 1.0, "gradients", task="classification", seed=seed)
        sure(below(-3.0))
        assert float(sure(below(1.0)).logits.std[:, 0].min()) > 0


def test_the_tangent_of_a_flat_output_is_told():
    for seed in range(30):
        found = checked("linear", seed=seed)(below(1.3))
        assert not found.std[:, 0].any() and "not linear" in found.notes[0]


@needs_compiler
@pytest.mark.parametrize("method", ["gradients", "linear"])
def test_compiled_programs_hand_doubtful_inputs_to_eager(method, looked):
    seed = flat_seed(looked, below(1.0, 1))
    net = nn.Sequential(nn.Linear(WIDTH, 1, bias=False), nn.ReLU()).eval()
    nn.init.constant_(net[0].weight, 1 / math.sqrt(WIDTH))
    eager, sure = (hs.Uncertain(net, 1.0, method, seed=seed) for _ in range(2))
    eager(below(-3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sure.compile()(below(-3.0))
    assert all(run is not None for run in sure._compiled.programs.values())
    for deviations in (-3.0, 1.0, 1.3, 4.0, 40.0):
        looked.clear()
        found = sure(below(deviations))
        assert bool(looked) == (deviations > 0)
        expected = eager(below(deviations))
        for name in ("std", "std_error"):
            one, two = getattr(found, name), getattr(expected, name)
            if one is None:
                continue
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
        assert method == "linear" or found.notes == expected.notes
