"""However a model is edited between two calls, the second call sees it: nothing is stale."""

import copy
import warnings

import edited
import pytest
import torch
from edited import EDITS, Net, X, net
from torch import nn

import howsure as hs
from compilers import needs_compiler, without_compiler_warnings
from howsure.deploy.compile import Program, bits_of, read_state
from howsure.deploy.state import State

pytestmark = without_compiler_warnings
OPTIONS = {
    "gradients": {},
    "sampled_adf": {"rate": 0.2, "samples": 4, "chunk": 2},
    "adf": {},
    "mc_dropout": {"rate": 0.2, "samples": 4},
    "noise_sampling": {"samples": 8},
    "linear": {},
    "constant": {"residual_var": 0.1},
    "ensemble": {},
    "heteroscedastic": {},
}


@pytest.fixture(autouse=True)
def as_it_was():
    """The edits of class and module are undone."""
    yield
    Net.factor = 1.0
    edited.GAIN = 1.0


def whole(model, method):
    """The model in the form that a method takes, and the network to be edited."""
    if method == "ensemble":
        return nn.ModuleList([model]), model
    if method == "heteroscedastic":
        made = hs.methods.variance_head.add_variance_head(model, X)
        return made, made.network
    return model, model


def wrapped(model, method):
    noise = None if method in ("constant", "heteroscedastic") else 0.01
    return hs.Uncertain(model, noise, method, **OPTIONS[method])


def numbers(prediction):
    return torch.cat([t.flatten() for t in (prediction.mean, prediction.total_var)])


def check_not_stale(name, method, *, compiled=False):
    """The wrapper says what a new one around a copy of the edited model says."""
    model, network = whole(net(), method)
    sure = wrapped(model, method)
    sure = sure.compile() if compiled else sure
    before = numbers(sure(X))
    if name.startswith("NaN"):
        network.head.bias.data[0] = float("nan")
        sure(X)
    EDITS[name](network)
    network.eval()
    try:
        found = numbers(sure(X))
    except RuntimeError as error:  # Masks have lost their place: refused, not stale.
        assert "rate" in OPTIONS[method] and "took another path" in str(error)
        return sure
    expected = numbers(wrapped(copy.deepcopy(model), method)(X))
    rounding = {"rtol": 1e-5, "atol": 1e-5} if compiled else {"rtol": 1e-6, "atol": 0.0}
    torch.testing.assert_close(found, expected, equal_nan=True, **rounding)
    assert not torch.allclose(found, before, rtol=1e-4), "the edit changes nothing"
    return sure


def test_there_are_enough_edits():
    assert len(EDITS) >= 25 and set(OPTIONS) == set(hs.methods.METHODS)


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("name", EDITS)
def test_no_method_is_stale(name, method):
    check_not_stale(name, method)


def program_of(setup):
    """A program without code that has frozen all that a setup holds."""
    state = read_state(setup)
    copies = {number: tensor.detach().clone() for number, tensor in enumerate(state.tensors)}
    return Program(state, lambda tensors, held: None, copies)


@pytest.mark.parametrize("name", EDITS)
def test_a_frozen_program_would_be_made_anew(name):
    model = net()
    setup = wrapped(model, "adf").setup
    program = program_of(setup)
    assert program.fits(read_state(setup))
    EDITS[name](model)
    assert not program.fits(read_state(setup))


