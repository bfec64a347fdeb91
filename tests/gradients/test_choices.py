"""Rows where few numbers choose, round or clip are sampled; other rows and networks are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.choices import choices_at
from howsure.methods.gradients import without_samples

STD = 0.1


class Ended(nn.Module):
    """A perceptron and a function of its outputs."""

    def __init__(self, function, outputs=4):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(100, 64), nn.Tanh(), nn.Linear(64, outputs))
        self.function = function

    def forward(self, x):
        return self.function(self.body(x))


class Gated(nn.Module):
    """A small rectifier scales wide features, as squeeze and excitation does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.squeeze = nn.Linear(100, 64), nn.Linear(64, 4)
        self.excite, self.last = nn.Linear(4, 64), nn.Linear(64, 2)

    def forward(self, x):
        features = torch.tanh(self.body(x))
        return self.last(features * torch.sigmoid(self.excite(F.relu(self.squeeze(features)))))


def in_place(z):
    z = z.clone()
    z[:, 0].relu_()
    return z


def masked(z):
    keep = torch.ones(1, 4, dtype=torch.bool)
    return torch.where(keep, z, -z)


CHOOSE = {
    "sort": lambda z: z.sort(-1).values,
    "expert": lambda z: z[torch.arange(len(z)), z.argmax(1)][:, None],
    "rectifier": F.relu,
    "part of it in place": in_place,
    "clipped": lambda z: z.clamp(-0.1, 0.1),
    "rounded": lambda z: 10 * z + (10 * z).round(),
    "heading": lambda z: torch.atan2(z[:, :2], z[:, 2:]),
    "switch": lambda z: torch.where(z[:, :1] > 0, z, 2 * z),
    "largest of two": lambda z: torch.maximum(z[:, :2], z[:, 2:]),
}
CHOOSE_NOTHING = {
    "linear": lambda z: z,
    "bounded": torch.tanh,
    "probabilities": lambda z: z.softmax(1),
    "mask of constants": masked,
}


def chooses(model):
    z = torch.randn(6, 100, generator=torch.Generator().manual_seed(1))
    return choices_at(lambda points: model(points[0]), [z], 6).decide


@pytest.mark.parametrize("name", CHOOSE)
def test_a_narrow_choice_is_seen(name):
    assert chooses(Ended(CHOOSE[name]))


@pytest.mark.parametrize("name", CHOOSE_NOTHING)
def test_smooth_ends_and_constant_masks_choose_nothing(name):
    assert not chooses(Ended(CHOOSE_NOTHING[name]))


def test_wide_choices_and_ways_around_narrow_ones_do_not_count():
    assert not chooses(Ended(nn.Sequential(nn.ReLU(), nn.Linear(64, 2)), outputs=64))
    assert not chooses(Gated())


def test_only_rows_within_reach_of_the_noise_are_sampled():
    model = Ended(F.relu, outputs=1).eval()
    with torch.no_grad():
        x = torch.randn(200, 100, generator=torch.Generator().manual_seed(2))
        before = model.body(x)[:, 0]
        far, near = x[before.argmax()][None], x[before.abs().argmin()][None]
    sure = hs.Uncertain(model, STD**2, method="gradients")
    assert not any("sampled" in note for note in sure(far).notes)
    assert any("sampled" in note or "noise_sampling" in note for note in sure(near).notes)


