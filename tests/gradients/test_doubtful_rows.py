"""Rows that are not finite, that the noise moves far away, or that share a branch with others."""

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.estimators.designs import draw

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(100, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
X = torch.randn(5, 100, generator=torch.Generator().manual_seed(1))
OTHERS = [0, 2, 3, 4]


def spoiled(number):
    x = X.clone()
    x[1, 3] = number
    return x


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "options",
    [
        {"method": "gradients"},
        {"method": "gradients", "tolerance": 0.1},
        {"method": "gradients", "rate": 0.05},
        {"method": "noise_sampling", "tolerance": 0.1},
        {"method": "linear"},
        {"task": "classification"},
    ],
)
def test_a_row_that_is_not_finite_has_no_std_and_leaves_the_others_alone(number, options):
    noise = hs.noise.std(0.1)
    p = hs.Uncertain(NET, noise, **options)(spoiled(number))
    alone = hs.Uncertain(NET, noise, **options)(X)
    assert p.std[1].isnan().all()
    torch.testing.assert_close(p.std[OTHERS], alone.std[OTHERS], rtol=1e-3, atol=0)
    if p.method == "gradients":
        assert any("1 of 5 inputs have outputs that are NaN" in note for note in p.notes)


def test_a_first_batch_that_is_not_finite_decides_nothing_for_the_next():
    sure = hs.Uncertain(NET, hs.noise.std(0.1), "gradients")
    sure(torch.full_like(X, float("nan")))
    found = sure(X)
    assert found.notes == ()
    expected = hs.Uncertain(NET, hs.noise.std(0.1), "gradients")(X)
    assert torch.equal(found.std, expected.std)


def test_nan_may_stand_for_what_is_missing():
    class Filled(nn.Module):
        def forward(self, x):
            return NET(torch.nan_to_num(x))

    p = hs.Uncertain(Filled().eval(), hs.noise.std(0.1), "gradients")(spoiled(float("nan")))
    assert p.std.isfinite().all() and p.notes == ()


class Scaled(nn.Module):
    """Takes readings above 1 for gray levels: a branch on the whole batch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x / 255 if x.max() > 1 else x)


@pytest.mark.parametrize("top", [0.97, 0.99])
def test_a_branch_on_the_whole_batch_is_told(top):
    torch.manual_seed(3)
    net = Scaled().eval()
    x = top * torch.rand(4, 784, generator=torch.Generator().manual_seed(2))
    p = hs.Uncertain(net, hs.noise.std(0.03), "gradients")(x)
    assert any("rows of a batch influence" in n or "differs from E" in n for n in p.notes)


def test_outputs_that_the_noise_moves_far_are_told_unless_their_mean_is_predicted():
    class Length(nn.Module):
        def forward(self, x):
            return x.square().sum(1, keepdim=True).sqrt()

    x = torch.full((2, 2000), 1e-9)
    for prediction, told in (("network", True), ("mean", False)):
        p = hs.Uncertain(Length().eval(), 0.01, "gradients", prediction=prediction)(x)
        assert any("For 2 of 2 inputs f" in note for note in p.notes) is told


def test_a_step_that_only_later_inputs_reach_is_found_by_many_points():
    class Step(nn.Module):
        def forward(self, x):
            return x.mean(1, keepdim=True) + 0.05 * (x.sum(1, keepdim=True) > 20).float()

    sure = hs.Uncertain(Step().eval(), hs.noise.std(0.1), "gradients", samples=64)
    far, near = torch.zeros(3, 100), torch.full((3, 100), 0.2)
    assert sure(far).notes == ()
    p = sure(near)
    assert any("were sampled" in note for note in p.notes)
    torch.testing.assert_close(p.std, torch.full_like(p.std, 0.0337), rtol=0.15, atol=0)


def test_noise_is_not_that_of_inputs_drawn_with_a_small_seed():
    """`torch.manual_seed(1); x = torch.rand(...)` and its noise came from the same numbers."""
    pairs = torch.tensor([[1.0]])
    drawn = [
        draw(pairs, (400,), range(3), seed, source) for seed in range(3) for source in range(3)
    ]
    noise = torch.cat(drawn).flatten(1)  # (27, 400)
    streams = [torch.Generator().manual_seed(seed) for seed in range(200)]
    inputs = torch.stack([torch.randn(400, generator=each) for each in streams])
    both = torch.corrcoef(torch.cat([noise, inputs]))[: len(noise)]
    both[:, : len(noise)].fill_diagonal_(0)
    assert float(both.abs().max()) < 0.3
