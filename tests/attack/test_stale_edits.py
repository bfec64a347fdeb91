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
from howsure.deploy.compiling.compiled import _walk
from howsure.values.bits import same_bits
from howsure.values.contents import Snapshot, contents_of

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


@pytest.mark.parametrize("name", EDITS)
def test_a_compiled_program_would_be_made_anew(name):
    model = net()
    setup = wrapped(model, "adf").setup
    kept = Snapshot(_walk(setup).leaves)
    assert kept.holds(_walk(setup).leaves)
    EDITS[name](model)
    assert not kept.holds(_walk(setup).leaves)


def check_compiled(name, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sure = check_not_stale(name, method, compiled=True)
    assert any(run is not None for run in sure._compiled.programs.values())


@needs_compiler
@pytest.mark.parametrize("name", ["weight.data.mul_", "number"])
def test_a_compiled_prediction_is_not_stale(name):
    check_compiled(name, "adf")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["adf", "gradients"])
@pytest.mark.parametrize("name", EDITS)
def test_no_compiled_prediction_is_stale(name, method):
    check_compiled(name, method)


def tensor_in(noise):
    return next(leaf for leaf in contents_of(noise) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize(
    "noise, edit",
    [
        (torch.full((8,), 0.01), lambda n: n.mul_(9)),
        (hs.noise.std(torch.full((8,), 0.1)), lambda n: tensor_in(n).data.mul_(3)),
        ((torch.full((8,), 0.01),), lambda n: n[0].numpy().__imul__(9)),
    ],
    ids=["tensor", "noise", "tuple"],
)
def test_the_noise_is_part_of_what_is_frozen(noise, edit):
    setup = hs.Uncertain(net(), noise, "adf").setup
    kept = Snapshot(_walk(setup).leaves)
    edit(noise)
    assert not kept.holds(_walk(setup).leaves)


def test_bits_and_not_numbers_are_compared():
    nan, other = torch.tensor([float("nan")]), torch.tensor([0x7FC00001], dtype=torch.int32)
    assert same_bits(nan, nan.clone()) and not same_bits(nan, other.view(torch.float32))
    assert not same_bits(torch.zeros(3), -torch.zeros(3))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.int8):
        values = torch.rand(3, 5).mul(3).to(dtype)
        assert same_bits(values, values.clone()) and same_bits(values.mT, values.mT.clone())
        assert not same_bits(values, values.logical_not().to(dtype))


@needs_compiler
def test_a_compiled_method_refuses_what_eager_refuses():
    sure = hs.Uncertain(net(), 0.01, "adf").compile()
    sure(X)
    with pytest.raises(ValueError, match="NaN or infinity"):
        sure(torch.full_like(X, float("nan")))


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
