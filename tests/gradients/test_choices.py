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
