"""Models of every kind: each works, or is refused in one sentence that names the remedy."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from old_torch import TORCH

X = torch.tensor([[0.3, -0.5, 1.2, 0.8], [1.1, 0.2, -0.7, 0.4], [-0.2, 0.9, 0.6, -1.3]])
METHODS = ("adf", "sampled_adf", "mc_dropout", "linear")
Normal = torch.distributions.Normal


class Net(nn.Module):
    """Two layers, and a function of their output."""

    def __init__(self, function=torch.tanh):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.function = function

    def forward(self, x):
        return self.function(self.second(torch.tanh(self.first(x))))


def column(z):
    z = z * 1.0
    z[:, 0] += z[:, 1]
    return z


WORKING = {
    "normal": lambda z: Normal(z, torch.ones(4)).mean,
    "noisy scale": lambda z: Normal(z, F.softplus(z)).entropy(),
    "log_prob": lambda z: Normal(z, torch.ones(4)).log_prob(torch.zeros(4)),
    "categorical": lambda z: torch.distributions.Categorical(logits=z).probs,
    "column": column,
    "tensordot with a number": lambda z: torch.tensordot(z, torch.ones(4, 2), dims=1),
    "tensordot with lists": lambda z: torch.tensordot(z, torch.ones(4, 2), dims=([1], [0])),
    "power of a tensor": lambda z: torch.pow(z, torch.tensor(2.0)),
    "powers of a tensor": lambda z: z ** torch.tensor([1.0, 2.0, 3.0, 2.0]),
    "tensor to the power": lambda z: torch.tensor([2.0, 3.0, 2.0, 0.5]) ** z,
    "type_as": lambda z: torch.arange(1, 5).type_as(z) * z,
    "to": lambda z: torch.ones(4, dtype=torch.float64).to(z) * z,
}


def monte_carlo_std(model, std, draws=4000):
    generator = torch.Generator().manual_seed(0)
    noise = std * torch.randn(draws, *X.shape, generator=generator)
    with torch.no_grad():
        return model((X + noise).reshape(-1, 4)).reshape(draws, len(X), -1).std(0)


def predicted(model, method, x=X, noise=1e-4):
    rate = {"rate": 0.1} if method in ("sampled_adf", "mc_dropout") else {}
    return hs.Uncertain(model, noise=noise, method=method, **rate)(x)


@pytest.mark.parametrize("name", WORKING)
def test_functions_that_models_call(name):
    model = Net(WORKING[name]).eval()
    assert hs.check(model, X).ok
    out = hs.propagate(model, X, 1e-4)
    torch.testing.assert_close(out.mean, model(X), rtol=1e-3, atol=1e-3)
    for method in METHODS:
        assert bool((predicted(model, method).std > 0).all()), method
    truth = monte_carlo_std(model, 1e-2)
    linear = predicted(model, "linear").std.reshape(truth.shape)
    torch.testing.assert_close(linear, truth, rtol=0.1, atol=1e-3)


def test_powers_of_a_tensor_are_those_of_its_numbers():
    x, p = torch.tensor([0.5, 1.5, -2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0, -1.0])
    out = hs.propagate(lambda x: x**p, x, 0.01)
    for i in range(4):
        each = hs.propagate(lambda x, i=i: x ** p[i].item(), x[i : i + 1], 0.01)
        torch.testing.assert_close(out.mean[i : i + 1], each.mean)
        torch.testing.assert_close(out.var[i : i + 1], each.var)


def test_validation_of_distributions_is_as_before_afterwards():
    before = torch.distributions.Distribution._validate_args
    hs.propagate(Net(WORKING["normal"]).eval(), X, 0.01)
    with pytest.raises(hs.NoRuleError):
        hs.propagate(lambda x: x > 0, X, 0.01)
    assert torch.distributions.Distribution._validate_args == before


@pytest.mark.parametrize(
    "mask",
    [
        lambda z: z * (z > 0),
        lambda z: torch.where(z > 0.5, z, 0.0),
        lambda z: z.masked_fill(z < 0, 0),
    ],
    ids=["product", "where", "masked_fill"],
)
def test_masks_from_noisy_values(mask):
    model = Net(mask).eval()
    assert not hs.check(model, X).ok
    with pytest.raises(hs.NoRuleError, match=r'fallback="linearize"` freezes the mask'):
        hs.propagate(model, X, 0.01)
    frozen = hs.propagate(model, X, 1e-4, fallback="linearize")
    assert frozen.notes and bool((frozen.var >= 0).all()) and bool((frozen.var > 0).any())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["scripted", "traced", "frozen"])
def test_torchscript_is_refused_with_the_remedy(kind):
    python = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    made = torch.jit.trace(python, X) if kind == "traced" else torch.jit.script(python)
    model = torch.jit.freeze(made) if kind == "frozen" else made
    for refused in (lambda: hs.propagate(model, X, 0.01), lambda: predicted(model, "adf")):
        with pytest.raises(hs.NoRuleError, match="Use the Python module"):
            refused()
    for method in ("sampled_adf", "mc_dropout"):
        with pytest.raises(ValueError, match="use the Python module"):
            predicted(model, method)
    assert not hs.check(model, X).ok
    first_order = hs.propagate(model, X, 1e-4, fallback="linearize")
    torch.testing.assert_close(predicted(model, "linear").data_var, first_order.var)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_function_inside_a_model_is_refused_with_the_remedy():
    act = torch.jit.trace(torch.tanh, X)
    with pytest.raises(hs.NoRuleError, match="Use the Python function in its place"):
        hs.propagate(Net(act).eval(), X, 0.01)


def test_compiled_models_run_uncompiled():
    model = Net().eval()
    compiled = torch.compile(model, backend="eager")
    expected = hs.propagate(model, X, 0.01)
    torch.testing.assert_close(hs.propagate(compiled, X, 0.01).var, expected.var)
    assert hs.check(compiled, X).ok
    for method in METHODS:
        torch.testing.assert_close(predicted(compiled, method).std, predicted(model, method).std)


def test_weights_made_in_inference_mode():
    with torch.inference_mode():
        model = Net().eval()
    ordinary = Net().eval()
    expected = hs.propagate(ordinary, X, 0.01).var
    torch.testing.assert_close(hs.propagate(model, X, 0.01).var, expected.detach())
    for method in METHODS:
        torch.testing.assert_close(predicted(model, method).std, predicted(ordinary, method).std)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.net = nn.Embedding(10, 4), Net()

    def forward(self, tokens):
        return self.net(self.table(tokens))


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_tokens_have_no_sensor_noise_but_an_uncertain_model(shape):
    model, tokens = Tokens().eval(), torch.randint(10, shape)
    checked = hs.check(model, tokens)
    assert checked.ok and "tokens" in checked.advice[0]
    assert bool((hs.propagate(model, tokens, None).var == 0).all())
    for method in METHODS:
        p = predicted(model, method, tokens, None)
        assert bool((p.data_var == 0).all())
        assert bool((p.model_var > 0).all()) == (method in ("sampled_adf", "mc_dropout"))


@pytest.mark.filterwarnings("ignore:var\\(\\)")
@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_gives_an_empty_prediction(method):
    assert predicted(Net().eval(), method, X[:0]).std.shape == (0, 4)


def test_autocast():
    model = Net(F.gelu).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for method in ("adf", "sampled_adf", "mc_dropout", "linear"):
            assert bool((predicted(model, method, noise=0.01).std > 0).all())


CRASHES = {
    "y.data = x": "y = torch.ones(4); y.data = x; return y * 2",
    "to_dlpack": "return torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))",
    "y.grad = x": "y = torch.ones(3, 4, requires_grad=True); y.grad = x; return y.grad * 2",
}


def test_memory_of_a_gaussian_is_refused_by_name():
    """In a process of its own, since a fault here ends the interpreter."""
    code = "import torch, howsure as hs\n"
    for body in CRASHES.values():
        code += "def f(x):\n    " + body.replace("; ", "\n    ") + "\n"
        code += "try: hs.propagate(f, torch.ones(3, 4), 0.01)\n"
        code += "except hs.NoRuleError as e: print(str(e).replace(chr(10), ' '))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, line in zip(CRASHES, done.stdout.splitlines(), strict=True):
        # Before torch 2.9 `to_dlpack` asks nobody; the first operation that it calls is refused.
        old = name == "to_dlpack" and TORCH < "2.9"
        assert ("`aten.as_strided" if old else f"`{name}") in line
