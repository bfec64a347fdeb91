"""Every setting survives being saved, or is refused by name."""

import dataclasses
import io

import pytest
import torch

import howsure as hs
from howsure.methods.saved_settings import loaded_settings, names_of_settings, saved_settings
from howsure.moments.rule import find
from howsure.multipliers import Placement
from howsure.posterior.distances import Distances, InputRange, LayerGaussian
from howsure.posterior.laplace import Posterior
from howsure.posterior.local_error import Kernel, LocalError
from howsure.posterior.temperature import TemperatureModel
from howsure.posterior.variance_model import VarianceModel
from howsure.setup import Setup
from nets import perceptron

# For every field a value that is not its default. A new field fails the test until it has one.
OTHER = {
    "noise": hs.noise.std(0.3),
    "placement": Placement("before", only=("0", "2"), units="element", over_time="fresh"),
    "rate": (0.1, 0.25),
    "samples": 7,
    "tolerance": 0.25,
    "seed": 11,
    "prediction": "mean",
    "output": "pose",
    "batch_dim": None,
    "task": "classification",
    "residual_var": torch.tensor([0.5, 0.25]),
    "chunk": 3,
    "shared_masks": False,
    "unbiased": True,
    "variance_dtype": torch.bfloat16,
    "fallback": "linearize",
    "variance_model": VarianceModel(
        Posterior(torch.eye(3), torch.ones(1), 60, 3),
        Distances((LayerGaussian("0", torch.rand(2), torch.eye(2)),), "2", torch.rand(7, 4), 9),
        InputRange(torch.rand(2), torch.rand(2)),
        torch.rand(1, 7),
        *torch.rand(2, 1),
        torch.rand(2),
        torch.rand(2),
        torch.rand(1, 2),
        torch.rand(1),
        1.25,
        torch.rand(1),
        2.0,
        5.0,
        *torch.rand(2, 1),
        torch.rand(5, 1),
        torch.rand(5),
        True,
        LocalError(torch.rand(40, 2), torch.rand(40, 1), torch.rand(1), 0.5),
        0.3,
        Kernel(torch.rand(40, 2), 0.5),
        "why",
    ),
    "temperature_model": TemperatureModel(
        1.5,
        3,
        Distances((LayerGaussian("0", torch.rand(2), torch.eye(2)),), "2", torch.rand(7, 4), 9),
        (0.25, 2.0),
        torch.rand(2),
        (0.1, 9.0),
        0.5,
        torch.rand(5),
        ("said",),
    ),
    "uniforms": (torch.rand(2, 3), torch.rand(2, 4)),
    "fitted_to": ("layers", torch.rand(5)),
}
REFUSED = {"rules": {torch.relu: find(torch.relu)}}


def stored(state):
    """What a file gives back that may hold no code."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def alike(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, tuple):
        return isinstance(two, tuple) and len(one) == len(two) and all(map(alike, one, two))
    if dataclasses.is_dataclass(one) and not isinstance(one, hs.noise.Noise):
        names = [f.name for f in dataclasses.fields(one)]
        return type(one) is type(two) and all(
            alike(getattr(one, n), getattr(two, n)) for n in names
        )
    if isinstance(one, hs.noise.Noise):
        return one.to_config() == two.to_config()
    return type(one) is type(two) and one == two


def test_every_field_is_tried():
    named = {f.name for f in dataclasses.fields(Setup) if not f.name.startswith("_")} - {"model"}
    assert named == {*OTHER, *REFUSED} == set(names_of_settings())


@pytest.mark.parametrize("name", OTHER)
def test_every_field_comes_back(name):
    default = Setup(perceptron())
    assert not alike(getattr(default, name), OTHER[name])
    setup = default.replace(**{name: OTHER[name]})
    found = default.replace(**loaded_settings(stored(saved_settings(setup))))
    for each in names_of_settings():
        assert alike(getattr(setup, each), getattr(found, each)), each


@pytest.mark.parametrize(
    "name, value", [*REFUSED.items(), ("output", lambda y: y[0]), ("output", slice(1))]
)
def test_what_is_no_plain_data_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=rf"`{name}=.*cannot be saved.*after loading"):
        saved_settings(Setup(perceptron(), **{name: value}))


@dataclasses.dataclass(frozen=True, eq=False)
class Own(hs.noise.Noise):
    def var_at(self, x):
        return x.square()


class OfOurs(type(hs.noise.std(0.1))):
    """Has the name of its parent in a config, and another variance."""

    def var_at(self, x):
        return 4 * super().var_at(x)


@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: n.scaled(2.0), lambda n: (n, None)])
@pytest.mark.parametrize("make", [Own, lambda: OfOurs(*vars(hs.noise.std(0.1)).values())])
def test_a_noise_of_your_own_is_refused_and_nothing_is_written(make, wrap, tmp_path):
    sure = hs.Uncertain(perceptron(), noise=wrap(make()))
    with pytest.raises(TypeError, match=r"your own class .* cannot be saved"):
        sure.save(tmp_path / "settings.pt")
    assert list(tmp_path.iterdir()) == []


def test_settings_of_another_version_are_refused():
    state = saved_settings(Setup(perceptron()))
    with pytest.raises(ValueError, match=r"missing keys \['seed'\], unexpected keys \['speed'\]"):
        state["speed"] = state.pop("seed")
        loaded_settings(state)


@pytest.mark.parametrize(
    "method", ["gradients", "sampled_adf", "mc_dropout", "noise_sampling", "adf"]
)
def test_the_same_seed_gives_the_same_after_loading(method, tmp_path):
    options = {"samples": 4, "chunk": 3, "seed": 5, "fallback": "linearize", "shared_masks": False}
    rate = None if method == "noise_sampling" else 0.2
    model, x = perceptron(), torch.rand(4, 3)
    sure = hs.Uncertain(model, 0.01, method, rate=rate, **options)
    sure.save(tmp_path / "settings.pt")
    again = hs.Uncertain.load(tmp_path / "settings.pt", model)
    assert again.setup.chunk == 3 and again.setup.fallback == "linearize"
    one, two = sure(x), again(x)
    assert torch.equal(one.mean, two.mean) and torch.equal(one.total_var, two.total_var)


def fitted(width):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
    ).eval()
    x = torch.randn(60, 3)
    with torch.no_grad():
        y = model(x) + 0.1 * torch.randn(60, 1)
    sure = hs.Uncertain(model, 0.01)
    sure.fit([(x, y)], show_progress=False)
    return sure


@pytest.mark.parametrize("exact", [8192, 10], ids=["exact", "sketched"])
def test_settings_of_another_network_are_refused(tmp_path, monkeypatch, exact):
    monkeypatch.setattr("howsure.posterior.laplace.EXACT", exact)
    monkeypatch.setattr("howsure.posterior.laplace.SKETCHED", 8)
    fitted(16).save(tmp_path / "sure.pt")
    other = fitted(24).model
    with pytest.raises(ValueError, match="belongs to a network with other layers"):
        hs.Uncertain.load(tmp_path / "sure.pt", other)


def test_what_another_version_has_fitted_is_refused():
    state = saved_settings(Setup(perceptron(), variance_model=OTHER["variance_model"]))
    del state["variance_model"]["variance_model"]["floor"]
    with pytest.raises(ValueError, match="another version of howsure; run `fit` again"):
        loaded_settings(state)
    old = hs.Uncertain(perceptron()).get_extra_state() | {"format": 4}
    with pytest.raises(ValueError, match="format 4, that of another version"):
        hs.Uncertain(perceptron()).set_extra_state(old)
