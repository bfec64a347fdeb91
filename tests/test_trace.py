"""Traces of predictions give what eager ones give, and leave nothing behind."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import howsure as hs
from compilers import CASES, assert_same, needs_compiler, without_compiler_warnings
from howsure.deploy.compile import compile_method
from howsure.deploy.tracing import traced
from howsure.methods import METHODS
from howsure.trees import TensorTree
from nets import small_image_net

pytestmark = without_compiler_warnings


def assert_traced(sure, method, x, other):
    """A program that was written down for one input gives what eager gives, for another, too."""
    structure = []

    def flat(tensor):
        structure.append(TensorTree(method(sure.setup, tensor)))
        return structure[-1].tensors

    graph = traced(flat, [x])
    for values in (x, other):
        assert_same(structure[-1].unflatten(graph(values)), sure(values))


@pytest.mark.parametrize("case, batch", [*((case, 3) for case in CASES), ("gradients", 1)])
def test_traced_methods_give_what_eager_gives(case, batch):
    method, options = CASES[case]
    sure = hs.Uncertain(small_image_net(), 0.01, method, **options)
    x, other = torch.rand(2, batch, 1, 8, 8)
    sure(x)
    assert_traced(sure, METHODS[method], x, other)


@pytest.mark.parametrize("noise", [0.01, None])
def test_a_traced_posterior_gives_what_eager_gives(noise):
    sure = hs.Uncertain(small_image_net(), noise, "gradients")
    held_out = torch.rand(60, 1, 8, 8)
    with torch.no_grad():
        target = sure.model(held_out)
    sure.fit([(held_out, target + 0.1 * torch.randn_like(target))], model="posterior")
    x, other = torch.rand(2, 3, 1, 8, 8)
    assert float(sure(x).model_var.max()) > 0
    assert_traced(sure, METHODS["gradients"], x, other)


def correlated_noises():
    weights = torch.linspace(-0.1, 0.3, 64 * 4, dtype=torch.float64).reshape(64, 4)
    return {
        "covariance": hs.noise.correlated(covariance=weights @ weights.T),
        "axis": hs.noise.correlated(factor=weights[:8], axis=-1),
        "common mode": hs.noise.common_mode(0.1),
        "rows": hs.noise.rows(0.1),
        "blurred": hs.noise.blurred(0.1, [[1.0, 2.0], [0.5, 1.0]]),
        "ar1": hs.noise.ar1(0.1, 0.9, axis=-1),
        "random walk": hs.noise.random_walk(0.05, axis=-1),
        "sum": (hs.noise.rows(0.1) + hs.noise.std(0.05)).through_normalize(0.5, 2.0),
    }


@pytest.mark.parametrize("method", ["gradients", "linear"])
@pytest.mark.parametrize("kind", correlated_noises())
def test_traced_correlated_noise_is_that_of_eager(kind, method):
    sure = hs.Uncertain(small_image_net(), correlated_noises()[kind], method)
    x, other = torch.rand(2, 3, 1, 8, 8)
    assert sure(x).method == method
    assert_traced(sure, METHODS[method], x, other)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "pool, shape",
    [
        (nn.MaxPool1d(3, 2, 1), (2, 3, 7)),
        (nn.MaxPool2d((2, 3), (1, 2), (1, 0), (2, 1), ceil_mode=True), (2, 3, 7, 8)),
        (nn.MaxPool2d(2), (3, 6, 6)),
        (nn.MaxPool3d(2), (1, 2, 4, 5, 4)),
    ],
)
def test_traced_pools_give_what_eager_gives(pool, shape, gradients):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def moments(x):
        found = hs.propagate(pool, x, x.square())
        return [found.mean, found.var]

    with torch.set_grad_enabled(gradients):
        found, expected = traced(moments, [x])(x), moments(x)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_traced_maxima_of_infinities():
    x = torch.tensor([0.5, -1.0, 2.0])

    def padded(x):
        return nn.functional.pad(x, (0, 2), value=-torch.inf)

    def moments(x):
        found = hs.propagate(lambda x: torch.maximum(padded(x), padded(2 * x)), x, 0.1)
        return [found.mean, found.var]

    found, expected = traced(moments, [x])(x), moments(x)
    torch.testing.assert_close(found, expected)
    assert not any(tensor.isnan().any() for tensor in found)


def test_traced_draws_are_those_of_the_seed():
    def noisy(x):
        return [x + torch.rand(3, generator=torch.Generator().manual_seed(5))]

    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(traced(noisy, [torch.zeros(3)])(torch.zeros(3))[0], expected)


def test_a_trace_leaves_no_stand_ins_behind():
    model = small_image_net()
    sure = hs.Uncertain(model, 0.01, "adf")
    traced(lambda x: [METHODS["adf"](sure.setup, x).mean], [torch.rand(2, 1, 8, 8)])
    assert type(sure(torch.rand(2, 1, 8, 8)).data_var) is torch.Tensor


def test_weights_that_were_traced_can_be_swapped():
    """A graph keeps the stand-ins, which must not keep weak references to the weights."""
    net = nn.Linear(3, 2)
    graph = traced(lambda x: [net(x)], [torch.rand(4, 3)])
    torch.utils.swap_tensors(net.weight, nn.Parameter(torch.zeros(2, 3)))
    assert not net.weight.any() and graph(torch.ones(4, 3))[0].any()


class Keeps(nn.Module):
    """Computes a weight in a hook, and keeps what it last saw in a list and an attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.last = nn.Linear(3, 1).requires_grad_(False), [], None
        prune.l1_unstructured(self.layer, "weight", 0.5)

    def forward(self, x):
        self.last = x * 2
        self.seen[:] = [self.layer.weight * 1]
        return self.layer(x)


@needs_compiler
@pytest.mark.parametrize("made", ["compiled", "exported"])
def test_a_trace_leaves_no_stand_ins_in_the_model(made, tmp_path):
    model, x = Keeps().eval(), torch.rand(2, 3)
    weight, sure = model.layer.weight, hs.Uncertain(model, 0.1, "adf")
    if made == "compiled":
        compile_method(sure.setup, METHODS["adf"], x)
    else:
        hs.export(sure, x, tmp_path / "net.pt2")
    assert type(model.layer.weight) is Tensor and torch.equal(model.layer.weight, weight)
    assert all(type(each) is Tensor for each in model.seen)
    assert model.last is None or type(model.last) is Tensor