@pytest.mark.parametrize("name", ["sort", "expert", "heading"])
def test_a_row_is_the_same_alone_and_among_others(name):
    model = Ended(CHOOSE[name]).eval()
    x = torch.randn(8, 100, generator=torch.Generator().manual_seed(3))
    together = hs.Uncertain(model, STD**2, method="gradients")(x).std
    sure = hs.Uncertain(model, STD**2, method="gradients")
    alone = torch.cat([sure(row[None]).std for row in x.flip(0)]).flip(0)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_file_has_the_gradients_of_such_rows_and_export_says_so(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    sure, x = hs.Uncertain(model, STD**2, "gradients"), torch.rand(20, 3)
    sampled = sure(x)
    with without_samples():
        estimated = sure(x)
    assert not torch.equal(sampled.data_var, estimated.data_var)
    with pytest.warns(hs.HowsureWarning, match="samples rows of the example"):
        hs.export(sure, x, tmp_path / "net.pt2")
    found = torch.export.load(tmp_path / "net.pt2").module()(x)
    torch.testing.assert_close(found["data_var"], estimated.data_var, rtol=1e-4, atol=0)


BEND = {
    "sigmoid": torch.sigmoid,
    "product of two": lambda z: z[:, :2] * z[:, 2:],
    "norm": lambda z: F.group_norm(z, 2),
    "rectifier": F.relu,
    "reciprocal": lambda z: 1 / (3 + z),
}
STRAIGHT = {
    "linear": lambda z: z,
    "sum": lambda z: z.sum(1, keepdim=True),
    "scaled": lambda z: 3 * z / torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "concatenated": lambda z: torch.cat([z, -z], 1),
    "residual": lambda z: F.pad(z, (1, 1)).flip(1),
}


def bends(model):
    z = torch.randn(6, 100, generator=torch.Generator().manual_seed(1))
    return choices_at(lambda points: model(points[0]), [z], 6).bend


@pytest.mark.parametrize("name", BEND)
def test_a_narrow_function_that_is_not_linear_is_seen(name):
    assert bends(Ended(BEND[name]))


@pytest.mark.parametrize("name", STRAIGHT)
def test_linear_ends_do_not_bend(name):
    assert not bends(Ended(STRAIGHT[name]))


STEEP = {
    "sigmoid": lambda z: (40 * z).sigmoid(),
    "norm of two": lambda z: F.group_norm(z, 2),
    "bump": lambda z: (-200 * z.square()).exp(),
}


@pytest.mark.parametrize("name", STEEP)
def test_a_steep_part_that_no_point_has_reached_is_sampled(name):
    model = Ended(STEEP[name]).eval()
    with torch.no_grad():
        model.body[2].weight.mul_(3)
        x = torch.randn(40, 100, generator=torch.Generator().manual_seed(4))
        generator = torch.Generator().manual_seed(5)
        outputs = torch.stack(
            [model(x + STD * torch.randn(40, 100, generator=generator)) for _ in range(4000)]
        )
    squares = (outputs - outputs.mean(0)).square()
    truth = squares.mean(0).sqrt()
    error = squares.std(0) / 4000**0.5 / (2 * truth)
    p = hs.Uncertain(model, STD**2, method="gradients")(x)
    seen = truth > 0.02 * truth.max()
    off = (p.std - truth).abs() > 0.1 * truth + 4 * (p.std_error.square() + error.square()).sqrt()
    assert int((off & seen).sum()) <= 0.03 * int(seen.sum())


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, F.softplus])
def test_a_gentle_function_of_few_numbers_is_not_sampled(function):
    model, x = Ended(function).eval(), torch.randn(40, 100)
    p = hs.Uncertain(model, STD**2, method="gradients")(x)
    assert p.method == "gradients" and not any("sampled" in note for note in p.notes)


def test_a_rare_jump_takes_more_samples():
    """An alarm that one noisy reading in 150 sets off, of which 200 samples may have none."""

    class Alarm(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.mean = nn.Linear(100, 1)

        def forward(self, x):
            z = self.mean(x)
            return z + 5 * (z > 0.15)

    model, x = Alarm().eval(), torch.zeros(12, 100)
    with torch.no_grad():
        z = STD * model.mean.weight.norm()
        model.mean.bias.fill_(0.15 - 2.5 * float(z))
    probability = 0.0062
    truth = (float(z) ** 2 + 25 * probability * (1 - probability)) ** 0.5
    std = hs.Uncertain(model, STD**2, method="gradients")(x).std
    assert ((std - truth).abs() < 0.35 * truth).all()
