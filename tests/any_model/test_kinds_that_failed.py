"""Models of users that `fit` or a prediction failed on, or got wrong."""

import pytest
import torch
from torch import nn

import howsure as hs

X = torch.randn(80, 30, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(80, generator=torch.Generator().manual_seed(1))


class OneNumber(nn.Module):
    """Outputs of shape (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)[:, 0]


class Detached(OneNumber):
    """Its gradients cannot be used."""

    def forward(self, x):
        return super().forward(x.detach())


@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "sampled_adf"])
def test_a_rate_is_found_for_outputs_of_one_number_without_an_axis(method):
    net = OneNumber().eval()
    sure = hs.Uncertain(net, 0.01, method)
    held_out = [(X, net(X).detach() + 0.1 * NOISE)]
    sure.fit(held_out, model="dropout", samples=20, show_progress=False)
    p = sure(X[:3])
    assert 0.05 < sure.setup.rate < 0.6 and p.std.shape == (3,) and bool((p.model_var > 0).all())


def test_a_network_that_hides_its_gradient_is_fitted_by_samples():
    net = Detached().eval()
    sure = hs.Uncertain(net, 0.01, "gradients")
    options = {"model": "dropout", "samples": 20, "show_progress": False}
    found = sure.fit([(X, net(X).detach() + 0.1 * NOISE)], **options)
    assert len(found.nll) > 5 and sure.setup.rate > 0


class SharedStatistics(nn.Module):
    """Classes by statistics of the batch, with which the rows influence each other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(16, track_running_stats=False)
        self.layers = nn.Sequential(nn.Linear(30, 16), norm, nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("batch_dim", [0, None])
@pytest.mark.parametrize("method", ["auto", "gradients"])
def test_rows_of_classes_that_influence_each_other_have_a_softmax_each(method, batch_dim):
    net = SharedStatistics().eval()
    p = hs.Uncertain(net, 1e-4, method, task="classification", batch_dim=batch_dim)(X[:6])
    assert torch.allclose(p.mean, net(X[:6]).softmax(1), atol=0.01)
    assert any("several rows of logits" in note for note in p.notes)


class Category(nn.Module):
    """A class of objects and one noisy number, with whose kinks outputs are flat here and there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = nn.Embedding(10, 8)
        self.layers = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, name, x):
        return self.layers(torch.cat([self.names(name), x], 1))


def test_a_loaded_wrapper_samples_where_the_first_inputs_are_flat_over_their_noise(tmp_path):
    net = Category().eval()
    torch.manual_seed(0)
    x = torch.randint(0, 10, (64,)), torch.randn(64, 1)
    y = net(*x).detach() + 0.02 * torch.randn(64, 2)
    sure = hs.Uncertain(net, (None, 0.01))
    sure.fit([(x, y)], show_progress=False)
    sampled = 0
    for seed in (0, 7):  # one call in 144 has such inputs, with seed 7
        sure.setup = sure.setup.replace(seed=seed)
        sure.save(tmp_path / "sure.pt")
        for start in range(0, 60, 5):
            some = [each[start : start + 5] for each in x]
            own, again = sure(*some), hs.Uncertain.load(tmp_path / "sure.pt", net)(*some)
            assert torch.allclose(again.std, own.std, rtol=0.1)
            assert torch.allclose(again.budget().variances.sum(0), again.total_var, rtol=1e-4)
            sampled += any("of 5 inputs were sampled" in note for note in again.notes)
    assert sampled


def test_an_output_that_no_unit_reaches_is_fitted():
    class Both(nn.Linear):
        def forward(self, x):
            return x[:, :2], super().forward(x)

    sure = hs.Uncertain(Both(30, 2).eval(), 0.01, output=0)
    sure.fit([(X, X[:, :2] + 0.1 * NOISE[:, None])], show_progress=False)
    assert torch.allclose(sure(X[:4]).std, torch.full((4, 2), 0.1), rtol=0.3)


def test_a_model_without_layers_is_told_what_can_be_fitted():
    class Length(nn.Module):
        def forward(self, x):
            return x.norm(dim=1, keepdim=True)

    sure, held_out = hs.Uncertain(Length().eval(), 0.01), [(X, X.norm(dim=1, keepdim=True) + 0.1)]
    assert "no layers to multiply" in sure.fit(held_out, show_progress=False).notes[0]
    assert bool((sure(100 * X[:4]).novelty > 3).all())
    assert sure.fit(held_out, model=None, show_progress=False)


def test_a_spectrum_is_told_how_it_has_a_variance():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x)[:, :4]

    with pytest.raises(TypeError, match=r"a tensor of complex64.*`torch\.view_as_real`"):
        hs.Uncertain(Spectrum().eval(), 0.01)(X[:4])
    p = hs.Uncertain(Spectrum().eval(), 0.01, output=torch.view_as_real)(X[:4])
    assert torch.allclose(p.std[:, 1:], torch.full((4, 3, 2), (0.01 * 30 / 2) ** 0.5), rtol=0.15)


@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "linear"])
def test_complex_numbers_beside_others_have_no_std_of_0(method):
    class Both(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return {"spectrum": torch.fft.rfft(y), "y": y}

    p = hs.Uncertain(Both(30, 4).eval(), 0.01, method)(X[:4])
    assert bool(p.std["spectrum"].isnan().all()) and bool((p.std["y"] > 0).all())
    assert p[1:3].std["spectrum"].shape == (2, 3)


def test_targets_that_the_model_made_itself_are_refused():
    net = OneNumber().eval()
    with pytest.raises(ValueError, match=r"are the model's own predictions.*give the true values"):
        hs.Uncertain(net, 0.01).fit([(X, net(X).detach())], show_progress=False)


@pytest.mark.filterwarnings("ignore:The held-out errors are:howsure.HowsureWarning")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 3.0), (torch.float64, 1e-3)])
def test_errors_far_below_the_size_of_the_targets_are_errors(dtype, error):
    class Northing(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 5.3e6

    net = Northing(30, 1).eval().to(dtype)
    x, generator = X.to(dtype), torch.Generator().manual_seed(0)
    y = net(x).detach() + error * torch.randn(len(x), 1, generator=generator, dtype=dtype)
    sure = hs.Uncertain(net, 0.01, "gradients")
    sure.fit([(x, y)], show_progress=False)
    assert bool((sure(x[:3]).std > 0.3 * error).all())


def test_comparing_with_training_data_draws_none_of_the_caller_s_numbers():
    net, y = OneNumber().eval(), torch.randn(len(X))
    known = torch.utils.data.TensorDataset(X + 1, y)
    loader = torch.utils.data.DataLoader(known, batch_size=8, shuffle=True)
    before = torch.get_rng_state()
    hs.Uncertain(net, 0.01).fit([(X, y)], training_data=loader, show_progress=False)
    assert torch.equal(torch.get_rng_state(), before)
