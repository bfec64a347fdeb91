"""Networks on a second device: a tensor that is made on the wrong one is refused, as CUDA does.

No GPU is needed: `second_device` tags CPU tensors. All numbers must be those of the CPU.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

import howsure as hs
from second_device import CPU, SECOND, WrongDeviceError, second_device

# A recurrent layer looks for the library of a real GPU.
pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


NETWORKS = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)),
        (6, 4),
    ),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        (5, 1, 8, 8),
    ),
    "recurrent": (Recurrent, (5, 6, 4)),
    "attention": (Attention, (4, 5, 8)),
    "pixels": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 1)),
        (3, 1, 6, 6),
    ),
}
METHODS = {
    "auto": {"noise": 0.01},
    "gradients": {"noise": 0.01},
    "linear": {"noise": 0.01},
    "noise_sampling": {"noise": 0.01},
    "mc_dropout": {"rate": 0.1},
    "adf": {"noise": 0.01},
    "sampled_adf": {"noise": 0.01, "rate": 0.1},
}
NOISES = {
    "tensor": lambda: torch.tensor([0.01, 0.02, 0.03, 0.04]),
    "correlated": lambda: hs.noise.correlated(0.01 * torch.eye(4) + 0.005),
    "common mode": lambda: hs.noise.common_mode(0.1),
    "sum": lambda: hs.noise.std(0.1) + hs.noise.common_mode(0.1),
    "Poisson": lambda: hs.noise.poisson_gaussian(0.01, 0.02),
    "range": lambda: hs.noise.range_dependent(0.1, 0.01),
    "function": lambda: hs.noise.custom(lambda x: 0.01 + 0.01 * x**2),
}


def network(name, rows=None):
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return build().eval(), torch.randn(rows or shape[0], *shape[1:])


def check(run):
    """`run(move)` has the same tensors on both devices, and never mixes the two."""
    expected = run(lambda item: item)
    with second_device() as tags:
        results = run(lambda item: copy.deepcopy(item).to(SECOND))
        assert tags.refusals == []  # not even one that a fallback has caught
        assert tags.operations > 0
        assert {tags.device(tensor) for tensor in results} == {SECOND}
        results = [tensor.cpu() for tensor in results]
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-4, atol=1e-6)


def tensors(p) -> list[Tensor]:
    parts = [p.mean, p.std, p.data_var, p.model_var, p.total_var, p[1].total_var]
    optional = [p.covariance, p.std_error, p.novelty, p.linear_share]
    p.numpy()
    return parts + [part for part in optional if isinstance(part, Tensor)]


NEEDS_A_DEVICE = "a torch with CUDA lays out recurrent weights by cuDNN, on a real device"
RECURRENT = pytest.param(
    "recurrent",
    marks=pytest.mark.skipif(torch.backends.cuda.is_built(), reason=NEEDS_A_DEVICE),
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["perceptron", "images", RECURRENT, "attention"])
def test_predictions(name, method):
    net, x = network(name)
    check(lambda move: tensors(hs.Uncertain(move(net), method=method, **METHODS[method])(move(x))))


@pytest.mark.parametrize("method", ["gradients", "linear", "noise_sampling", "adf"])
@pytest.mark.parametrize("noise", NOISES)
def test_noises(noise, method):
    net, x = network("perceptron")
    check(lambda move: tensors(hs.Uncertain(move(net), NOISES[noise](), method)(move(x))))


@pytest.mark.parametrize("method", METHODS)
def test_a_residual_variance_of_the_cpu(method):
    net, x = network("perceptron")
    options = {**METHODS[method], "residual_var": torch.tensor([0.1, 0.2])}
    check(lambda move: tensors(hs.Uncertain(move(net), method=method, **options)(move(x))))


@pytest.mark.filterwarnings("ignore::howsure.HowsureWarning")
@pytest.mark.parametrize(
    "options", [{}, {"model": "dropout", "rates": (0.0, 0.05, 0.2)}, {"train": True}]
)
@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("name", ["perceptron", "pixels"])
def test_fits_and_what_is_saved_of_them(name, task, options, tmp_path):
    net, x = network(name, rows=60)
    with torch.no_grad():
        y = net(x) + 0.3 * torch.randn_like(net(x))
    target = y if task == "regression" else y.argmax(1)

    def run(move):
        model = move(net)
        sure = hs.Uncertain(model, noise=0.001, task=task)
        if options.get("train"):
            sure.fit([(move(x), move(target))], train_inputs=[move(x + 1)], show_progress=False)
        else:
            sure.fit([(move(x), move(target))], show_progress=False, **options)
        sure.save(tmp_path / "fit.pt")
        loaded = hs.Uncertain.load(tmp_path / "fit.pt", model)
        return tensors(sure(move(x[:4]))) + tensors(loaded(move(x[:4])))

    check(run)


def test_what_is_on_the_wrong_device_is_refused():
    """The tool itself: without it the tests above could not fail."""
    with second_device() as tags:
        x = torch.ones(3).to(SECOND)
        assert x.device == SECOND == (2 * x).device == torch.zeros(2, device=x.device).device
        assert x.cpu().device == CPU == torch.ones(3).device
        assert (x * torch.tensor(2.0)).device == x[torch.tensor([0])].device == SECOND
        mistakes = [
            lambda: x + torch.ones(3),
            lambda: torch.stack([x.sum(), torch.tensor(1.0)]),
            lambda: torch.ones(3)[x.long()],
            lambda: torch.vmap(lambda row: row + torch.ones(1))(x),
            lambda: torch.randn(3, generator=torch.Generator(), device=x.device),
            x.numpy,
        ]
        for mistake in mistakes:
            with pytest.raises(WrongDeviceError):
                mistake()
        assert len(tags.refusals) == len(mistakes)