def check_compiled(name, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sure = check_not_stale(name, method, compiled=True)
    # An edit may leave a row without gradients, which eager samples.
    is_sampled = any("were sampled" in note for note in sure(X).notes)
    assert is_sampled or any(run is not None for run in sure._compiled.programs.values())


@needs_compiler
def test_a_compiled_prediction_is_not_stale_and_refuses_what_eager_refuses():
    model = net()
    sure = hs.Uncertain(model, 0.01, "adf").compile()
    before = numbers(sure(X))
    with pytest.raises(ValueError, match="NaN or infinity"):
        sure(torch.full_like(X, float("nan")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("weight.data.mul_", "number"):
            EDITS[name](model)
            found = numbers(sure(X))
            expected = numbers(hs.Uncertain(copy.deepcopy(model), 0.01, "adf")(X))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(found, before, rtol=1e-4), "the edit changes nothing"
            before = found
    assert all(run is not None for run in sure._compiled.programs.values())


WEIGHTS = {
    "in place": lambda m: m[0].weight.data.mul_(2),
    "by numpy": lambda m: m[0].bias.detach().numpy().__iadd__(1),
    "another parameter": lambda m: setattr(m[2], "weight", nn.Parameter(2 * m[2].weight.data)),
    "another layer": lambda m: m.__setitem__(2, nn.Linear(5, 2).eval()),
}


@needs_compiler
def test_weights_are_inputs_of_a_program_without_convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    noise, x = torch.full((3,), 0.1), torch.rand(4, 3)
    sure = hs.Uncertain(model, noise, "gradients", samples=8).compile()
    sure(x)
    (program,) = sure._compiled.programs.values()
    for name, edit in {**WEIGHTS, "noise": lambda m: noise.mul_(4)}.items():
        before = numbers(sure(x))
        edit(model)
        found, eager = sure(x), hs.Uncertain(model, noise, "gradients", samples=8)(x)
        torch.testing.assert_close(numbers(found), numbers(eager), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(numbers(found), before, rtol=1e-3), name
    assert list(sure._compiled.programs.values()) == [program]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["adf", "gradients"])
@pytest.mark.parametrize("name", EDITS)
def test_no_compiled_prediction_is_stale(name, method):
    check_compiled(name, method)


@pytest.mark.parametrize(
    "noise, edit",
    [
        (torch.full((8,), 0.01), lambda n: n.mul_(9)),
        (hs.noise.std(torch.full((8,), 0.1)), lambda n: State(n).tensors[0].data.mul_(3)),
        ((torch.full((8,), 0.01),), lambda n: n[0].numpy().__imul__(9)),
    ],
    ids=["tensor", "noise", "tuple"],
)
def test_the_noise_is_part_of_what_is_frozen(noise, edit):
    setup = hs.Uncertain(net(), noise, "adf").setup
    program = program_of(setup)
    edit(noise)
    assert not program.fits(read_state(setup))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.int8]
)
def test_bits_and_not_numbers_are_compared(dtype):
    values = torch.tensor([[1.0, torch.nan, 0.0], [2.0, 1.0, 3.0]]).to(dtype)
    changes = [(0, 0)] if dtype is torch.bool else [(0, 0), (1, 2)]
    for tensor in (values, values.mT):
        program = program_of(hs.Uncertain(net(), tensor, "adf").setup)
        assert program.fits(read_state(hs.Uncertain(net(), tensor, "adf").setup))
        for i, j in changes:
            other = values.clone()
            other[i, j] = 0
            other = other.mT if tensor is not values else other
            assert not torch.equal(bits_of(other), bits_of(tensor))


def test_one_zero_is_not_the_other():
    assert not torch.equal(bits_of(torch.zeros(3)), bits_of(-torch.zeros(3)))
    nan = torch.tensor([torch.nan])
    assert torch.equal(bits_of(nan), bits_of(nan.clone()))


class Tied(nn.Module):
    """Two layers that are one, and a third."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(3, 3)
        self.third = nn.Linear(3, 3)

    def forward(self, x):
        return self.third(self.second(self.first(x)))


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: setattr(m, "second", m.third),
        lambda m: setattr(m, "second", nn.Linear(3, 3)),
        lambda m: setattr(m.third, "weight", m.first.weight),
    ],
    ids=["layer of others", "layer of its own", "weight of others"],
)
def test_which_layers_share_weights_is_frozen(edit):
    model = Tied()
    before = State(model).signature
    assert State(model).signature == before
    edit(model)
    assert State(model).signature != before


class Counts(nn.Module):
    """Counts its calls, which changes nothing."""

    def __init__(self):
        super().__init__()
        self.calls, self.layer = 0, nn.Linear(3, 1)

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


@needs_compiler
def test_a_model_that_counts_its_calls_is_compiled_once():
    sure = hs.Uncertain(Counts().eval(), 0.01, "adf").compile()
    sure(torch.rand(2, 3))
    (program,) = sure._compiled.programs.values()
    sure(torch.rand(2, 3))
    assert list(sure._compiled.programs.values()) == [program]
